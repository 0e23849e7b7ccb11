"""One sheet of rows, cut into pages: the header row is repeated on each, and labels tell the rows."""

from __future__ import annotations

from itertools import pairwise

from app.ingest.formats import tables
from app.ingest.formats.flow import pieces
from app.ingest.formats.pages import PAGE_CHARACTERS, LimitReached, Pages

_HEADER_AMONG = 5
"""A header is looked for in so many first rows of a block; titles stand above it."""
Row = tuple[int, dict[int, str]]


class Sheet:
    """Rows come in order of their numbers (from 1), as {column: text}; `close` writes the pages.

    label: what stands before ", rows 2-40". title: its line in the outline, "" for none.
    """

    def __init__(self, label: str, title: str, out: Pages) -> None:
        self._label, self._title, self._out = label, title, out
        self._rows: list[Row] = []
        self._merged: list[tuple[int, int, int, int]] = []
        self._characters = 0

    def row(self, number: int, cells: dict[int, str]) -> None:
        """Raises LimitReached; what came before is kept."""
        cells = {column: shown for column, text in cells.items() if (shown := tables.cell_text(text))}
        if not cells:
            return
        self._characters += sum(map(len, cells.values()))
        if self._characters > self._out.limits.text_bytes:
            raise LimitReached(f"it holds more than {self._out.limits.text_bytes / 1e6:g} MB of text")
        self._rows.append((number, cells))

    def merge(self, top: int, left: int, bottom: int, right: int) -> None:
        """A cell over several rows: its text is repeated in each, since a row means something only with it."""
        if 0 < bottom - top < 10_000 and left > 0 and len(self._merged) < 100_000:
            self._merged.append((top, left, bottom, right))

    def close(self, extras: list[str]) -> None:
        """extras: lines that follow the rows."""
        self._fill_merged()
        if self._title and (self._rows or extras):
            self._out.mark(self._title, 0)
        columns = sorted({column for _, cells in self._rows for column in cells})
        lines = [(number, [cells.get(column, "") for column in columns]) for number, cells in self._rows]
        page = _Page(self._label, self._out)
        for block in _blocks(lines):
            header = _header(block)
            page.header = ""
            for place, (number, cells) in enumerate(block):
                page.put(number, tables.row_text(cells))
                if place == header:
                    page.header = tables.row_text(cells)
        page.close()
        for place, part in enumerate(pieces("\n".join(extras), PAGE_CHARACTERS)):
            self._out.add(f"{self._label}, notes" + (f" ({place + 1})" if place else ""), part)

    def _fill_merged(self) -> None:
        by_number = dict(self._rows)
        for top, left, bottom, _ in self._merged:
            text = by_number.get(top, {}).get(left, "")
            for number in range(top + 1, bottom + 1) if text else ():
                if number in by_number:
                    by_number[number].setdefault(left, text)


def _blocks(lines: list[tuple[int, list[str]]]) -> list[list[tuple[int, list[str]]]]:
    """Empty rows part the tables of one sheet."""
    if not lines:
        return []
    cuts = [0, *(place + 1 for place, (a, b) in enumerate(pairwise(lines)) if b[0] - a[0] > 1), len(lines)]
    return [lines[a:b] for a, b in pairwise(cuts)]


def _header(block: list[tuple[int, list[str]]]) -> int | None:
    width = max(sum(map(bool, cells)) for _, cells in block[:100])
    for place, (_, cells) in enumerate(block[:_HEADER_AMONG]):
        if tables.looks_like_header(cells, width):
            return place
    return None


class _Page:
    """Rows until about a page is full."""

    def __init__(self, label: str, out: Pages) -> None:
        self._label, self._out = label, out
        self._lines: list[str] = []
        self._length = 0
        self._first = self._last = 0
        self.header = ""

    def put(self, number: int, line: str) -> None:
        for piece in pieces(line, PAGE_CHARACTERS):
            if self._lines and self._length + len(piece) > PAGE_CHARACTERS:
                self.close()
                if self.header and len(self.header) < PAGE_CHARACTERS // 2:
                    self._add(self.header)
            if not self._first:
                self._first = number
            elif number - self._last > 1:
                self._lines.append("")
            self._last = number
            self._add(piece)

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._length += len(line) + 1

    def close(self) -> None:
        if self._first:
            rows = f"row {self._first}" if self._first == self._last else f"rows {self._first}-{self._last}"
            label = f"{self._label}, {rows}" if self._label else rows[0].upper() + rows[1:]
            if len(label) > 60:  # a long name must not hide the rows
                label = f"{self._label[: 57 - len(rows)]}..., {rows}"[:62]
            self._out.add(label, "\n".join(self._lines))
        self._lines = []
        self._length = self._first = 0
