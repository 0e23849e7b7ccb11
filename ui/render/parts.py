"""A document that is read in parts: what is being read now, what was found where, and how much is covered."""

from __future__ import annotations

from app.pages import format_pages
from app.parts.state import PartsState, PartState
from app.turn import TurnState
from ui.render.html import duration, escape, hear, icon, shorten
from ui.strings import count, text

QUOTE_LENGTH = 300
NAME_LENGTH = 40


def render_parts_progress(state: TurnState, parts: PartsState) -> str:
    """The bar while windows are asked, or while findings are put together, with what was found so far under it."""
    cover = parts.coverage
    current = parts.current
    if parts.level or current is None:
        share = 100 if not state.read_total or parts.level else 100 * state.read_done // state.read_total
        name, facts = text("parts.joining"), []
        if state.phase == "reading" and state.read_total:
            share = min(100, 100 * state.read_done // state.read_total)
    else:
        share = min(100, 100 * state.read_done // state.read_total) if state.read_total else 0
        name = text("parts.now", number=current.number, total=len(parts.parts), pages=_pages(current))
        facts = [shorten(current.document, NAME_LENGTH)] if _several(parts) else []
    facts.append(text("parts.covered", done=f"{cover.pages_read:,}", total=f"{cover.pages:,}"))
    found = sum(part.found for part in parts.parts)
    if found:
        facts.append(count("parts.found", found))
    if state.eta_s is not None:
        facts.append(text("turn.eta", duration=duration(state.eta_s)))
    return (
        f'<div class="ub-progress ub-parts-now"><span class="ub-progress-name">{icon("spin")}{escape(name)}</span>'
        f'<span class="ub-bar"><span class="ub-bar-fill" style="width:{share}%"></span></span>'
        f'<span class="ub-progress-facts">{escape(" · ".join(facts))}</span></div>{render_parts(parts, running=True)}'
    )


def render_parts(parts: PartsState, *, running: bool = False) -> str:
    """Coverage in one line with a strip of the parts, and, unfolded, what each part gave."""
    if not parts.parts:
        return ""
    cover = parts.coverage
    key = "parts.running" if running else "parts.read" if len(parts.parts) > 1 else "parts.read_one"
    facts = [text(key, parts=len(parts.parts), done=f"{cover.pages_read:,}", total=f"{cover.pages:,}")]
    if cover.without_text:
        facts.append(count("parts.blank", cover.without_text))
    found = [part for part in parts.parts if part.found]
    if not running:
        facts.append(count("parts.found", len(found)) if found else text("parts.none"))
    several = _several(parts)
    rows = "".join(_part(part, several) for part in found)
    return (
        f'<details class="ub-parts"><summary><span class="ub-parts-facts">{escape(" · ".join(facts))}</span>'
        f"{_strip(parts)}</summary>"
        f'<ol class="ub-parts-list">{rows}</ol></details>'
    )


def _strip(parts: PartsState) -> str:
    """One cell for each part: read with something found, read, or not read yet."""
    cells = "".join(
        f'<span class="ub-cell ub-cell-{_look(part)}" title="{escape(_cell_title(part))}"></span>'
        for part in parts.parts
    )
    return f'<span class="ub-cells">{hear(text("parts.strip"))}{cells}</span>'


def _look(part: PartState) -> str:
    if part.state == "asking":
        return "now"
    return ("found" if part.found else "read") if part.read else "left"


def _cell_title(part: PartState) -> str:
    look = text(f"parts.cell.{_look(part)}")
    return f"{shorten(part.document, NAME_LENGTH)}, {_pages(part)}: {look}"


def _part(part: PartState, several: bool) -> str:
    name = f"{shorten(part.document, NAME_LENGTH)}, " if several else ""
    where = f"{name}{_pages(part)}"
    quotes = "".join(
        f'<li><span class="ub-page">{escape(text("turn.page", page=quote.page))}</span> '
        f"{escape(shorten(quote.quote, QUOTE_LENGTH))}</li>"
        for quote in part.quotes
    )
    wrote = f'<p class="ub-part-text">{escape(part.text.strip())}</p>' if part.text else ""
    return f'<li><span class="ub-part-name">{escape(where)}</span>{wrote}<ul>{quotes}</ul></li>'


def _pages(part: PartState) -> str:
    if len(part.pages) == 1:
        return text("parts.page", page=part.pages[0])
    return text("parts.pages", pages=format_pages(part.pages).replace("-", "–"))


def _several(parts: PartsState) -> bool:
    return len({part.document_id for part in parts.parts}) > 1
