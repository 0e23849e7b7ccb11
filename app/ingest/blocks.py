"""The runs of a PDF page in reading order, as lines: columns one after another, rows of tables kept as rows.

The order of the file is kept where it can be: typesetters write column by column. A page that is drawn across its
columns, line by line, is told by rows that hold prose on both sides of a gap; there the left side comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from app.ingest.glyphs import Frame, Run, Word, run_of
from app.ingest.graphics import Graphics
from app.ingest.grids import find_grids
from app.ingest.layout import RawLine
from app.ingest.rows import SEPARATOR, Row, Table, TableRow, rows_of
from app.ingest.tables import find_plain

BACK_LINES = 6  # a jump up of more lines begins a new column
COLUMN_LINES = 5  # columns of prose have at least so many
COLUMN_WORDS = 3.0  # and so many words a line
GUTTER = 6.0  # points between columns
MOST_COLUMNS = 4
MOST_INDENT = 60
FORMULA_STEP = 2.2  # heights of a line between the lines of one formula
# relations, operators, big signs, and what fonts of formulas have instead of characters
_MATHS = re.compile(r"[=<>≤≥≠≈≡∈∉⊂⊆∑∏∫√∂∇∞±∓×÷→←↔⇒⇔∀∃∧∨¬∪∩⊕⊗⟨⟩α-ωΑ-Ω\U0001d400-\U0001d7ff\ufffd\uf8e6-\uf8fe⎛-⎭∣∥·∗∼^]")
_ORDINARY_WORD = re.compile(r"[^\W\d_]{4,}")

Line = Run | Row | TableRow


def arrange(runs: Sequence[Run], graphics: Graphics, frame: Frame) -> tuple[RawLine, ...]:
    """Lines in reading order, with their places in shares of the page's height."""
    grids = find_grids([run for run in runs if not run.turned], graphics.rules)
    owner = {id(run): table for table in grids for run in table.runs}
    lines: list[Line] = []
    done: set[int] = set()
    flow: list[Run] = []

    def close() -> None:
        for part in _columns(flow, MOST_COLUMNS):
            lines.extend(_flow_lines(part, graphics))
        flow.clear()

    for run in runs:
        table = owner.get(id(run))
        if table is not None:
            if id(table) not in done:
                done.add(id(table))
                close()
                lines.extend(table.rows)
        elif run.turned:
            close()
            lines.append(run)
        else:
            if flow and _new_column(flow, run):
                close()
            flow.append(run)
    close()
    height = frame.size[1]
    return tuple(_raw_line(line, height) for line in lines)


def _new_column(flow: Sequence[Run], run: Run) -> bool:
    """Whether the file goes back up the page, by more than the lines of a cell."""
    above = flow[-1]
    if run.middle > above.middle - 0.5 * above.height:
        return False
    left = min(other.x0 for other in flow[-8:])
    return above.middle - run.middle > BACK_LINES * above.height or run.x0 <= left + 1


def _columns(runs: Sequence[Run], most: int) -> list[list[Run]]:
    """The parts of a flow, in reading order: one, unless it runs across columns of prose line by line."""
    if most < 2 or len(runs) < 2 * COLUMN_LINES or not _drawn_across(runs):
        return [list(runs)]
    rows = rows_of(run for run in runs if run.words)
    gutter = _gutter(rows)
    if gutter is None:
        return [list(runs)]
    parts: list[list[Run]] = []
    band: list[Row] = []
    wide: list[Run] = []

    def close_band() -> None:
        left = [run for row in band for run in row.runs if run.x1 <= gutter]
        right = [run for row in band for run in row.runs if run.x0 >= gutter]
        if _is_prose(left) and _is_prose(right):
            parts.extend(part for side in (left, right) for part in _columns(side, most - 1))
        else:
            parts.append([run for row in band for run in row.runs])
        band.clear()

    for row in rows:
        if any(run.x0 < gutter < run.x1 for run in row.runs):
            if band:
                close_band()
            wide.extend(row.runs)
        else:
            if wide:
                parts.append(list(wide))
                wide.clear()
            band.append(row)
    if wide:
        parts.append(wide)
    if band:
        close_band()
    return parts


def _drawn_across(runs: Sequence[Run]) -> bool:
    """Whether the file often goes on to the right on the same line, over a wide gap."""
    across = sum(
        1
        for one, other in pairwise(runs)
        if abs(one.middle - other.middle) < 0.5 * one.height and other.x0 > one.x1 and not (one.pitch and other.pitch)
    )
    return across >= COLUMN_LINES


