"""Choosing what is read: files and pages of a conversation with their tokens, as a tree, by name, or as suggested.

A choice is a PageChoice. What it leaves out is always named (`left_out`); nothing else is ever left out.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from app.changes.versions import MAP, superseded
from app.errors import WrongUse
from app.ingest import page_ranges
from app.pages import PageChoice, choice_as_text, choice_from, format_pages
from app.units import listed

if TYPE_CHECKING:
    from app.wiring import App
    from storage import Document, Library

NAMED = 5
GROUP = 10
"""Pages of a long document stand in groups of so many in the tree."""


@dataclass(frozen=True, slots=True)
class Item:
    """A file inside a document, or a run of pages of one that is a single file; `name` says which.

    pages: their numbers, ascending. tokens: of all of them together.
    """

    document_id: str
    name: str
    pages: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Source:
    """One document of a conversation, as it may be chosen from. around: tokens that stand around its pages.

    items: in the order in which they are read; page_tokens: of every page from the first on. has_files: the items are
    files with paths, not runs of pages.
    """

    document: Document
    around: int
    page_tokens: tuple[int, ...]
    items: tuple[Item, ...]
    has_files: bool

    @property
    def tokens(self) -> int:
        return self.around + sum(item.tokens for item in self.items)


def sources(app: App, conversation_id: str) -> list[Source]:
    """All documents with their files or pages. Counts tokens where nobody has; AppError for the model's file."""
    tokens = app.document_tokens()
    old = superseded(app.library, conversation_id)
    found = []
    for document in app.library.documents(conversation_id):
        counts = tokens.counts(document.id)
        current = set(range(1, document.pages + 1)) - old.get(document.id, frozenset())
        all_runs, has_files = _runs(app.library, document)
        runs = [(name, [page for page in pages if page in current]) for name, pages in all_runs]
        items = tuple(
            Item(document.id, name, tuple(pages), sum(counts.pages[page - 1] for page in pages))
            for name, pages in runs
            if pages
        )
        found.append(Source(document, counts.around, counts.pages, items, has_files))
    return found


def _runs(library: Library, document: Document) -> tuple[list[tuple[str, Sequence[int]]], bool]:
    """((name, pages) of its files or groups of pages, whether these are files)."""
    files = [row for row in library.files(document.id) if row.pages]
    named = [(row.path, row.page_range) for row in files]
    covered = {page for _, pages in named for page in pages}
    rest = [page for page in range(1, document.pages + 1) if page not in covered]
    if files:  # an update begins with a page that says what changed
        return [*([("changes", rest)] if rest else []), *named], True
    groups = [rest[start : start + GROUP] for start in range(0, len(rest), GROUP)]
    return [(page_ranges(list(group)), group) for group in groups], False


def room(app: App) -> int:
    """Tokens that documents may take, beside system text, a short question and the answer."""
    from app.documents import SKELETON_ROOM
    from app.prompts import system_text

    overhead = app.face().tokenizer.count(system_text(app.model.parameters)) + SKELETON_ROOM
    return app.context - app.settings.max_answer_tokens - overhead


def chosen_tokens(found: Sequence[Source], choice: PageChoice | None) -> int:
    """What the chosen pages take, with what stands around them."""
    total = 0
    for source in found:
        wanted = set((choice or PageChoice()).pages(source.document.id, source.document.pages))
        pages = [page for item in source.items for page in item.pages if page in wanted]
        total += source.around + sum(source.page_tokens[page - 1] for page in pages) if pages else 0
    return total


def by_names(found: Sequence[Source], patterns: Sequence[str]) -> PageChoice:
    """The files that one of the patterns names: 'src/*.py', 'README.md', '*.pdf'. '*' crosses folders.

    A file inside a folder is named by its path with or without the folder's name, a document by its name. WrongUse for
    a pattern that names nothing.
    """
    chosen: dict[str, list[int]] = {source.document.id: [] for source in found}
    for pattern in patterns:
        hits = 0
        for source in found:
            name = source.document.name
            for item in source.items:
                names = (name, item.name, f"{name}/{item.name}") if source.has_files else (name,)
                if any(fnmatchcase(called, pattern) for called in names):
                    chosen[source.document.id] += item.pages
                    hits += 1
        if not hits:
            everything = [s.document.name for s in found] + [i.name for s in found if s.has_files for i in s.items]
            near = difflib.get_close_matches(pattern, everything, n=3, cutoff=0.5)
            hint = f"Did you mean {' or '.join(near)}?" if near else "`--plan` lists the files with their tokens."
            raise WrongUse(f"No file is called {pattern!r}.", hint)
    return of_pages({document_id: set(pages) for document_id, pages in chosen.items()})


def of_pages(pages: Mapping[str, set[int]]) -> PageChoice:
    """A choice of exactly these pages."""
    choice = PageChoice()
    for document_id, wanted in pages.items():
        choice = choice.join(PageChoice.parse(format_pages(sorted(wanted)) or "none", document_id))
    return choice


def left_out(app: App, conversation_id: str, choice: PageChoice | None) -> tuple[str, ...]:
    """A sentence for each document of which this choice leaves something out."""
    if choice is None:
        return ()
    sentences = []
    old = superseded(app.library, conversation_id)
    documents = app.library.documents(conversation_id)
    mapped = {document.source for document in documents if document.kind == MAP and choice.pages(document.id, 1)}
    for document in documents:
        wanted = set(choice.pages(document.id, document.pages)) | old.get(document.id, frozenset())
        missing = [page for page in range(1, document.pages + 1) if page not in wanted]
        if missing and document.kind != MAP:
            sentences.append(_left_out(app.library, document, missing, document.id in mapped))
    return tuple(sentences)


def _left_out(library: Library, document: Document, missing: Sequence[int], mapped: bool) -> str:
    name = document.name
    if len(missing) == document.pages:
        if mapped:
            return f"{name} was read as its map (paths and signatures), not its text."
        return f"{name} was not read, as you chose."
    files = [row for row in library.files(document.id) if row.pages]
    if not files:
        return f"Not read, as you chose: {page_ranges(list(missing))} of {name} ({len(missing)} of {document.pages})."
    gone = set(missing)
    whole = [row.path for row in files if gone.issuperset(row.page_range)]
    part = [row.path for row in files if row.path not in whole and not gone.isdisjoint(row.page_range)]
    parts = [f"{len(whole):,} of {len(files):,} files ({listed(whole, NAMED)})"] if whole else []
    if part:
        parts.append(f"parts of {listed(part, NAMED)}")
    return f"Not read of {name}, as you chose: {' and '.join(parts)}."


def stored_choice(app: App, conversation_id: str) -> PageChoice | None:
    """What was chosen in this conversation for all questions to come; documents that are gone do not count."""
    text = app.library.choice(conversation_id)
    choice = choice_from({"pages": json.loads(text)}) if text else None
    if choice is None:
        return None
    attached = {document.id: document for document in app.library.documents(conversation_id)}
    kept = {id: ranges for id, ranges in choice.documents.items() if id in attached}
    return PageChoice(kept, choice.every) if kept or choice.every is not None else None


def store_choice(app: App, conversation_id: str, choice: PageChoice | None) -> None:
    app.library.set_choice(conversation_id, json.dumps(choice_as_text(choice)) if choice is not None else "")
