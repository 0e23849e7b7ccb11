"""Headings, paragraphs and tables in reading order, cut into pages that a reader can find again."""

from __future__ import annotations

from collections.abc import Sequence

from app.ingest.formats import tables
from app.ingest.formats.pages import PAGE_CHARACTERS, Pages, clean, one_line

SMALL = PAGE_CHARACTERS // 3
"""A heading begins a new page once there is so much text on the current one."""
LONG = 2.5 * PAGE_CHARACTERS
"""Pages of a document that has pages of its own are cut only beyond this."""


class Flow:
    """Cuts at headings and at about PAGE_CHARACTERS; labels are the headings that a page stands under.

    numbered: the document has pages of its own; `page_break` ends each and their numbers are the labels.
    section: a title that labels all pages until the next `section`; headings are then lines of text only.
    """

    def __init__(self, pages: Pages, *, numbered: bool = False, section: str = "") -> None:
        self._pages = pages
        self._numbered = numbered
        self._section = section
        self._number = 1
        self._lines: list[str] = []
        self._length = 0
        self._notes: list[str] = []
        self._title = ""  # the heading that the text stands under
        self._first = ""  # the one that the current page begins under
        self._uses: dict[str, int] = {}

    def section(self, title: str, level: int = 0) -> None:
        """A new chapter: pages of its own, that carry its title as label, and a line of the outline."""
        self._close()
        self._numbered = False
        self._section = one_line(title)
        self._pages.mark(title, level)

    def heading(self, title: str, level: int) -> None:
        title = " ".join(clean(title).split())
        if not title:
            return
        if not self._numbered and self._length > SMALL:
            self._close()
        if not self._lines or not self._first:
            self._first = title
        self._pages.mark(title, level)
        self._title = title
        self._put("\n" + title if self._lines else title)

    def text(self, paragraph: str) -> None:
        paragraph = clean(paragraph).strip("\n").rstrip()
        if not paragraph:
            return
        for piece in pieces(paragraph, self._most):
            self._make_room(len(piece))
            self._put(piece)

    def table(self, rows: Sequence[Sequence[str]], header_rows: int = 1) -> None:
        """One line a row; on every further page the first `header_rows` rows are repeated."""
        lines = tables.lines(rows)
        header = lines[:header_rows] if tables.BETWEEN in "".join(lines[:header_rows]) else []
        if sum(map(len, header)) > PAGE_CHARACTERS // 2:
            header = []
        for place, line in enumerate(lines):
            for piece in pieces(line, self._most):
                if self._make_room(len(piece)) and place >= len(header):
                    for repeated in header:
                        self._put(repeated)
                self._put(piece)

    def note(self, text: str) -> None:
        """A footnote: stands at the end of the page."""
        if text := " ".join(clean(text).split()):
            self._notes.extend(pieces(text, PAGE_CHARACTERS))

    def page_break(self) -> None:
        """The end of a page of the document itself."""
        if self._numbered:
            self._close(even_if_empty=True)
            self._number += 1
            self._uses.clear()

    def close(self) -> None:
        """To be called once, at the end."""
        self._close()

    @property
    def _most(self) -> int:
        return int(LONG) if self._numbered else PAGE_CHARACTERS

    def _make_room(self, more: int) -> bool:
        """Whether a new page was begun."""
        if self._lines and self._length + more > self._most:
            self._close()
            return True
        return False

    def _put(self, line: str) -> None:
        if not self._lines:
            line = line.lstrip("\n")
        self._lines.append(line)
        self._length += len(line) + 1

    def _close(self, even_if_empty: bool = False) -> None:
        if self._notes:
            self._lines += ["", *self._notes] if self._lines else self._notes
            self._notes = []
        if self._lines or even_if_empty:
            self._pages.add(self._label(), "\n".join(self._lines))
        self._lines = []
        self._length = 0
        self._first = self._title

    def _label(self) -> str:
        if self._numbered:
            name = str(self._number)
        elif self._section:
            name = self._section
        elif not self._title:
            return f"Part {len(self._pages.pages) + 1}"
        elif self._first in ("", self._title):
            name = one_line(self._title, 50)
        else:
            name = f"{one_line(self._first, 25)} to {one_line(self._title, 25)}"
        self._uses[name] = self._uses.get(name, 0) + 1
        return name if self._uses[name] == 1 else f"{one_line(name, 50)} ({self._uses[name]})"


def pieces(text: str, size: int) -> list[str]:
    """Text cut to at most `size` characters at line ends, sentences or spaces, else anywhere."""
    parts = []
    start = 0  # a place, not the rest of the text: copying that for each piece would take hours for a large text
    while len(text) - start > size:
        cut = start + size
        for end in ("\n", ". ", "。", " "):
            place = text.rfind(end, start + size // 2, start + size)
            if place > 0:
                cut = place + len(end)
                break
        parts.append(text[start:cut].rstrip())
        start = cut
        while start < len(text) and text[start].isspace():
            start += 1
    return [*parts, text[start:]] if start < len(text) else parts
