"""The viewer beside the chat: one page of a document with what is cited marked, and the buttons that open it."""

from __future__ import annotations

import json

from app.citations.citation import line_label
from app.page_labels import file_page
from app.viewer import WIDTHS, Line, PageText, PageView, Place
from ui.render.html import button, escape, hear, icon, one_line
from ui.strings import text

LONGEST_QUOTE = 400
"""Characters of a quote that a button carries; of a longer one its beginning and end, which mark all of it."""


def look_value(place: Place, zoom: int = 0, as_text: bool = False) -> str:
    """What a button of the name "look" carries: where to look and how, as JSON."""
    quote = place.quote
    if len(quote) > LONGEST_QUOTE:
        half = LONGEST_QUOTE // 2
        quote = (
            f"{quote[:half].rpartition(' ')[0] or quote[:half]} … {quote[-half:].partition(' ')[2] or quote[-half:]}"
        )
    return json.dumps(
        [place.document_id, place.page, quote, place.first_line, place.last_line, zoom, int(as_text)],
        ensure_ascii=False,
    )


def read_look(value: str) -> tuple[Place, int, bool] | None:
    """The same, read back; None for anything that no button of ours carries. It comes from the browser: untrusted."""
    try:
        document, page, quote, first, last, zoom, as_text = json.loads(value)
        place = Place(str(document), int(page), str(quote), int(first), int(last))
        return place, min(max(int(zoom), 0), len(WIDTHS) - 1), bool(as_text)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def look_button(document_id: str, page: int, label: str, quote: str = "", classes: str = "", shown: str = "") -> str:
    """A button that opens the viewer at a page. label: what it does, in words; shown: what is seen, if not that."""
    return button("look", look_value(Place(document_id, page, quote)), label, classes, shown=shown)


def render_viewer(view: PageView, zoom: int, as_text: bool) -> str:
    """One page. The title of `.ub-view` changes with what is shown, so that app.js moves to the mark once."""
    body = _picture(view, zoom) if view.picture else _text(view.text) if view.text else ""
    shown = look_value(view.place, zoom, as_text)
    return one_line(
        f'<section class="ub-view" id="ub-view" role="region" tabindex="0" title="{escape(view.document)}">'
        f'<span class="ub-view-what ub-hear">{escape(shown)}</span>{_head(view)}'
        f"{_bar(view, zoom, as_text)}{_notes(view)}"
        f'<div class="ub-view-body" tabindex="0">{body}</div></section>'
    )


def render_no_view(message: str, hint: str) -> str:
    """In place of a page that cannot be shown."""
    return one_line(
        f'<section class="ub-view" id="ub-view" role="region" tabindex="0"><div class="ub-view-head">{_close()}</div>'
        f'<p class="ub-view-note" role="alert">{escape(message)} {escape(hint)}</p></section>'
    )


def place_name(view: PageView) -> str:
    """page 4 of 12 (iv), docs/manual.pdf, page 3 of 8, or the file and its lines."""
    if view.file:
        inside = text("view.file_page", path=view.file, page=view.file_page, pages=view.file_pages)
        named = file_page(view.label)
        return text("view.labelled", page=inside, label=named.printed) if named and named.printed else inside
    number = text("view.page", page=view.place.page, pages=view.pages)
    lines = line_label(view.label)
    if lines:
        where = text("view.lines", first=lines.first, last=lines.last)
        return f"{lines.path}, {where}" if lines.path else where
    if view.label and view.label != str(view.place.page):
        return text("view.labelled", page=number, label=view.label)
    return number


def _close() -> str:
    return button("look-close", "", text("view.close"), "ub-view-tool ub-view-close", icon("cross"))


def _head(view: PageView) -> str:
    name = escape(view.document)
    return f'<div class="ub-view-head"><h2 class="ub-view-title" title="{name}">{name}</h2>{_close()}</div>'


