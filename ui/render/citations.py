"""Citations as a person sees them: a chip at each sentence that rests on one, and the list of sources under the answer.

A chip says its number, document and page, and by a word and a symbol how far it was checked; colour only repeats that.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.citation_report import NO_PAGE, SYMBOLS
from app.page_labels import file_page
from app.viewer import Place
from ui.render.html import escape, hear, shorten
from ui.render.places import page_name, pages_name, short_page_name
from ui.render.viewer import look_value
from ui.strings import text
from ui.views import CitationView

QUOTE_LENGTH = 400
STATUSES = tuple(SYMBOLS)


def chips_by_place(citations: Sequence[CitationView]) -> list[tuple[int, str]]:
    """(offset in the answer, chips that stand there), ascending. Numbers are those of the list of sources."""
    several = len({citation.document for citation in citations if citation.document}) > 1
    chips: dict[int, list[str]] = {}
    for number, citation in enumerate(citations, 1):
        for place in citation.places:
            chips.setdefault(place, []).append(_chip(citation, number, several))
    return [(place, f'<span class="ub-chips">{"".join(chips[place])}</span>') for place in sorted(chips)]


def render_sources(citations: Sequence[CitationView]) -> str:
    """All citations in order, each with what was checked."""
    if not citations:
        return ""
    rows = "".join(_source(citation, number) for number, citation in enumerate(citations, 1))
    own = [citation for citation in citations if citation.status == "attributed" and not citation.named]
    how = f'<span class="ub-sources-how">{escape(text("turn.attributed"))}</span>' if len(own) == len(citations) else ""
    return (
        f'<div class="ub-sources"><span class="ub-sources-name">{escape(text("turn.sources"))}</span>{how}'
        f'<ol class="ub-source-list">{rows}</ol></div>'
    )


def where(citation: CitationView, short: bool = False) -> str:
    """page 12, pages 12-13, page 12 (printed xii), tide.py:44-47, docs/manual.pdf, page 3, or "no page"."""
    if not citation.page:
        return NO_PAGE
    if citation.first_line:
        path = citation.label.rpartition(":")[0] or citation.document
        lines = f"{citation.first_line}"
        if citation.last_line > citation.first_line:
            lines += f"-{citation.last_line}"
        return f"{path.rpartition('/')[2] if short else path}:{lines}"
    if citation.last_page:
        return pages_name(citation.page, citation.last_page, citation.label, short)
    return (short_page_name if short else page_name)(citation.page, citation.label)


def _full_place(citation: CitationView) -> str:
    """Document and place; a line of a file already names the file."""
    named = where(citation)
    if not citation.document or named.startswith(f"{citation.document}:"):
        return named
    return f"{shorten(citation.document, 60)}, {named}"


def _status(citation: CitationView) -> str:
    return citation.status if citation.status in STATUSES else "attributed"


def _words(citation: CitationView) -> str:
    """How far it was checked, in words, with the page that the answer named instead."""
    status = _status(citation)
    key = "turn.status.named" if status == "attributed" and citation.named else f"turn.status.{status}"
    words = text(key)
    if citation.said and citation.page:
        return text("turn.said", status=words, said=citation.said, stands=where(citation, short=True))
    if citation.said:
        return text("turn.said_nowhere", status=words, said=citation.said)
    return words


def _chip(citation: CitationView, number: int, several: bool) -> str:
    status = _status(citation)
    named = citation.first_line or file_page(citation.label)  # the place itself names the file
    name = f"{shorten(citation.document.rpartition('/')[2], 24)}, " if several and not named else ""
    moved = f'<span class="ub-moved">{escape(text("turn.moved", said=citation.said))}</span>' if citation.said else ""
    inside = (
        f'<span class="ub-chip-number">{number}</span> {escape(name + where(citation, short=True))} '
        f'<span class="ub-chip-symbol">{SYMBOLS[status]}</span>{moved}{hear(_words(citation))}{_tip(citation)}'
    )
    return _opens(citation, f"ub-chip ub-{status}", inside)


def _source(citation: CitationView, number: int) -> str:
    status = _status(citation)
    inside = (
        f'<span class="ub-chip-number">{number}</span><span class="ub-chip-symbol ub-{status}">{SYMBOLS[status]}</span>'
        f'<span class="ub-source-where">{escape(_full_place(citation))}</span>'
        f'<span class="ub-source-status">{escape(_words(citation))}</span>'
        f'<span class="ub-source-quote">{escape(shorten(citation.quote, 160))}</span>'
    )
    return f"<li>{_opens(citation, 'ub-source', inside)}</li>"


def _opens(citation: CitationView, classes: str, inside: str) -> str:
    """A button that opens the page, or plain text where there is none to open."""
    if not (citation.document_id and citation.page):
        return f'<span class="{classes}" tabindex="0">{inside}</span>'
    quote = "" if citation.status == "not_found" else citation.quote
    place = Place(citation.document_id, citation.page, quote, citation.first_line, citation.last_line)
    value = escape(look_value(place))
    return f'<button type="button" class="ub-act {classes}" name="look" value="{value}">{inside}</button>'


def _tip(citation: CitationView) -> str:
    return (
        f'<span class="ub-tip" role="tooltip"><span class="ub-tip-doc">{escape(_full_place(citation))}</span>'
        f'<span class="ub-tip-quote">{escape(shorten(citation.quote, QUOTE_LENGTH))}</span>'
        f'<span class="ub-tip-status">{escape(_words(citation))}</span></span>'
    )
