"""Which text of a conversation is no longer current, because a newer version of it stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.page_labels import EARLIER

__all__ = [
    "DELETED",
    "EARLIER",
    "MAP",
    "RENAMED",
    "UPDATE",
    "Chain",
    "chains",
    "superseded",
]

if TYPE_CHECKING:
    from storage import Document, FileRow, Library

DELETED, RENAMED = "deleted", "renamed"
"""What `skipped` says of a file in an update: it is gone, or it has another name now (its text stays where it was)."""
UPDATE, MAP = "update", "map"
"""Kinds of documents that the app makes itself: newer versions of a folder's files; a repository's signatures."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A folder or archive of a conversation with the updates that stand behind it, oldest first."""

    base: Document
    updates: tuple[Document, ...]

    def files(self, library: Library) -> dict[str, FileRow]:
        """What it holds now, by path, files that were left out included."""
        found = {row.path: row for row in library.files(self.base.id)}
        for update in self.updates:
            for row in library.files(update.id):
                if row.skipped in (DELETED, RENAMED):
                    found.pop(row.path, None)
                else:
                    found[row.path] = row
        return found


def chains(library: Library, conversation_id: str) -> list[Chain]:
    """The folders and archives of a conversation, in their order."""
    attached = {document.id: document for document in library.documents(conversation_id)}
    updates: dict[str, list[Document]] = {}
    for version in library.versions(conversation_id):
        if version.state == "updated" and version.newer_id in attached:
            updates.setdefault(version.document_id, []).append(attached[version.newer_id])
    return [
        Chain(document, tuple(updates.get(document.id, ())))
        for document in attached.values()
        if document.kind not in (UPDATE, MAP) and library.files(document.id)
    ]


def superseded(library: Library, conversation_id: str) -> dict[str, frozenset[int]]:
    """Pages by document that a newer version replaces: they are not searched, and cited only as an earlier version."""
    if not any(version.state == "updated" for version in library.versions(conversation_id)):
        return {}
    return {
        document_id: pages
        for chain in chains(library, conversation_id)
        for document_id, pages in _superseded(library, [chain.base, *chain.updates]).items()
        if pages
    }


def _superseded(library: Library, documents: Sequence[Document]) -> dict[str, frozenset[int]]:
    newer: set[str] = set()
    found: dict[str, frozenset[int]] = {}
    for document in reversed(documents):
        files = library.files(document.id)
        found[document.id] = frozenset(page for row in files if row.path in newer for page in row.page_range)
        newer |= {row.path for row in files if row.pages or row.skipped == DELETED}
    return found
