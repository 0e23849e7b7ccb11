"""Tables without a grid: their columns are told by gaps.

At least three rows, one after another, whose cells stand below each other; two are enough between level rules. Lines
that belong to one cell are joined. Where nothing is certain the lines stay as they are.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from app.ingest.glyphs import Run, Word
from app.ingest.graphics import Rule
from app.ingest.rows import Row, Table, TableRow, row_text

LEAST_ROWS = 3
LEAST_ROWS_RULED = 2
LEAST_GAP = 3.5  # points between columns
SAME_RULE = 3.0
CELL_WORDS = 7  # on average at most, without rules
MOST_LINES = 12  # of one cell
STEP = 2.6  # rows of one table are no farther apart, in heights of a line
_LEADER = re.compile(r"(?:\.\s?){4,}|(?:…\s?){2,}|(?:·\s?){4,}")
_BULLET = re.compile(r"[^\w\s]|[(\[]?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,4})[.):\]]|[(\[]\d{1,3}[)\]]|\d{1,3}")


def find_plain(rows: Sequence[Row], rules: Sequence[Rule]) -> list[tuple[int, int, Table]]:
    """(first row, one past the last, table) among the rows of one column of text."""
    level = [rule for rule in rules if not rule.upright]
    found = []
    place = 0
    while place < len(rows):
        if not _has_cells(rows[place]):
            place += 1
            continue
        end = _closed(rows, place, _block_end(rows, place), level)
        table = _plain(rows[place:end], level)
        if table is None:
            place += 1
            while place < end and not _has_cells(rows[place]):
                place += 1
        else:
            first = place
            if place and _is_head(rows[place - 1], rows[place:end], level):
                whole = _plain(rows[place - 1 : end], level)
                if whole is not None:
                    first, table = place - 1, whole
            found.append((first, end, table))
            place = end
    return found


def _has_cells(row: Row) -> bool:
    if len(row.runs) < 2 or all(run.pitch for run in row.runs) or any(run.turned for run in row.runs):
        return False
    if any(_LEADER.search(run.text) for run in row.runs):
        return False
    return not (len(row.runs) == 2 and _BULLET.fullmatch(row.runs[0].text))


def _block_end(rows: Sequence[Row], first: int) -> int:
    """One past the last row that may belong to a table which begins at `first`."""
    edges = [(run.x0, run.x1) for run in rows[first].runs]
    last = first
    for place in range(first + 1, len(rows)):
        row, above = rows[place], rows[place - 1]
        if row.top - above.foot > STEP * max(row.foot - row.top, above.foot - above.top):
            break
        if _has_cells(row):
            edges.extend((run.x0, run.x1) for run in row.runs)
            last = place
        elif len(row.runs) != 1 or not (
            (place - last <= 2 and _in_one_column(row.runs[0], edges))
            or _goes_on(rows, place, last)
            or (place - last == 1 and last == first and row.runs[0].x1 < rows[first].runs[0].x0)
        ):
            break
    return last + 1 + _wrapped(rows, first, last)


def _in_one_column(run: Run, edges: Sequence[tuple[float, float]]) -> bool:
    """Whether a lone run stands below a cell (the rest of it), or is a heading within the table."""
    widest = max(right - left for left, right in edges)
    return run.x1 - run.x0 <= 1.3 * widest and any(
        abs(run.x0 - left) < 4 or abs((run.x0 + run.x1) / 2 - (left + right) / 2) < 4 for left, right in edges
    )


def _goes_on(rows: Sequence[Row], place: int, last: int) -> bool:
    """Whether a lone run goes on with a cell (not the first) of the row `last`, line after line."""
    if len(rows[place].runs) != 1 or place - last > MOST_LINES:
        return False
    row, above = rows[place], rows[place - 1]
    close = row.top - above.foot < 0.6 * (row.foot - row.top)
    return close and any(abs(row.runs[0].x0 - cell.x0) < 2 for cell in rows[last].runs[1:])


def _wrapped(rows: Sequence[Row], first: int, last: int) -> int:
    """How many lone runs below the last row go on with one of its cells (not the first)."""
    place = last + 1
    while place < len(rows) and _goes_on(rows, place, last):
        place += 1
    return place - last - 1


def _closed(rows: Sequence[Row], first: int, end: int, level: Sequence[Rule]) -> int:
    """`end`, or the row behind the rule that closes the table: the last of three or more of the same length."""
    members = rows[first:end]
    left, right = min(row.runs[0].x0 for row in members), max(row.runs[-1].x1 for row in members)
    groups: dict[tuple[int, int], set[float]] = {}
    for rule in level:
        near = members[0].top - 20 < rule.place < members[-1].foot + 3
        if near and rule.start < left + 0.4 * (right - left) and rule.end > left + 0.6 * (right - left):
            groups.setdefault((round(rule.start / 2), round(rule.end / 2)), set()).add(round(rule.place / SAME_RULE))
    several = [places for places in groups.values() if len(places) >= 3]
    if len(several) != 1:
        return end
    last = max(several[0]) * SAME_RULE
    inside = sum(1 for row in members if row.middle < last)
    return first + inside if sum(1 for row in members[:inside] if len(row.runs) > 1) >= LEAST_ROWS else end


def _is_head(head: Row, rows: Sequence[Row], level: Sequence[Rule]) -> bool:
    """Whether a line of equally wide letters, taken for program code so far, names the columns of the rows below it."""
    below = rows[0]
    return (
        len(head.runs) >= 2
        and all(run.pitch for run in head.runs)
        and head.middle < below.middle
        and below.top - head.foot < 1.2 * (below.foot - below.top)
        and len(head.runs) == max(len(row.runs) for row in rows)
        and all(
            any(abs(run.x0 - row.runs[k].x0) < 2 for row in rows if len(row.runs) == len(head.runs))
            for k, run in enumerate(head.runs)
        )
    )


def _plain(rows: Sequence[Row], level: Sequence[Rule]) -> Table | None:
    whole = [row for row in rows if len(row.runs) > 1]
    top, foot = rows[0].top, rows[-1].foot
    left, right = min(row.runs[0].x0 for row in rows), max(row.runs[-1].x1 for row in rows)
    near = [
        rule.place
        for rule in level
        if top - 20 < rule.place < foot + 20
        and rule.start < left + 0.4 * (right - left)
        and rule.end > left + 0.6 * (right - left)
    ]
    ruled = len({round(place / SAME_RULE) for place in near}) >= 2
    if len(whole) < (LEAST_ROWS_RULED if ruled else LEAST_ROWS):
        return None
    gaps = column_gaps(whole)
    if not gaps:
        return None
    columns = [left, *((a + b) / 2 for a, b in gaps), right + 1]
    split = [_split(row, columns) for row in rows]
    if not ruled and not (_written_in_rows(whole) and _looks_like_cells(split, rows, columns)):
        return None
    lines = _lines_of_rows(rows, split, near)
    table_rows = []
    for members in lines:
        cells = [[text for k in members if (text := split[k][column])] for column in range(len(columns) - 1)]
        table_rows.append(
            TableRow(row_text(cells), rows[members[0]].top, rows[members[0]].foot, rows[members[-1]].foot)
        )
    return Table(tuple(run for row in rows for run in row.runs), tuple(table_rows))


def column_gaps(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Stretches that hardly any row covers and that separate runs in most rows with runs on both sides."""
    events: list[tuple[float, int]] = []
    for row in rows:
        for run in row.runs:
            events += [(run.x0, 1), (run.x1, -1)]
    events.sort()
    most_over = 0.12 * len(rows)
    gaps: list[tuple[float, float]] = []
    cover, begin = 0, None
    for at, change in events:
        before = cover
        cover += change
        if before > most_over >= cover:
            begin = at
        elif before <= most_over < cover and begin is not None:
            if at - begin >= LEAST_GAP:
                gaps.append((begin, at))
            begin = None
    kept = []
    for a, b in gaps:
        middle = (a + b) / 2
        both = sum(1 for row in rows if row.runs[0].x0 < middle < row.runs[-1].x1)
        apart = sum(
            1
            for row in rows
            if any(one.x1 <= middle + 1 and other.x0 >= middle - 1 for one, other in pairwise(row.runs))
        )
        if apart >= 2 and apart * 5 >= len(rows) * 2 and apart * 10 >= both * 8:
            kept.append((a, b))
    return _with_runs_between(kept, rows)


