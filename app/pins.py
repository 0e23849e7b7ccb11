"""Pinned documents: what the conversations that read them have stored is never evicted.

The pin stands beside the snapshots and goes with that file, which holds nothing else worth keeping. Conversations are
pinned, since a document's KV is part of theirs; one that reads a pinned document later is pinned when it is stored.
Deleting a document or its conversations deletes the KV and the pin.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.wiring import App
    from storage import Document, Library, SnapshotStore

log = logging.getLogger(__name__)

_DOCUMENT = "document:"


def set_pin(app: App, document: Document, pinned: bool) -> None:
    """Pins a document, or lets go of it. Errors: StorageError."""
    app.snapshots.pin(_DOCUMENT + document.id, pinned)
    for conversation in app.library.conversations_using(document.id):
        follow(app.library, app.snapshots, conversation)


def pinned_documents(app: App) -> list[Document]:
    pins = app.snapshots.pinned()
    return [document for document in app.library.documents() if _DOCUMENT + document.id in pins]


def follow(library: Library, snapshots: SnapshotStore, conversation_id: str) -> None:
    """Pins a conversation if one of its documents is pinned, else lets go of it."""
    pins = snapshots.pinned()
    wanted = any(_DOCUMENT + document.id in pins for document in library.documents(conversation_id))
    if wanted != (conversation_id in pins):
        snapshots.pin(conversation_id, wanted)


def sweep(library: Library, snapshots: SnapshotStore) -> None:
    """Deletes KV and pins of conversations and documents that are gone: an app that was killed may have stored some
    after it had deleted the rest."""
    owners = snapshots.owner_names()  # before the conversations: one that is new by then is no owner yet
    known = {conversation.id for conversation in library.conversations()}
    known |= {_DOCUMENT + document.id for document in library.documents()}
    for owner in sorted(owners - known):
        log.warning("KV of %s, which is gone, is deleted", owner)
        snapshots.forget(owner)
