"""What a citation is: where a sentence of an answer stands in the documents, and how far that was checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Status = Literal["attributed", "verified", "near", "not_found"]
_LINES = re.compile(r"(?:(?P<path>.*):)?L(?P<first>\d+)(?:-(?P<last>\d+))?")


@dataclass(frozen=True, slots=True)
class Citation:
    """Where it stands. For not_found: the page that the answer named, else document_id "" and page 0.

    status:
      attributed  the app found the passage that supports the sentence, by the words that both use
      verified    the answer quoted this, and the page has the same words (case, punctuation and line breaks aside)
      near        the answer quoted this with slips that change no fact; quote is the page's own wording
      not_found   the answer quoted, or named a page for, something that no page says; quote is the answer's text
    places: offsets in the answer just behind the sentences that rest on it, ascending.
    named: the answer itself named this page. said: the page or lines that the answer named, in its own words, where
    the quote stands elsewhere. last_page: where a quote goes on over a page break, else 0.
    first_line, last_line: lines of the file, counted from 1, where the page has line numbers, else 0.
    """

    document_id: str
    document: str
    page: int
    label: str
    quote: str
    status: Status
    places: tuple[int, ...] = ()
    named: bool = False
    said: str = ""
    last_page: int = 0
    first_line: int = 0
    last_line: int = 0


@dataclass(frozen=True, slots=True)
class LineLabel:
    """A page's label that names lines: "L1-80", or "src/a.py:L1-80" in a folder. path is "" for the document itself."""

    path: str
    first: int
    last: int


def line_label(label: str) -> LineLabel | None:
    """None for a label that names no lines."""
    match = _LINES.fullmatch(label)
    if match is None:
        return None
    return LineLabel(match["path"] or "", int(match["first"]), int(match["last"] or match["first"]))


def lines_of(label: str, text: str, start: int, end: int) -> tuple[int, int]:
    """First and last line of text[start:end] on a page with this label; (0, 0) where pages have no line numbers."""
    lines = line_label(label)
    if lines is None:
        return 0, 0
    first = lines.first + text.count("\n", 0, start)
    return first, first + text.count("\n", start, max(start, len(text[:end].rstrip("\n"))))
