"""What stands between documents and the first question: what reading takes, what fits, and what a person chooses.

`Plans` is what the page needs of the app for it. Events come from app.js's sister chooser.js through a box of their own
(`act`), so that a running answer goes on being shown. Everything that comes back from the browser is untrusted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Protocol

from app.before_reading import ReadingPlan
from app.changes import Changes
from app.errors import as_app_error
from ui.render.chooser import render_chooser, render_plan
from ui.render.html import error_card, one_line

log = logging.getLogger(__name__)
MOST_RANGES = 200_000
"""Characters of a choice that the browser may send."""


class Plans(Protocol):
    """Any thread may call. Ids come from the browser: an unknown one gives None, or an AppError where it acts."""

    def plan(self, conversation_id: str, question: str = "", *, suggest: bool = False) -> ReadingPlan | None:
        """None without documents and while their tokens are being counted."""
        ...

    def changes(self, conversation_id: str) -> Sequence[Changes]:
        """Folders that changed, as far as that is known; never waits."""
        ...

    def look(self, conversation_id: str) -> None:
        """Begins to look at the folders of a conversation that is shown, unless that was done just now."""
        ...

    def looking(self, conversation_id: str) -> bool:
        """Whether `changes` will be known soon."""
        ...

    def choose(self, conversation_id: str, ranges: dict[str, str]) -> None:
        """Page ranges by document id, "none" for nothing of it; a document without an entry is read in full."""
        ...

    def choose_suggested(self, conversation_id: str, kind: str, question: str) -> None: ...
    def choose_map(self, conversation_id: str, document_id: str) -> None: ...
    def take_changes(self, conversation_id: str, document_id: str, way: str) -> None: ...
    def leave_changes(self, conversation_id: str, document_id: str) -> None: ...


def act(plans: Plans | None, conversation_id: str, message: str) -> tuple[str, str]:
    """(panel, plan) after a button or box of the chooser: action, value and typed text, as JSON."""
    if plans is None or not conversation_id:
        return one_line(""), one_line("")
    action, value, typed = _parse(message)
    try:
        panel = _act(plans, conversation_id, action, value, typed)
    except Exception as error:
        shown = as_app_error(error)
        if shown is not error:
            log.exception("A choice could not be made")
        panel = one_line(error_card(shown.message, shown.hint))
    return panel, show_plan(plans, conversation_id)


def show_plan(plans: Plans | None, conversation_id: str) -> str:
    if plans is None or not conversation_id:
        return one_line("")
    return render_plan(plans.plan(conversation_id), plans.changes(conversation_id))


def _act(plans: Plans, conversation_id: str, action: str, value: str, typed: str) -> str:
    match action:
        case "choose-open":
            plan = plans.plan(conversation_id, typed, suggest=True)
            return render_chooser(plan) if plan is not None else one_line("")
        case "choose-suggested":
            plans.choose_suggested(conversation_id, value, typed)
        case "choose-map":
            plans.choose_map(conversation_id, value)
        case "choose-these":
            plans.choose(conversation_id, _ranges(typed))
        case "choose-all":
            plans.choose(conversation_id, {})
        case "changes-append" | "changes-again":
            plans.take_changes(conversation_id, value, action.removeprefix("changes-"))
        case "changes-leave":
            plans.leave_changes(conversation_id, value)
    return one_line("")


def _ranges(typed: str) -> dict[str, str]:
    if len(typed) > MOST_RANGES:
        raise ValueError("typed: got a choice that is too long")
    sent = json.loads(typed)
    return {str(document): str(ranges) for document, ranges in sent.items()}


def _parse(message: str) -> tuple[str, str, str]:
    try:
        sent = json.loads(message)
    except ValueError:
        return "", "", ""
    if not isinstance(sent, dict):
        return "", "", ""
    return str(sent.get("action", "")), str(sent.get("value", "")), str(sent.get("typed", ""))
