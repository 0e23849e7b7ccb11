"""Where the questions of a table are asked: a hidden conversation beside the visible one, with the same documents.

Each question is asked there as if it were the first, while what was read of the documents stays in its KV. It goes when
the visible conversation goes or its documents change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.hidden import HIDDEN

if TYPE_CHECKING:
    from app.wiring import App


def _mark(conversation_id: str) -> str:
    return f"questions of {conversation_id}"


def place(app: App, conversation_id: str) -> str:
    """The hidden conversation with this one's documents in their order, made if need be; what is replaced or not chosen
    here is so there too."""
    library = app.library
    documents = [document.id for document in library.documents(conversation_id)]
    for known in _places(app, conversation_id):
        if [document.id for document in library.documents(known)] == documents:
            hidden = known
            break
    else:
        drop(app, conversation_id)
        hidden = library.create_conversation("Questions in a table").id
        library.freeze(hidden, HIDDEN, _mark(conversation_id))
        for document in documents:
            library.attach(hidden, document)
    for version in library.versions(conversation_id):
        if version.state == "updated":
            library.set_version(hidden, version)
    library.set_choice(hidden, library.choice(conversation_id))
    return hidden


def drop(app: App, conversation_id: str) -> None:
    """Deletes the hidden conversation with its KV; nothing happens where there is none."""
    from app import conversations

    for known in _places(app, conversation_id):
        conversations.forget_kv(app, known)
        app.library.delete_conversation(known)


def _places(app: App, conversation_id: str) -> list[str]:
    mark = _mark(conversation_id)
    return [c.id for c in app.library.conversations() if app.library.frozen(c.id).get(HIDDEN) == mark]
