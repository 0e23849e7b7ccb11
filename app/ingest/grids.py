"""Tables that are drawn with upright and level rules: their cells are where the rules say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from app.ingest.glyphs import Run, Word
from app.ingest.graphics import Rule
from app.ingest.rows import Row, Table, TableRow, row_text, rows_of
from app.ingest.tables import column_gaps

NEAR = 3.0  # points: rules that meet, or stand at the same place
LEAST_RULES = 4
LEAST_ROWS = 2
EACH_RULED_ROWS = 3
EACH_RULED_LINES = 6
KEY_SHARE = 0.7
MOST_CELLS = 4_000
MOST_RULES = 3_000
GAP_ROWS = 4
WRAPPED_FILL = 0.85  # a wrapped line fills so much of its column
_FIGURE = re.compile(r"\W*\d[\d.,\s]*\W*|[×xX✓–—-]")


@dataclass(frozen=True, slots=True)
class _Cell:
    """What one line has in one column; first_width: of its first word, with a blank before it."""

    text: str = ""
    x0: float = 0.0
    x1: float = 0.0
    first_width: float = 0.0


@dataclass(frozen=True, slots=True)
class _Line:
    """Rules at one place: the stretches that they cover."""

    place: float
    stretches: tuple[tuple[float, float], ...]

    def covers(self, point: float) -> bool:
        return any(start - NEAR <= point <= end + NEAR for start, end in self.stretches)


def find_grids(runs: Sequence[Run], rules: Sequence[Rule]) -> list[Table]:
    """Tables whose cells are drawn with rules, from top to bottom."""
    tables = []
    for group in _connected(rules[:MOST_RULES]):
        upright, level = _lines(group, True), _lines(group, False)
        if len(upright) < 2 or len(level) < 2 or len(upright) + len(level) < 5:
            continue
        if (len(upright) - 1) * (len(level) - 1) > MOST_CELLS:
            continue
        left, right, top, foot = upright[0].place, upright[-1].place, level[0].place, level[-1].place
        inside = [
            run
            for run in runs
            if top - 1 <= run.middle <= foot + 1 and left - NEAR <= (run.x0 + run.x1) / 2 <= right + NEAR
        ]
        table = _grid(inside, upright, level)
        if table is not None:
            tables.append(table)
    return sorted(tables, key=lambda table: table.rows[0].top)


def _connected(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Groups of rules that touch each other."""
    groups: list[tuple[list[float], list[Rule]]] = []
    for rule in sorted(rules, key=lambda rule: rule.start if rule.upright else rule.place):
        box = (
            [rule.place, rule.start, rule.place, rule.end]
            if rule.upright
            else [rule.start, rule.place, rule.end, rule.place]
        )
        members = [rule]
        apart = []
        for other, others in groups:
            if (
                box[0] <= other[2] + NEAR
                and other[0] <= box[2] + NEAR
                and box[1] <= other[3] + NEAR
                and other[1] <= box[3] + NEAR
            ):
                box = [min(box[0], other[0]), min(box[1], other[1]), max(box[2], other[2]), max(box[3], other[3])]
                members = others + members
            else:
                apart.append((other, others))
        groups = [*apart, (box, members)]
    return [members for _, members in groups if len(members) >= LEAST_RULES]


def _lines(rules: Iterable[Rule], upright: bool) -> list[_Line]:
    lines: list[tuple[float, list[tuple[float, float]]]] = []
    for rule in sorted((rule for rule in rules if rule.upright == upright), key=lambda rule: rule.place):
        if lines and rule.place - lines[-1][0] <= NEAR:
            lines[-1][1].append((rule.start, rule.end))
        else:
            lines.append((rule.place, [(rule.start, rule.end)]))
    return [_Line(place, tuple(stretches)) for place, stretches in lines]


def _grid(runs: Sequence[Run], upright: Sequence[_Line], level: Sequence[_Line]) -> Table | None:
    """Cells by their rules; None if it is a frame around text, or a drawing."""
    lines = rows_of(runs)
    bands = [[line for line in lines if a.place - 1 <= line.middle < b.place] for a, b in pairwise(level)]
    upright = _with_gaps(lines, upright)
    columns = list(pairwise(line.place for line in upright))
    split = [[_cells_in(line, columns, upright) for line in band] for band in bands]
    edges = []
    for k in range(len(columns)):
        cells = [line[k] for band in split for line in band if line[k].text]
        edges.append((min((cell.x0 for cell in cells), default=0.0), max((cell.x1 for cell in cells), default=0.0)))
    key = _key_column(split)
    filled = [len(band) for band in bands if band]
    each_ruled = len(filled) >= EACH_RULED_ROWS and median(filled) == 1 and max(filled) <= EACH_RULED_LINES
    table_rows: list[tuple[list[list[str]], float, float, float]] = []
    for band, cut in zip(bands, split, strict=True):
        whole = each_ruled and len({tuple(bool(cell.text) for cell in line) for line in cut}) != 1
        for members in [list(range(len(band)))] if whole and band else _same_row(cut, edges, key):
            cells = [[text for k in members if (text := cut[k][column].text)] for column in range(len(columns))]
            table_rows.append((cells, band[members[0]].top, band[members[0]].foot, band[members[-1]].foot))
    used = [column for column in range(len(columns)) if any(cells[column] for cells, *_ in table_rows)]
    if len(used) < 2 or len(table_rows) < LEAST_ROWS:
        return None
    several = sum(1 for cells, *_ in table_rows if sum(map(bool, cells)) >= 2)
    if several * 2 < len(table_rows):
        return None
    return Table(
        tuple(runs),
        tuple(
            TableRow(row_text([cells[column] for column in used]), top, foot, last)
            for cells, top, foot, last in table_rows
        ),
    )


