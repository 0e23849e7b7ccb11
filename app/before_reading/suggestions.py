"""What to read when not everything fits: proposals that fit, each with its numbers, taken with one click or flag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from app.before_reading.choice import Source, chosen_tokens, of_pages
from app.changes.versions import superseded

if TYPE_CHECKING:
    from app.pages import PageChoice
    from app.wiring import App

Kind = Literal["match", "smallest", "beginning"]
MOST_HITS = 150


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A choice that fits. pages and files: how many it reads; text: a sentence on it."""

    kind: Kind
    choice: PageChoice
    pages: int
    files: int
    tokens: int
    text: str


def suggest(app: App, conversation_id: str, found: Sequence[Source], question: str, room: int) -> list[Suggestion]:
    """At most one of each kind, none that reads everything or nothing. question may be empty: then none is by words."""
    proposals: list[tuple[Kind, dict[str, set[int]]]] = []
    if question.strip():
        proposals.append(("match", _matching(app, conversation_id, found, question, room)))
    if sum(len(source.items) for source in found if source.has_files) > 1:
        proposals.append(("smallest", _smallest(found, room)))
    proposals.append(("beginning", _beginning(found, room)))
    everything = sum(len(item.pages) for source in found for item in source.items)
    suggestions = []
    for kind, pages in proposals:
        count = sum(map(len, pages.values()))
        if not 0 < count < everything:
            continue
        choice = of_pages({source.document.id: pages.get(source.document.id, set()) for source in found})
        files = sum(
            1 for source in found for item in source.items if pages.get(source.document.id, set()) & {*item.pages}
        )
        tokens = chosen_tokens(found, choice)
        suggestions.append(Suggestion(kind, choice, count, files, tokens, _text(kind, count, files, tokens)))
    return suggestions


def _text(kind: Kind, pages: int, files: int, tokens: int) -> str:
    these = "This page matches" if pages == 1 else f"These {pages:,} pages match"
    if kind == "match":
        return f"{these} your question and fit{'s' if pages == 1 else ''}: {tokens:,} tokens."
    if kind == "smallest":
        return f"The {files:,} smallest files fit: {tokens:,} tokens."
    return (
        f"The first {pages:,} pages fit: {tokens:,} tokens."
        if pages > 1
        else f"The first page fits: {tokens:,} tokens."
    )


class _Filling:
    """Pages that are taken as long as they fit; the first of a document also takes what stands around its pages."""

    def __init__(self, found: Sequence[Source], room: int) -> None:
        self.sources = {source.document.id: source for source in found}
        self.left = room
        self.pages: dict[str, set[int]] = {}

    def take(self, document_id: str, pages: Sequence[int]) -> bool:
        """All of these pages or none; True if they are in."""
        source, known = self.sources[document_id], self.pages.get(document_id, set())
        new = [page for page in pages if page not in known]
        cost = sum(source.page_tokens[page - 1] for page in new) + (0 if known else source.around)
        if cost > self.left:
            return False
        self.left -= cost if new else 0
        self.pages.setdefault(document_id, set()).update(new)
        return True


def _matching(app: App, conversation_id: str, found: Sequence[Source], question: str, room: int) -> dict[str, set[int]]:
    """Pages with the best passages for the question, best first, as many as fit."""
    filling = _Filling(found, room)
    ids = [source.document.id for source in found]
    for hit in app.library.search(question, ids, MOST_HITS, without=superseded(app.library, conversation_id)):
        filling.take(hit.document_id, [hit.page])
    return filling.pages


def _smallest(found: Sequence[Source], room: int) -> dict[str, set[int]]:
    """Whole files, the smallest first: the most files that fit."""
    filling = _Filling(found, room)
    for item in sorted((item for source in found for item in source.items), key=lambda item: item.tokens):
        if not filling.take(item.document_id, item.pages):
            break
    return filling.pages


def _beginning(found: Sequence[Source], room: int) -> dict[str, set[int]]:
    filling = _Filling(found, room)
    for source in found:
        for item in source.items:
            for page in item.pages:
                if not filling.take(item.document_id, [page]):
                    return filling.pages
    return filling.pages
