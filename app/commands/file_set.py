"""Where the command line's questions live: one conversation per set of documents and reading mode, apart from the
user's own.

Each question is asked as if it were the first: earlier answers are marked as replaced, so they are no part of the
prompt. The conversation stays, because its frozen prompt parts and its KV snapshots are what makes the same files quick
the next time, on another day too. It carries a mark, so that lists of conversations can leave it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.hidden import HIDDEN, is_hidden
from app.turn import READ_BY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.wiring import App

MARK_VALUE = "command line"


def settle(app: App, new_id: str) -> str:
    """The conversation to ask in, given a new one that holds the documents: an earlier one of the same documents in
    the same order, read in the same mode, if there is one (the new one goes), else the new one, marked."""
    library = app.library
    documents = [document.id for document in library.documents(new_id)]
    earlier = _of_same_documents(app, documents, new_id)
    if earlier is not None:
        library.delete_conversation(new_id)
        return earlier
    library.freeze(new_id, HIDDEN, MARK_VALUE)
    return new_id


def start_over(app: App, conversation_id: str) -> None:
    """Takes earlier answers out of the next prompt; the text of them stays stored."""
    for message in app.library.messages(conversation_id):
        if message.role == "assistant" and not message.details.get("replaced"):
            app.library.update_message(message.id, replaced=MARK_VALUE)


def sweep(app: App) -> None:
    """Deletes the command line's conversations whose documents are gone."""
    for conversation in app.library.conversations():
        if not app.library.documents(conversation.id) and is_hidden(app, conversation.id):
            app.library.delete_conversation(conversation.id)


def _of_same_documents(app: App, documents: Sequence[str], new_id: str) -> str | None:
    library = app.library
    for candidate in library.conversations_using(documents[0]) if documents else ():
        same = [document.id for document in library.documents(candidate)] == list(documents)
        frozen = library.frozen(candidate)
        mine = frozen.get(HIDDEN) == MARK_VALUE and frozen.get(READ_BY, app.settings.mode) == app.settings.mode
        if candidate != new_id and same and mine:
            return candidate
    return None