def _with_runs_between(gaps: Sequence[tuple[float, float]], rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Gaps without those that have nothing between them and the gap before: both are one gap then."""
    middles = sorted((run.x0 + run.x1) / 2 for row in rows for run in row.runs)
    found: list[tuple[float, float]] = []
    for gap in gaps:
        if found:
            left, right = sum(found[-1]) / 2, sum(gap) / 2
            if bisect_left(middles, right) == bisect_left(middles, left):
                found[-1] = max(found[-1], gap, key=lambda one: one[1] - one[0])
                continue
        found.append(gap)
    return found


def _split(row: Row, columns: Sequence[float]) -> list[str]:
    """The cells of a row. A run that reaches over several columns stands in the one where it begins, unless its words
    leave the gap between two of them free."""
    cells: list[list[str]] = [[] for _ in columns[1:]]
    for run in row.runs:
        for words in _parts(run, columns):
            centre = (words[0].x0 + words[-1].x1) / 2
            first = _column(words[0].x0 + 1, columns)
            place = first if _column(words[-1].x1 - 1, columns) != first else _column(centre, columns)
            cells[place].append(" ".join(word.text for word in words))
    return [" ".join(cell) for cell in cells]


def _parts(run: Run, columns: Sequence[float]) -> list[tuple[Word, ...]]:
    """A run whose columns stand so close that their gap was no wide one, cut there; else the run."""
    parts: list[list[Word]] = [[run.words[0]]]
    usual = median([b.x0 - a.x1 for a, b in pairwise(run.words)] or [0.0])
    for word, after in pairwise(run.words):
        between = any(word.x1 <= column <= after.x0 for column in columns[1:-1])
        if between and after.x0 - word.x1 > max(LEAST_GAP, 1.4 * usual):
            parts.append([])
        parts[-1].append(after)
    return [tuple(part) for part in parts]


def _column(x: float, columns: Sequence[float]) -> int:
    return next((k for k, right in enumerate(columns[1:]) if x < right), len(columns) - 2)


def _written_in_rows(rows: Sequence[Row]) -> bool:
    """Whether the file goes along the rows, and not down one column after the other as in an index."""
    pairs = [(one, other) for row in rows for one, other in pairwise(row.runs)]
    starts = sorted(run.order for row in rows for run in row.runs)
    place = {order: k for k, order in enumerate(starts)}
    return sum(place[other.order] - place[one.order] == 1 for one, other in pairs) * 2 > len(pairs)


def _looks_like_cells(split: Sequence[list[str]], rows: Sequence[Row], columns: Sequence[float]) -> bool:
    """Without rules: short cells, most rows filled, and not two columns of prose or a list with its marks."""
    filled = [[cell for cell in cells if cell] for cells in split]
    several = sum(1 for cells in filled if len(cells) >= 2)
    if several < LEAST_ROWS or several * 2 < len(rows):
        return False
    count = len(columns) - 1
    words = [
        sum(len(cells[k].split()) for cells in split) / max(1, sum(1 for cells in split if cells[k]))
        for k in range(count)
    ]
    if count == 2:
        marks = sum(1 for cells in split if _BULLET.fullmatch(cells[0]))
        return max(words) <= CELL_WORDS and marks * 2 < several
    return sum(words) / count <= CELL_WORDS


def _lines_of_rows(rows: Sequence[Row], split: Sequence[list[str]], rules: Sequence[float]) -> list[list[int]]:
    """Lines grouped to rows: one that leaves the first column empty and fills only cells that the line above fills too
    goes on with them, unless a rule or a wider step stands between."""
    steps = sorted(below.middle - above.middle for above, below in pairwise(rows))
    close = steps[0] * 1.15 if steps else 0.0
    lines: list[list[int]] = []
    for place, cells in enumerate(split):
        filled = [k for k, cell in enumerate(cells) if cell]
        if lines and filled and filled[0] > 0:
            above = split[place - 1]
            joined = (
                len(filled) * 2 <= len(cells)
                and all(any(split[k][column] for k in lines[-1]) for column in filled)
                and rows[place].middle - rows[place - 1].middle <= close
                and not any(rows[place - 1].middle < rule < rows[place].middle for rule in rules)
                and any(char.isalpha() for column in filled for char in cells[column] + above[column])
            )
            if joined:
                lines[-1].append(place)
                continue
        lines.append([place])
    return lines
