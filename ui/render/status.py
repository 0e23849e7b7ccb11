"""The line at the bottom (model, profile, what the last answer cost) and the bar at the top."""

from __future__ import annotations

from collections.abc import Sequence

from ui.backend import FitView, MessageLike, ModelView
from ui.render.documents import render_meter
from ui.render.html import button, escape, icon, number, one_line
from ui.strings import text
from ui.views import StatsView, answer_of_message


def last_stats(messages: Sequence[MessageLike]) -> StatsView | None:
    for message in reversed(messages):
        if message.role == "assistant":
            return answer_of_message(message).stats
    return None


def render_status(model: ModelView | None, fit: FitView | None, stats: StatsView | None) -> str:
    facts: list[str] = []
    if model is not None:
        facts += [model.label, text("status.profile", profile=model.profile)]
    if stats is not None:
        facts.append(text("status.reused", reused=number(stats.reused_tokens), total=number(stats.prompt_tokens)))
        if stats.restored_tokens > 0:
            facts.append(text("status.restored", tokens=number(stats.restored_tokens)))
        if stats.computed_tokens > 0:
            facts.append(text("status.computed", tokens=number(stats.computed_tokens)))
        facts.append(text("status.ttft", seconds=f"{stats.ttft_s:.1f}"))
        if stats.tpot_ms > 0:
            facts.append(text("status.speed", speed=f"{1000 / stats.tpot_ms:.0f}"))
    shown = "".join(f'<span class="ub-fact">{escape(fact)}</span>' for fact in facts)
    return one_line(f'<div class="ub-status"><span class="ub-facts">{shown}</span>{render_meter(fit)}</div>')


def _exports(conversation_id: str) -> str:
    """A small menu of the files that a conversation can be saved as; app.js fetches them."""
    if not conversation_id:
        return ""
    rows = "".join(
        button("export", f"{conversation_id}.{ending}", text(f"export.{ending}"), "ub-export-as")
        for ending in ("md", "json", "docx")
    )
    return (
        f'<details class="ub-exports"><summary class="ub-act">{escape(text("export.title"))}</summary>'
        f'<div class="ub-export-menu">{rows}</div></details>'
    )


def render_top(title: str, conversation_id: str, model: ModelView | None) -> str:
    """The element #ub-here tells app.js which conversation the address should name."""
    demo = f'<span class="ub-demo">{escape(text("status.demo"))}</span>' if model and model.demo else ""
    return one_line(
        f'<header class="ub-top">{button("menu", "", text("side.open_menu"), "ub-menu", icon("menu"))}'
        f'<h2 class="ub-title" title="{escape(title)}">{escape(title)}</h2>{_exports(conversation_id)}{demo}'
        f'<span id="ub-here" class="ub-hear" title="{escape(conversation_id)}"></span></header>'
    )