def _bar(view: PageView, zoom: int, as_text: bool) -> str:
    """Previous and next page, the page's number, zoom, and the choice between picture and text."""
    place = view.place

    def turn(page: int, name: str, label: str) -> str:
        classes = f"ub-view-tool ub-view-{name}"
        if not 1 <= page <= view.pages:
            return f'<span class="{classes} ub-off">{icon(name)}</span>'
        goal = Place(place.document_id, page, place.quote, place.first_line, place.last_line)
        return button("look", look_value(goal, zoom, as_text), label, classes, icon(name))

    def size(level: int, name: str, label: str) -> str:
        classes = "ub-view-tool"
        if not 0 <= level < len(WIDTHS):
            return f'<span class="{classes} ub-off">{icon(name)}</span>'
        return button("look", look_value(place, level, as_text), label, classes, icon(name))

    parts = [
        turn(place.page - 1, "previous", text("view.previous")),
        f'<span class="ub-view-page" role="status">{escape(place_name(view))}</span>',
        turn(place.page + 1, "next", text("view.next")),
        '<span class="ub-view-gap"></span>',
    ]
    if view.picture:
        parts += [size(zoom - 1, "minus", text("view.smaller")), size(zoom + 1, "plus", text("view.larger"))]
    if view.drawable and not view.problem:
        other = text("view.as_text") if view.picture else text("view.as_picture")
        parts.append(button("look", look_value(place, zoom, not as_text), other, "ub-view-mode"))
    return f'<div class="ub-view-bar">{"".join(parts)}</div>'


def _notes(view: PageView) -> str:
    notes = [view.problem] if view.problem else []
    if view.scanned:
        notes.append(text("view.scanned"))
    if view.recognised and view.picture:
        notes.append(text("view.recognised"))
    if view.recognised and view.picture and not view.placed:
        notes.append(text("view.not_placed"))
    elif view.found is False:
        notes.append(text("view.not_found"))
    elif view.found:
        notes.append(text("view.found"))
    if view.text and view.text.left_out:
        notes.append(text("view.left_out", count=view.text.left_out))
    return "".join(f'<p class="ub-view-note">{escape(note)}</p>' for note in notes)


def _picture(view: PageView, zoom: int) -> str:
    width, height = view.picture or (1, 1)
    share = round(100 * WIDTHS[zoom] / WIDTHS[0])
    source = f"/page/{view.place.document_id}/{view.place.page}-{zoom}.png"
    boxes = "".join(
        f'<span class="ub-box" style="left:{100 * left:.2f}%;top:{100 * top:.2f}%;width:{100 * (right - left):.2f}%;'
        f'height:{100 * (bottom - top):.2f}%"></span>'
        for left, top, right, bottom in view.boxes
    )
    page, name = (view.file_page, view.file) if view.file else (view.place.page, view.document)
    alternative = text("view.picture", page=page, document=name)
    return (
        f'<div class="ub-sheet" style="width:{share}%;aspect-ratio:{width}/{height}">'
        f'<img class="ub-sheet-picture" src="{escape(source)}" width="{width}" height="{height}" '
        f'alt="{escape(alternative)}">'
        f"{boxes}</div>"
    )


def _text(page: PageText) -> str:
    """Lines with their numbers, or running text."""
    if not any(line.text.strip() for line in page.lines):
        return f'<p class="ub-view-note">{escape(text("view.empty"))}</p>'
    numbered = any(line.number for line in page.lines)
    rows = "".join(_line(line, numbered) for line in page.lines)
    return f'<div class="{"ub-lines" if numbered else "ub-prose"}">{rows}</div>'


def _line(line: Line, numbered: bool) -> str:
    parts, at = [], 0
    for start, end in line.marks:
        parts.append(escape(line.text[at:start]))
        parts.append(f'<span class="ub-mark">{escape(line.text[start:end])}</span>')
        at = end
    parts.append(escape(line.text[at:]))
    cited = " ub-line-cited" if line.marks else ""
    spoken = hear(text("view.cited")) if line.marks and numbered else ""
    number = f'<span class="ub-line-number">{line.number}{spoken}</span>' if numbered else ""
    return f'<div class="ub-line{cited}">{number}<span class="ub-line-text">{"".join(parts) or "&#8203;"}</span></div>'
