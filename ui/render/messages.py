"""Questions and answers: passages first, then the text, then where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from app.turn import TurnState
from app.viewer import Place
from ui.backend import MessageLike, Sample
from ui.render.citations import chips_by_place, render_sources
from ui.render.evidence import marks_of, render_evidence
from ui.render.html import button, duration, error_card, escape, hear, icon, number, one_line, shorten
from ui.render.markdown import render_markdown
from ui.render.parts import render_parts, render_parts_progress
from ui.render.places import page_name
from ui.render.table import render_table, render_table_progress
from ui.render.viewer import look_value
from ui.strings import count, text
from ui.views import AnswerView, ErrorView, PassageView, answer_of_message, answer_of_state

SHOWN_PASSAGES = 3


def render_history(messages: Sequence[MessageLike], running_message_id: str = "") -> str:
    """All messages but the answer that is still being written, which `render_live` shows."""
    shown = [m for m in messages if m.id != running_message_id]
    last_answer = next((m.id for m in reversed(shown) if m.role == "assistant"), "")
    parts = [_message(m, newest=m.id == last_answer and not running_message_id) for m in shown]
    return one_line(
        f'<div class="ub-log" role="log" tabindex="0">{hear(text("turn.log"))}{"".join(parts)}</div>' if parts else ""
    )


def render_live(state: TurnState | None) -> str:
    """The answer that is being written."""
    if state is None:
        return one_line("")
    view = answer_of_state(state)
    inside = f"{_passages(view, is_open=True)}{_progress(state)}{_body(view, newest=True)}"
    return one_line(f'<article class="ub-message ub-answer ub-live">{hear(text("turn.app"))}{inside}</article>')


def _suggestions(action: str, questions: Sequence[str]) -> str:
    rows = "".join(button(action, question, question, "ub-suggestion") for question in questions)
    return f'<div class="ub-suggestions">{rows}</div>'


def render_empty(sample: Sample | None, state: Literal["new", "reading", "ready"]) -> str:
    """A conversation without messages: what this is and a first step, or what to do with its documents."""
    parts = []
    if state == "new":
        parts.append(f'<h1 class="ub-empty-title">{escape(text("empty.title"))}</h1>')
        parts.append(f'<p class="ub-empty-lead">{escape(text("empty.lead"))}</p>')
        if sample is not None:
            parts.append(button("sample", "", text("empty.sample"), "ub-primary"))
            parts.append(f'<p class="ub-empty-small">{escape(text("empty.sample_lead"))}</p>')
            parts.append(_suggestions("sample", sample.questions))
    else:
        parts.append(f'<p class="ub-empty-lead">{escape(text(f"empty.{state}"))}</p>')
        if state == "ready" and sample is not None:
            parts.append(_suggestions("suggest", sample.questions))
    return one_line(f'<section class="ub-empty">{"".join(parts)}</section>')


def _message(message: MessageLike, newest: bool) -> str:
    if message.role == "user":
        return (
            f'<article class="ub-message ub-question">{hear(text("turn.you"))}'
            f'<div class="ub-bubble">{escape(message.text)}</div></article>'
        )
    view = answer_of_message(message)
    inside = f"{_passages(view, is_open=newest)}{_body(view, newest)}"
    return f'<article class="ub-message ub-answer">{hear(text("turn.app"))}{inside}</article>'


def _body(view: AnswerView, newest: bool) -> str:
    parts = []
    if view.thinking:
        parts.append(
            f'<details class="ub-thinking"><summary>{escape(text("turn.thinking"))}</summary>'
            f"<div>{escape(view.thinking)}</div></details>"
        )
    if view.table is not None:
        parts.append(render_table(view.table, view.message_id))
    elif view.text:
        marks = marks_of(view.evidence) if newest else ()
        parts.append(f'<div class="ub-text">{render_markdown(view.text, marks, chips_by_place(view.citations))}</div>')
    notes = list(view.warnings)
    if view.state == "stopped":
        notes.append(text("turn.stopped"))
    if view.state in ("interrupted", "streaming") and not newest:
        notes.append(text("turn.interrupted"))
    if view.stats is not None and view.stats.finish_reason == "length":
        notes.append(text("turn.cut"))
    parts.extend(f'<p class="ub-note">{escape(note)}</p>' for note in notes)
    if view.parts is not None and view.state != "streaming":
        parts.append(render_parts(view.parts))
    parts.append(render_sources(view.citations))
    parts.append(render_evidence(view.evidence, newest))
    if view.error is not None:
        parts.append(_error(view.error, newest))
    if newest and view.state != "streaming" and view.table is None:
        parts.append(_tools(view))
    return "".join(parts)


def _tools(view: AnswerView) -> str:
    """What can be done with the newest answer."""
    tools = []
    if view.text:
        tools.append(button("copy", "", text("turn.copy"), "ub-tool"))
    if view.reading == "passages":
        tools.append(button("retry-whole", "", text("turn.whole"), "ub-tool"))
        tools.append(button("retry-parts", "", text("turn.parts"), "ub-tool"))
    if view.error is None or not view.error.does_not_fit:
        tools.append(button("retry-same", view.reading, text("turn.again"), "ub-tool"))
    return f'<div class="ub-tools">{"".join(tools)}</div>'


def _passages(view: AnswerView, is_open: bool) -> str:
    """Best passages; for a task about the whole text its key sentences, all of them in order."""
    passages = view.passages
    if not passages:
        return ""
    if view.task != "question":
        rows = "".join(map(_passage, passages))
        return (
            f'<details class="ub-passages"{" open" if is_open else ""}>'
            f"<summary>{escape(text('turn.key_sentences'))}</summary>"
            f'<ol class="ub-passage-list ub-key-sentences">{rows}</ol></details>'
        )
    first = "".join(map(_passage, passages[:SHOWN_PASSAGES]))
    rest = passages[SHOWN_PASSAGES:]
    more = ""
    if rest:
        more = (
            f'<details class="ub-more"><summary>{escape(text("turn.passages.more", count=len(rest)))}</summary>'
            f'<ol class="ub-passage-list">{"".join(map(_passage, rest))}</ol></details>'
        )
    return (
        f'<details class="ub-passages"{" open" if is_open else ""}>'
        f"<summary>{escape(count('turn.passages', len(passages)))}</summary>"
        f'<ol class="ub-passage-list">{first}</ol>{more}</details>'
    )


def _passage(passage: PassageView) -> str:
    head = (
        f'<span class="ub-passage-head"><span class="ub-page">{escape(page_name(passage.page, passage.label))}</span>'
        f'<span class="ub-passage-doc">{escape(shorten(passage.document, 60))}</span></span>'
        f'<span class="ub-passage-snippet">{escape(shorten(passage.text, 220))}</span>'
    )
    full = f'<p class="ub-passage-full">{escape(passage.text.strip())}</p>'
    if not passage.document_id:
        return f'<li><details class="ub-passage"><summary>{head}</summary>{full}</details></li>'
    value = escape(look_value(Place(passage.document_id, passage.page, passage.text)))
    return (
        f'<li class="ub-passage"><button type="button" class="ub-act ub-passage-open" name="look" value="{value}" '
        f'title="{escape(text("turn.passage_open"))}">{head}</button>'
        f'<details class="ub-passage-more"><summary>{escape(text("turn.passage_text"))}</summary>{full}</details></li>'
    )


def _error(error: ErrorView, newest: bool) -> str:
    if not error.does_not_fit:
        return error_card(error.message, error.hint)
    more = ""
    if newest:
        more = (
            '<div class="ub-choices">'
            + button("retry-parts", "", text("fit.parts"), "ub-primary")
            + button("retry-passages", "", text("fit.passages"), "ub-quiet")
            + button("choose-open", "", text("plan.choose"), "ub-quiet")
            + '<span class="ub-form" role="group"><input class="ub-input" type="text" name="pages" '
            f'title="{escape(text("fit.pages"))}" '
            f'placeholder="{escape(text("fit.pages_placeholder"))}">'
            + button("retry-pages", "", text("fit.read_pages"), "ub-quiet ub-take-input")
            + "</span></div>"
        )
    return error_card(error.message, error.hint, more)


def _progress(state: TurnState) -> str:
    """What the engine is doing until the first words come."""
    if state.table is not None and state.table.current and not state.finished:
        return render_table_progress(state, state.table, _turn_progress(replace(state, table=None)))
    return _turn_progress(state)


def _turn_progress(state: TurnState) -> str:
    if state.parts is not None and state.phase in ("reading", "answering") and not state.answer:
        return render_parts_progress(state, state.parts)
    if state.finished or state.phase == "answering":
        return "" if state.answer or state.thinking or state.finished else _busy(text("turn.answering"))
    if state.phase == "queued":
        return _busy(text("turn.queued_behind", count=state.position) if state.position else text("turn.queued"))
    name = text("turn.loading") if state.phase == "loading" else text("turn.reading")
    if not state.read_total:
        return _busy(name)
    share = min(100, int(100 * state.read_done / state.read_total))
    facts = [f"{share} %"]
    if state.phase == "reading":
        facts.append(text("turn.reading_count", done=number(state.read_done), total=number(state.read_total)))
    if state.eta_s is not None:
        facts.append(text("turn.eta", duration=duration(state.eta_s)))
    return (
        f'<div class="ub-progress"><span class="ub-progress-name">{icon("spin")}{escape(name)}</span>'
        f'<span class="ub-bar"><span class="ub-bar-fill" style="width:{share}%"></span></span>'
        f'<span class="ub-progress-facts">{escape(" · ".join(facts))}</span></div>'
    )


def _busy(what: str) -> str:
    return f'<div class="ub-progress"><span class="ub-progress-name">{icon("spin")}{escape(what)}</span></div>'
