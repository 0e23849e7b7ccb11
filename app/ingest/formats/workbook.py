"""Excel workbooks (.xlsx, .xlsm, .xltx): rows stay rows, values as the sheet shows them, parts of about a page.

Read as a stream, since a sheet's XML is many times larger than its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import BinaryIO

from lxml import etree

from app.errors import BadInput
from app.ingest.formats import drawing
from app.ingest.formats.number_format import BUILT_IN, formatter, general
from app.ingest.formats.package import Package, attribute, child, local, whole
from app.ingest.formats.pages import LimitReached, Pages
from app.ingest.formats.sheet import Sheet

MOST_COLUMN = 16_384


@dataclass(slots=True)
class _Shared:
    """strings and formats that all sheets use; formats by the number of a cell's style."""

    strings: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    from_1904: bool = False


def read(file: BinaryIO, name: str, out: Pages, password: str | None = None) -> None:
    package = Package(file, name)
    main = package.main_part()
    if main.lower().endswith(".bin"):
        raise BadInput(f"{name} is a binary Excel workbook (.xlsb).", "Save it as .xlsx and open that.")
    root = package.xml(main)
    properties = child(root, "workbookPr")
    from_1904 = properties is not None and attribute(properties, "date1904", "0") in ("1", "true")
    strings = [text for part in package.related(main, "sharedStrings") for text in _strings(package, part)]
    formats = [code for part in package.related(main, "styles") for code in _formats(package.xml(part))]
    shared = _Shared(strings, formats, from_1904)
    parts = {key: (kind, part) for key, kind, part in package.relations(main)}
    sheets = child(root, "sheets")
    for entry in sheets if sheets is not None else ():
        kind, part = parts.get(_relation(entry), ("", ""))
        title = attribute(entry, "name") or "?"
        if kind != "worksheet" or part not in package:
            if kind == "chartsheet" and part in package:
                _charts(package, part, title, out)
            else:
                out.warn(f'Sheet "{title}" was not read: {kind or "it is missing in the file"}.')
            continue
        if attribute(entry, "state", "visible") != "visible":
            out.warn(f'Sheet "{title}" is hidden; it was read as well.')
        _sheet(package, part, title, shared, out)
    if any(part.lower().endswith("vbaproject.bin") for part in package.names()):
        out.warn("It holds macros, which were neither run nor read.")


def _relation(element: etree._Element) -> str:
    return next((value for key, value in element.attrib.items() if key.endswith("relationships}id")), "")


def _strings(package: Package, part: str) -> Iterator[str]:
    for element in package.stream(part, ("si",)):
        yield _rich_text(element)


def _rich_text(element: etree._Element) -> str:
    """Text with its formats dropped; how it is pronounced (rPh) is no part of it."""
    text = ""
    for inner in element:
        match local(inner):
            case "t":
                text += inner.text or ""
            case "r":
                run = child(inner, "t")
                properties = child(inner, "rPr", "vertAlign")
                shown = run.text or "" if run is not None else ""
                is_raised = properties is not None and attribute(properties, "val") == "superscript"
                text += drawing.raised(text, shown) if is_raised else shown
    return text


def _formats(root: etree._Element) -> Iterator[str]:
    own = {
        attribute(element, "numFmtId"): attribute(element, "formatCode")
        for element in root.iter("{*}numFmt")
        if local(element.getparent()) == "numFmts"  # type: ignore[arg-type]
    }
    cells = child(root, "cellXfs")
    for element in cells if cells is not None else ():
        number = attribute(element, "numFmtId", "0")
        yield own.get(number) or BUILT_IN.get(whole(number), "General")


def _sheet(package: Package, part: str, title: str, shared: _Shared, out: Pages) -> None:
    sheet = Sheet(f"Sheet {title}", title, out)
    uncomputed = 0
    row_number = 0
    full = ""
    try:
        for element in package.stream(part, ("row", "mergeCell")):
            if local(element) == "mergeCell":
                area = _area(attribute(element, "ref"))
                if area is not None:
                    sheet.merge(*area)
                continue
            row_number = whole(attribute(element, "r"), row_number + 1)
            cells, missing = _row(element, shared)
            uncomputed += missing
            sheet.row(row_number, cells)
    except LimitReached as limit:
        full = limit.reason
    sheet.close(_extras(package, part, out))
    if uncomputed:
        out.warn(
            f'Sheet "{title}" has {uncomputed:,} formulas whose results are not in the file; '
            "the formulas are shown. Open and save it in a spreadsheet program to see the results."
        )
    if full:
        raise LimitReached(full)


