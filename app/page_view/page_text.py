"""A page's text as lines to be shown, with what is cited marked in them."""

from __future__ import annotations

from dataclasses import dataclass

from app.citations.citation import line_label
from app.page_view.find import Span, locate

MOST_LINES = 2_000
MOST_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a page. number: in the file, 0 where lines are not counted. marks: [start, end) within the text."""

    number: int
    text: str
    marks: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class PageText:
    """left_out: lines and characters beyond what is shown of one page, as lines. found: whether the quote was."""

    lines: tuple[Line, ...]
    found: bool
    left_out: int = 0


def page_text(label: str, text: str, quote: str, cited: tuple[int, int] = (0, 0)) -> PageText:
    """cited: first and last line of the file that are cited, where the citation knows them; they are marked whole."""
    lines = line_label(label)
    numbered = lines is not None
    first = lines.first if lines else 0
    spans = locate(text, quote) if quote.strip() else []
    if not spans and numbered and cited[0]:
        spans = _whole_lines(text, first, cited)
    shown: list[Line] = []
    start = 0
    rows = text.rstrip("\n").split("\n")
    for number, row in enumerate(rows):
        if number >= MOST_LINES or start > MOST_CHARACTERS:
            break
        row = row[:MOST_CHARACTERS]
        end = start + len(row)
        marks = tuple((max(a, start) - start, min(b, end) - start) for a, b in spans if a < end and b > start)
        shown.append(Line(first + number if numbered else 0, row, marks))
        start += len(rows[number]) + 1
    return PageText(tuple(shown), bool(spans), len(rows) - len(shown))


def _whole_lines(text: str, first: int, cited: tuple[int, int]) -> list[Span]:
    spans: list[Span] = []
    start = 0
    for number, row in enumerate(text.split("\n"), first):
        if cited[0] <= number <= cited[1] and row:
            spans.append((start, start + len(row)))
        start += len(row) + 1
    return spans
