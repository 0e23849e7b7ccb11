"""Windows that earlier tries at the same question have read: they are not asked again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.parts.state import PartState, parts_from
from app.tasks import Task

if TYPE_CHECKING:
    from storage import Message

VERSION = "1"
"""Of the way windows are asked; with another one earlier answers do not count."""


def question_key(question: str, task: Task, model: str) -> str:
    """The same for the same question, however it is spaced, of the same kind and to the same model."""
    parts = (VERSION, task, model, " ".join(question.split()))
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:24]


def read_before(messages: Sequence[Message], key: str) -> dict[str, PartState]:
    """By the windows' keys; the newest answer wins."""
    known: dict[str, PartState] = {}
    for message in messages:
        if message.details.get("parts_key") == key:
            stored = parts_from(message.details)
            known.update({part.key: part for part in stored.parts if part.read} if stored else {})
    return known