def _gutter(rows: Sequence[Row]) -> float | None:
    """The middle of the stretch that most separates text on its left from text on its right."""
    runs = [run for row in rows for run in row.runs]
    edges = sorted({round(run.x1 + GUTTER / 2, 1) for run in runs})[:400]
    left, right = min(run.x0 for run in runs), max(run.x1 for run in runs)
    best, found = 0.0, None
    for at in edges:
        if not left + 0.15 * (right - left) < at < right - 0.15 * (right - left):
            continue
        before = sum(1 for run in runs if run.x1 <= at)
        after = sum(1 for run in runs if run.x0 >= at)
        over = len(runs) - before - after
        score = min(before, after) - 2 * over
        if score > best and min(before, after) >= COLUMN_LINES:
            best, found = score, at
    return found


def _is_prose(runs: Sequence[Run]) -> bool:
    """Lines of words that mostly fill their column."""
    if len(runs) < COLUMN_LINES:
        return False
    width = max(run.x1 for run in runs) - min(run.x0 for run in runs)
    full = median(run.x1 - run.x0 for run in runs) / max(width, 1.0)
    letters = sum(char.isalpha() for run in runs for char in run.text) / max(1, sum(len(run.text) for run in runs))
    return full > 0.6 and letters > 0.6 and median(len(_word_like(run.text)) for run in runs) >= COLUMN_WORDS


def _word_like(text: str) -> list[str]:
    """Words; a script without blanks counts two characters as one."""
    return text.split() if text.isascii() or " " in text else [text[k : k + 2] for k in range(0, len(text), 2)]


def _flow_lines(runs: Sequence[Run], graphics: Graphics) -> list[Line]:
    """Lines of one column in the order of the file; tables where their first run stands."""
    if not runs:
        return []
    tables: dict[int, Table] = {}
    if len(runs) > 3:
        rows = rows_of(runs)
        for _, _, table in find_plain(rows, graphics.rules):
            tables.update((id(run), table) for run in table.runs)
    lines: list[Line] = []
    done: set[int] = set()
    line: list[Run] = []
    margin = min((run.x0 for run in runs if run.pitch), default=0.0)

    def close() -> None:
        if line:
            lines.append(_line(line, margin))
            line.clear()

    for run in runs:
        table = tables.get(id(run))
        if table is not None:
            if id(table) not in done:
                done.add(id(table))
                close()
                lines.extend(table.rows)
            continue
        if line and not (
            abs(run.middle - line[-1].middle) < 0.5 * max(run.height, line[-1].height) and run.x0 > line[-1].x0
        ):
            close()
        line.append(run)
    close()
    return lines


def _line(runs: Iterable[Run], margin: float) -> Line:
    members = tuple(runs)
    if all(run.pitch for run in members):
        members = (_code(members, margin),)
    tall = max(members, key=lambda run: run.height)
    return Row(members, tall.top, tall.foot)


def _code(runs: Sequence[Run], margin: float) -> Run:
    """A line of equally wide letters with its blanks as they are seen: indents and columns are kept."""
    pitch, at, text = runs[0].pitch, margin, ""
    for run in runs:
        for word in run.words:
            blanks = round((word.x0 - at) / pitch)
            text += " " * min(MOST_INDENT, max(1 if text else 0, blanks)) + word.text
            at = word.x1
    return run_of((Word(text, runs[0].x0, runs[-1].x1),), runs[0].top, runs[0].foot, False, pitch)


def _raw_line(line: Line, height: float) -> RawLine:
    if isinstance(line, Row):
        text, last = " ".join(run.text for run in line.runs), line.foot
    elif isinstance(line, Run):
        text, last = line.text, line.foot
    else:
        text, last = line.text, line.last_foot
    return RawLine(text, line.top / height, line.foot / height, last / height)


def count_formulas(lines: Sequence[RawLine]) -> int:
    """Formulas whose signs stand above each other (sums, fractions, roots), so that lines of text cannot hold them.

    A formula on one line is text and is not counted. Such a formula is seen as a run of short lines without ordinary
    words, close together, at least one with a sign of mathematics.
    """
    count, signs, pieces = 0, False, 0
    for place, line in enumerate(lines):
        part = (
            line.top is not None
            and len(line.text) <= 80
            and SEPARATOR not in line.text
            and len(_ORDINARY_WORD.findall(line.text)) <= 1
        )
        close = place > 0 and _close(lines[place - 1], line)
        if not (part and close):
            count += signs and pieces > 1
            signs, pieces = False, 0
        if part:
            pieces += 1
            signs |= _MATHS.search(line.text) is not None
    return count + (signs and pieces > 1)


def _close(above: RawLine, below: RawLine) -> bool:
    if above.top is None or above.foot is None or below.top is None or below.foot is None:
        return False
    height = max(above.foot - above.top, below.foot - below.top)
    return abs(below.foot - above.foot) < FORMULA_STEP * height and above.top != below.top
