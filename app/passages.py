"""The best passages for a question: found at once, by words alone, with no model in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.turn import Passage

if TYPE_CHECKING:
    from storage import Document, Library

BEGINNING_CHARACTERS = 1200
SHOWN = 8
"""How many passages a turn shows; how many of them the model reads is decided by its size."""


def best_passages(
    library: Library, question: str, document_ids: Sequence[str], limit: int = SHOWN
) -> tuple[Passage, ...]:
    """Up to `limit` passages of these documents, best first. Empty when no word of the question is found."""
    if not document_ids:
        return ()
    return tuple(
        Passage(hit.document_id, hit.document, hit.page, hit.label, hit.text, hit.score)
        for hit in library.search(question, document_ids, limit)
    )


def in_reading_order(passages: Sequence[Passage], document_ids: Sequence[str]) -> tuple[Passage, ...]:
    """The same passages in the order of the documents and their pages; passages of one page keep their order."""
    order = {document: number for number, document in enumerate(document_ids)}
    return tuple(sorted(passages, key=lambda p: (order.get(p.document_id, len(order)), p.page)))


def beginning(library: Library, documents: Sequence[Document]) -> tuple[Passage, ...]:
    """The first text of each document, for questions whose words stand nowhere in it ("what is this about?")."""
    passages = []
    for document in documents[:SHOWN]:
        row = next((row for row in library.pages(document.id) if row.text.strip()), None)
        if row is not None:
            text = row.text.strip()[:BEGINNING_CHARACTERS]
            passages.append(Passage(document.id, document.name, row.index, row.label, text, 0.0))
    return tuple(passages)
