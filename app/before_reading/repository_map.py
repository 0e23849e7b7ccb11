"""A repository map: every path of a folder or archive with the line and signature of what its sources declare.

It is a document of its own, made from the stored text, far shorter than that: with it a model knows what is where, and
can name path:line. Sources are parsed in child processes with limits; a file that breaks the parser is listed by its
path alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from app.before_reading.choice import of_pages, store_choice, stored_choice
from app.changes.versions import MAP
from app.errors import WrongUse
from app.ingest import Limits
from app.ingest.child import ChildStopped, run_child
from app.ingest.signatures import language_of
from app.ingest.textfile import split_pages
from app.ingest.worker import request_line
from storage import FileRow, PageRow

if TYPE_CHECKING:
    from app.wiring import App
    from storage import Document, Library

EXTRACTOR = "map 1 (tree-sitter)"
BATCH_CHARACTERS = 2_000_000
"""Source text that one child parses."""
LONGEST_SOURCE = 1_000_000
Progress = Callable[[int, int], None]
Rows = dict[str, list[tuple[int, int, str]]]
"""(line, depth, signature) of each path."""


def map_of(
    app: App,
    document: Document,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    limits: Limits | None = None,
) -> Document:
    """The map of a folder or archive, made once for its content. WrongUse for a document that holds no files.

    progress(done, total) counts files. Cancelled after `cancel`.
    """
    library = app.library
    files = [row for row in library.files(document.id) if row.pages]
    if not files:
        raise WrongUse(f"{document.name} is no folder or archive of files.", "Only those have a map.")
    digest = sha256(f"map of {document.sha256}".encode()).hexdigest()
    known = library.find_document(digest, EXTRACTOR)
    if known is not None:
        return known
    found: Rows = {}
    missing: set[str] = set()
    for batch in _batches(library, document.id, files):
        _parse(batch, found, missing, limits or Limits(), cancel)
        if progress is not None:
            progress(len(found), sum(1 for row in files if language_of(row.path)))
    text = map_text(document.name, files, found, missing)
    pages = [PageRow(number, f"map {page.label}", page.text) for number, page in enumerate(split_pages(text), 1)]
    name = f"{document.name}, map"
    return library.add_document(digest, name, MAP, EXTRACTOR, pages, len(text.encode()), document.id)


def use_map(app: App, conversation_id: str, document: Document, **options: Any) -> Document:
    """Attaches the map and chooses it in place of the document's own text, for this conversation's questions."""
    made = map_of(app, document, **options)
    app.library.attach(conversation_id, made.id)
    choice = stored_choice(app, conversation_id)
    instead = of_pages({document.id: set(), made.id: set(range(1, made.pages + 1))})
    store_choice(app, conversation_id, instead if choice is None else choice.join(instead))
    return made


def map_text(name: str, files: Sequence[FileRow], found: Rows, missing: set[str]) -> str:
    """Paths in order of their names; under each its declarations, indented by depth, after their line numbers."""
    lines = [f"Map of {name}: {len(files):,} files, each with the lines of what it declares."]
    if missing:
        lines.append(f"No signatures for {', '.join(sorted(missing))}: the grammar is not installed.")
    for row in sorted(files, key=lambda row: row.path):
        lines.append(row.path)
        lines += [f"{line}: {'  ' * depth}{text}" for line, depth, text in found.get(row.path, ())]
    return "\n".join(lines) + "\n"


def _batches(library: Library, document_id: str, files: Sequence[FileRow]) -> Iterator[list[tuple[str, str]]]:
    """(path, text) of the sources, about BATCH_CHARACTERS at a time; pages of a text file join to its text exactly."""
    owner = {row.first_page: row for row in files}
    batch: list[tuple[str, str]] = []
    path, parts, left, held = "", [], 0, 0
    for pages in library.page_batches(document_id):
        for page in pages:
            if page.index in owner:
                path, parts, left = owner[page.index].path, [], owner[page.index].pages
            parts.append(page.text)
            left -= 1
            if left == 0 and language_of(path):
                text = "".join(parts)
                if len(text) <= LONGEST_SOURCE:
                    batch.append((path, text))
                    held += len(text)
        if held >= BATCH_CHARACTERS:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _parse(
    batch: list[tuple[str, str]], found: Rows, missing: set[str], limits: Limits, cancel: threading.Event | None
) -> None:
    """Fills `found`. A child that is stopped by one file is followed by another for the files behind it."""
    done = 0

    def take(message: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        if message["type"] == "signatures":
            found[message["path"]] = [(line, depth, text) for line, depth, text in message["rows"]]
        else:
            missing.add(message["language"])

    while done < len(batch):
        try:
            rest = batch[done:]
            run_child(request_line("signatures", "sources", limits, files=rest), take, limits=limits, cancel=cancel)
        except ChildStopped:
            done += 1
