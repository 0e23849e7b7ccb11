"""The list of conversations: by time, the open one marked, renaming and deleting in place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from ui.backend import ConversationLike
from ui.render.html import button, escape, hear, icon, one_line
from ui.strings import text


@dataclass(frozen=True, slots=True)
class Editing:
    """The one row that is being renamed or is asked about."""

    conversation_id: str = ""
    what: Literal["", "rename", "delete"] = ""


def time_group(updated: float, now: float) -> str:
    """today, yesterday, week or older, by calendar days where the user is."""
    then, today = time.localtime(updated), time.localtime(now)
    midnight = time.mktime((today.tm_year, today.tm_mon, today.tm_mday, 0, 0, 0, 0, 0, -1))
    if updated >= midnight or (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday):
        return "today"
    if updated >= midnight - 86400:
        return "yesterday"
    return "week" if updated >= midnight - 7 * 86400 else "older"


def title_of(conversation: ConversationLike) -> str:
    return conversation.title.strip() or text("side.untitled")


def render_sidebar(
    conversations: Sequence[ConversationLike],
    current: str,
    search: str = "",
    editing: Editing = Editing(),
    now: float | None = None,
) -> str:
    if not conversations:
        note = text("side.no_match", search=search) if search.strip() else text("side.empty")
        return one_line(f'<p class="ub-side-empty">{escape(note)}</p>')
    now = time.time() if now is None else now
    parts = [f'<nav class="ub-list">{hear(text("side.list"))}']
    for group, members in groupby(conversations, key=lambda c: "pinned" if c.pinned else time_group(c.updated, now)):
        rows = "".join(_row(c, current, editing) for c in members)
        parts.append(f'<h3 class="ub-group">{escape(text(f"group.{group}"))}</h3><ul class="ub-rows">{rows}</ul>')
    parts.append("</nav>")
    return one_line("".join(parts))


def _row(conversation: ConversationLike, current: str, editing: Editing) -> str:
    title = title_of(conversation)
    is_open = conversation.id == current
    classes = "ub-row ub-row-open" if is_open else "ub-row"
    if editing.conversation_id == conversation.id and editing.what == "rename":
        return f'<li class="{classes}">{_rename_row(conversation.id, title)}</li>'
    if editing.conversation_id == conversation.id and editing.what == "delete":
        return f'<li class="{classes} ub-row-asking">{_delete_row(conversation.id, title)}</li>'
    here = hear(text("side.current")) if is_open else ""
    return (
        f'<li class="{classes}"><button type="button" class="ub-act ub-row-title" name="open" '
        f'value="{escape(conversation.id)}" title="{escape(title)}">{escape(title)}{here}</button>'
        + button("rename-ask", conversation.id, text("side.rename", title=title), "ub-row-tool", icon("pencil"))
        + button("delete-ask", conversation.id, text("side.delete", title=title), "ub-row-tool", icon("bin"))
        + "</li>"
    )


def _rename_row(conversation_id: str, title: str) -> str:
    label = text("side.rename_label")
    return (
        f'<span class="ub-form" role="group"><input class="ub-input ub-focus" type="text" name="rename" '
        f'title="{escape(label)}" value="{escape(title)}" maxlength="200">'
        + button("rename", conversation_id, text("side.save"), "ub-row-tool ub-take-input", icon("check"))
        + button("edit-cancel", conversation_id, text("side.cancel"), "ub-row-tool ub-escape", icon("cross"))
        + "</span>"
    )


def _delete_row(conversation_id: str, title: str) -> str:
    return (
        f'<span class="ub-ask" role="group"><span class="ub-ask-text">{escape(text("side.delete_ask"))}</span>'
        + button(
            "delete", conversation_id, text("side.delete", title=title), "ub-danger", shown=text("side.delete_yes")
        )
        + button("edit-cancel", conversation_id, text("side.delete_no"), "ub-quiet ub-escape ub-focus")
        + "</span>"
    )