def _with_gaps(lines: Sequence[Row], upright: Sequence[_Line]) -> list[_Line]:
    """The upright rules, and between them the gaps that most lines of a ruled column share."""
    found = list(upright)
    everywhere = ((lines[0].top, lines[-1].foot),) if lines else ()
    for left, right in pairwise(upright):
        inside = [tuple(run for run in line.runs if left.place < run.x0 and run.x1 < right.place) for line in lines]
        rows = [Row(runs, line.top, line.foot) for runs, line in zip(inside, lines, strict=True) if runs]
        several = [row for row in rows if len(row.runs) > 1]
        if len(several) >= GAP_ROWS and len(several) * 10 >= 6 * len(rows):
            found += [_Line((a + b) / 2, everywhere) for a, b in column_gaps(several)]
    return sorted(found, key=lambda line: line.place)


def _cells_in(line: Row, columns: Sequence[tuple[float, float]], upright: Sequence[_Line]) -> list[_Cell]:
    """The words of a line by columns; where no rule stands between two columns, the cell to the left has both."""
    cells: list[list[Word]] = [[] for _ in columns]
    for run in line.runs:
        for word in run.words:
            centre = (word.x0 + word.x1) / 2
            place = next((k for k, (_, right) in enumerate(columns) if centre < right), len(columns) - 1)
            while place > 0 and not upright[place].covers(line.middle):
                place -= 1
            cells[place].append(word)
    blank = 0.25 * (line.foot - line.top)
    return [
        _Cell(" ".join(word.text for word in cell), cell[0].x0, cell[-1].x1, cell[0].x1 - cell[0].x0 + blank)
        if cell
        else _Cell()
        for cell in cells
    ]


def _same_row(split: Sequence[list[_Cell]], edges: Sequence[tuple[float, float]], key: int) -> list[list[int]]:
    """Lines between two level rules as rows. A line goes on with the row above if it leaves the key column empty, or if
    all of its cells are wrapped. edges: where the text of each column begins and ends. key: see `_key_column`."""
    filled = [tuple(bool(cell.text) for cell in cells) for cells in split]
    if len(split) > 2 and sum(filled[0]) > 1 and len(set(filled)) == 1:
        return [[place] for place in range(len(split))]
    rows: list[list[int]] = []
    for place, cells in enumerate(split):
        if rows:
            above = split[place - 1]
            both = [k for k, cell in enumerate(cells) if cell.text and above[k].text]
            more = 0 in both and any(cell.text and not above[k].text for k, cell in enumerate(cells))
            wrapped = bool(both) and all(_wrapped_cell(above[k], cells[k], edges[k]) for k in both)
            # a sentence that ends where the next one begins is seldom one cell's when another cell begins there too
            alone = sum(bool(cell.text) for cell in cells) == 1
            wrapped &= alone or not any(_ends(above[k].text) and _begins(cells[k].text) for k in both)
            beside = not both and not cells[0].text
            if beside or (both and not cells[key].text) or (wrapped and not more):
                rows[-1].append(place)
                continue
        rows.append([place])
    return rows


def _key_column(split: Sequence[Sequence[list[_Cell]]]) -> int:
    """The first column that most lines fill: a line without it only goes on with the line above."""
    lines = [line for band in split for line in band]
    shares = [sum(bool(line[k].text) for line in lines) / len(lines) for k in range(len(lines[0]))] if lines else [0.0]
    return next((k for k, share in enumerate(shares) if share >= KEY_SHARE), shares.index(max(shares)))


def _ends(text: str) -> bool:
    return text.rstrip("\"'”’)").endswith((".", "!", "?", "。"))


def _begins(text: str) -> bool:
    return text[:1].isupper()


def _wrapped_cell(above: _Cell, cell: _Cell, edges: tuple[float, float]) -> bool:
    """Whether the cell's first word had no room behind the line above it. Figures are never wrapped."""
    left, right = edges
    if _FIGURE.fullmatch(above.text) and _FIGURE.fullmatch(cell.text):
        return False
    full = above.x1 - left > WRAPPED_FILL * (right - left)
    return full and above.x1 + cell.first_width > right
