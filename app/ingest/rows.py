"""Rows: runs on one line, and the rows of finished tables, whose cells are separated by " | "."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.ingest.glyphs import Run

SEPARATOR = " | "
SMALL = 0.85
_STROKE = re.compile(r"(?<!\S)(\|+)(?!\S)")  # in a cell, a lone stroke would be taken for the separator
_BROKEN_WORD = re.compile(r"[^\W\d_][\x02\ufffe\u00ad\u2010-]\Z")


class Row(NamedTuple):
    """Runs on one line, from left to right."""

    runs: tuple[Run, ...]
    top: float
    foot: float

    @property
    def middle(self) -> float:
        return (self.top + self.foot) / 2


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a finished table: its cells joined, and where it stands."""

    text: str
    top: float
    foot: float
    last_foot: float


@dataclass(frozen=True, slots=True)
class Table:
    runs: tuple[Run, ...]  # that it holds
    rows: tuple[TableRow, ...]


def rows_of(runs: Iterable[Run]) -> list[Row]:
    """Runs as rows from top to bottom; runs whose middles are close stand in one row."""
    rows: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: (run.middle, run.x0)):
        if rows and _is_lowered(run, rows[-1]):
            rows[-1].append(run)
            continue
        last = rows[-1] if rows else None
        if last is not None and abs(run.middle - last[0].middle) < 0.5 * min(
            max(run.height, 4.0), max(last[0].height, 4.0)
        ):
            last.append(run)
        else:
            rows.append([run])
    found = []
    for members in rows:
        members.sort(key=lambda run: run.x0)
        tall = max(members, key=lambda run: run.height)
        found.append(Row(tuple(members), tall.top, tall.foot))
    return found


def _is_lowered(run: Run, row: Sequence[Run]) -> bool:
    """Whether a run is a small sign at the foot of a run of this row, as an index below an exponent is."""
    return (
        len(run.words) == 1
        and len(run.words[0].text) <= 3
        and any(
            run.height < SMALL * other.height
            and other.top < run.middle < other.foot + 0.1 * other.height
            and other.x0 < run.x0 <= other.x1 + 1
            and run.x1 <= other.x1 + run.height
            for other in row
        )
    )


def row_text(cells: Sequence[Sequence[str]]) -> str:
    """cells: the lines of each cell. Every column has its place, also an empty one; a lone stroke becomes "\\|"."""
    return SEPARATOR.join(_joined(cell) for cell in cells)


def _joined(lines: Sequence[str]) -> str:
    """The lines of one cell as one; a word broken at a line's end is mended."""
    text = ""
    for line in lines:
        if text and _BROKEN_WORD.search(text) and line[:1].islower():
            text = text[:-1] + line
        else:
            text = f"{text} {line}" if text else line
    return _STROKE.sub(r"\\\1", re.sub(r"[\x02\ufffe]", "-", text))
