"""Tables as text: one line a row, cells parted by " | ", so that rows stay rows and every part names its columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from app.ingest.formats.pages import clean

BETWEEN = " | "
MOST_COLUMNS = 1_000
MOST_CELLS = 2_000_000


@dataclass(frozen=True, slots=True)
class Cell:
    """across, down: the columns and rows it covers. goes_on: it belongs to the cell above it (Word, PowerPoint)."""

    text: str
    across: int = 1
    down: int = 1
    goes_on: bool = False


def grid(rows: Iterable[Sequence[Cell]], warn: Callable[[str], None]) -> list[list[str]]:
    """Rows of equal length; `warn` is told what is left out of a table that is too large.

    A cell over several rows is repeated in each, since a row means something only with it; a cell over several columns
    stands once, with empty cells behind it.
    """
    table: list[list[str]] = []
    hanging: dict[int, tuple[int, str]] = {}  # column: (rows still to fill, text)
    total = 0
    for cells in rows:
        row: list[str] = []
        waiting = list(cells)
        while waiting or any(column >= len(row) for column in hanging):
            column = len(row)
            if column >= MOST_COLUMNS:
                if any(cell.text.strip() for cell in waiting):
                    warn(f"A table was cut after {MOST_COLUMNS:,} columns.")
                hanging = {place: rest for place, rest in hanging.items() if place < MOST_COLUMNS}
                break
            if column in hanging:
                left, text = hanging.pop(column)
                row.append(text)
                if left > 1:
                    hanging[column] = (left - 1, text)
                continue
            if not waiting:
                row.append("")
                continue
            cell = waiting.pop(0)
            text = cell.text
            if cell.goes_on and table and column < len(table[-1]):
                text = table[-1][column]
            for place in range(min(cell.across, MOST_COLUMNS - column)):
                row.append(text if place == 0 else "")
                if cell.down > 1:
                    hanging[column + place] = (cell.down - 1, text if place == 0 else "")
        table.append(row)
        total += len(row)
        if total > MOST_CELLS:
            warn(f"A table was cut after {len(table):,} rows: it has more than {MOST_CELLS:,} cells.")
            break
    width = max(map(len, table), default=0)
    return [row + [""] * (width - len(row)) for row in table]


_ORDINARY = re.compile(r"[!-~]+(?: [!-~]+)*")


def cell_text(text: str) -> str:
    """A cell on one line."""
    if _ORDINARY.fullmatch(text):
        return text
    return " ".join(clean(text).split())


def lines(table: Sequence[Sequence[str]]) -> list[str]:
    """One line a row, without the columns and rows that are empty throughout."""
    table = [[cell_text(cell) for cell in row] for row in table]
    width = max(map(len, table), default=0)
    used = [column for column in range(width) if any(column < len(row) and row[column] for row in table)]
    rows = [[row[column] if column < len(row) else "" for column in used] for row in table]
    return [row_text(row) for row in rows if any(row)]


def row_text(cells: Sequence[str]) -> str:
    """Cells on one line, without the empty ones at its end."""
    last = max((place for place, cell in enumerate(cells) if cell), default=-1)
    return BETWEEN.join(cells[: last + 1]).rstrip()


def looks_like_header(row: Sequence[str], width: int) -> bool:
    """A row of names: at least two cells and half of the columns filled, none of them a number or a date."""
    filled = [cell for cell in row if cell]
    return len(filled) >= 2 and 2 * len(filled) >= width and not any(_is_number(cell) for cell in filled)


def _is_number(text: str) -> bool:
    digits = sum(char.isdigit() for char in text)
    is_year = digits == 4 == len(text)  # years are common as names of columns
    return digits > 0 and not is_year and 2 * digits >= len(text.replace(" ", ""))
