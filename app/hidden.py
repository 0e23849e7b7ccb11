"""The mark that keeps a conversation out of lists: the command line asks in conversations of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.wiring import App

HIDDEN = "hidden"
"""Key of the frozen value that keeps a conversation out of lists; its value says why."""


def is_hidden(app: App, conversation_id: str) -> bool:
    """Whether a conversation belongs to the command line rather than to the user's list."""
    return HIDDEN in app.library.frozen(conversation_id)