def _row(row: etree._Element, shared: _Shared) -> tuple[dict[int, str], int]:
    """({column: text}, formulas without a result). Tags are compared as a whole: this runs for every cell."""
    space = str(row.tag)[: -len("row")]
    cell_tag, value_tag, formula_tag, inline_tag = space + "c", space + "v", space + "f", space + "is"
    cells: dict[int, str] = {}
    column = uncomputed = 0
    for cell in row.iterchildren(cell_tag):
        column = _column(cell.get("r")) or column + 1
        value = formula = None
        inline = ""
        for inner in cell:
            if inner.tag == value_tag:
                value = inner.text
            elif inner.tag == formula_tag:
                formula = inner.text
            elif inner.tag == inline_tag:
                inline = _rich_text(inner)
        text, computed = (inline, True) if inline else _value(cell, value, formula, shared)
        uncomputed += not computed
        if text and column <= MOST_COLUMN:
            cells[column] = text
    return cells, uncomputed


def _value(cell: etree._Element, value: str | None, formula: str | None, shared: _Shared) -> tuple[str, bool]:
    """(what the cell shows, whether its formula's result is known)."""
    kind = cell.get("t", "n")
    if value is None:
        return (f"={formula}", False) if formula else ("", True)
    match kind:
        case "s":
            place = whole(value, -1)
            return (shared.strings[place] if 0 <= place < len(shared.strings) else ""), True
        case "b":
            return "TRUE" if value == "1" else "FALSE", True
        case "str" | "e":
            return value, True
        case "d":
            return value.removesuffix("T00:00:00").replace("T", " "), True
    try:
        number = float(value)
    except ValueError:
        return value, True
    if number != number or number in (float("inf"), float("-inf")):
        return value, True
    place = whole(cell.get("s", "0"))
    if place < len(shared.formats) and (code := shared.formats[place]) != "General":
        return _shown(code, shared.from_1904, number), True
    return general(number), True


@lru_cache(maxsize=50_000)
def _shown(code: str, from_1904: bool, number: float) -> str:
    """Columns hold the same dates and prices again and again."""
    return formatter(code, from_1904)(number)


def _column(reference: str | None) -> int:
    """ "AB12" -> 28; 0 where it is not said."""
    return _column_number((reference or "").rstrip("0123456789"))


@lru_cache(maxsize=20_000)
def _column_number(letters: str) -> int:
    number = 0
    for char in letters:
        if not "A" <= char <= "Z" or number > MOST_COLUMN:
            return 0
        number = 26 * number + ord(char) - 64
    return number


def _area(reference: str) -> tuple[int, int, int, int] | None:
    """ "A1:C3" -> first row, first column, last row, last column."""
    first, _, last = reference.partition(":")
    rows = ["".join(filter(str.isdigit, corner)) for corner in (first, last)]
    if not all(row.isdecimal() and len(row) < 8 for row in rows):
        return None
    return int(rows[0]), _column(first), int(rows[1]), _column(last)


def _extras(package: Package, part: str, out: Pages) -> list[str]:
    """What lies over the cells: comments, text boxes and charts, as lines for the sheet's end."""
    lines = []
    for path in package.related(part, "comments"):
        for element in package.xml(path).iter("{*}comment"):
            body = child(element, "text")
            text = " ".join(_rich_text(body).split()) if body is not None else ""
            if text:
                lines.append(f"Comment on {attribute(element, 'ref')}: {text}")
    for path in package.related(part, "drawing"):
        root = package.xml(path)
        for element in root.iter("{*}txBody"):
            lines += drawing.paragraphs(element)
        for element in root.iter("{*}pic"):
            properties = next(element.iter("{*}cNvPr"), None)
            text = drawing.alternative_text(attribute(properties, "descr") if properties is not None else "")
            lines += [text] if text else []
            out.pictures += not text
        lines += [f"Chart: {name}" for name in _chart_titles(package, path)]
    return lines


def _chart_titles(package: Package, part: str) -> Iterator[str]:
    """A chart on a sheet is drawn from cells that are read anyway."""
    for path in package.related(part, "chart"):
        title = child(package.xml(path), "chart", "title")
        if title is not None and (text := " ".join(drawing.paragraphs(title))):
            yield text


def _charts(package: Package, part: str, title: str, out: Pages) -> None:
    lines = [name for path in package.related(part, "drawing") for name in _chart_titles(package, path)]
    out.warn(f'Sheet "{title}" is a chart; it is drawn from the cells of other sheets.')
    if lines:
        out.add(f"Sheet {title}", "\n".join(f"Chart: {line}" for line in lines))
