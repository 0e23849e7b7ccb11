"""LibreOffice files: texts (.odt), sheets (.ods) and slides (.odp). They keep the shown text of every cell."""

from __future__ import annotations

from typing import BinaryIO

from lxml import etree

from app.errors import BadInput
from app.ingest.formats import drawing, tables
from app.ingest.formats.flow import Flow
from app.ingest.formats.package import Package, attribute, child, damaged, local, whole
from app.ingest.formats.pages import LimitReached, Pages
from app.ingest.formats.sheet import Sheet

MOST_REPEATED = 1_000
MOST_LEVEL = 10
_REPEATED = f"Cells that say the same more than {MOST_REPEATED:,} times were read so many times."
_PASSED_THROUGH = frozenset({"section", "index-body", "table-of-content", "frame", "text-box", "g"})


def read(file: BinaryIO, name: str, out: Pages, password: str | None = None) -> None:
    package = Package(file, name)
    if "META-INF/manifest.xml" in package:
        manifest = package.xml("META-INF/manifest.xml", doctype=True)
        if next(manifest.iter("{*}encryption-data"), None) is not None:
            raise BadInput(f"{name} is protected by a password.", "Save it without one and open that file.")
    if "content.xml" not in package:
        raise damaged(name)
    body = child(package.xml("content.xml"), "body")
    if body is None:
        return
    for part in body:
        match local(part):
            case "spreadsheet":
                for table in part.iter("{*}table"):
                    _sheet(table, out)
            case "presentation" | "drawing":
                _slides(part, out)
            case "text":
                _text(part, out)


def _text(body: etree._Element, out: Pages) -> None:
    flow = Flow(out, numbered=next(body.iter("{*}soft-page-break"), None) is not None)
    _Blocks(flow, out).read(body)
    flow.close()


class _Blocks:
    """Paragraphs, lists and tables into a Flow."""

    def __init__(self, flow: Flow, out: Pages) -> None:
        self._flow, self._out = flow, out
        self._comments: list[str] = []
        self._frames: list[etree._Element] = []

    def read(self, body: etree._Element) -> None:
        self._blocks(body, 0)
        if self._comments:
            self._flow.section("Comments")
            for comment in self._comments:
                self._flow.text(comment)

    def _blocks(self, parent: etree._Element, depth: int) -> None:
        for element in parent:
            match local(element):
                case "h":
                    level = whole(attribute(element, "outline-level"), 1)
                    self._paragraph(element, "", min(max(level, 1), MOST_LEVEL) - 1)
                case "p":
                    self._paragraph(element, "")
                case "list":
                    self._list(element, depth)
                case "table":
                    self._flow.table(tables.grid(self._rows(element), self._out.warn), _header_rows(element))
                case "soft-page-break":
                    self._flow.page_break()
                case "tracked-changes":
                    if next(element.iter("{*}deletion"), None) is not None:
                        self._out.warn("Text that was deleted with changes tracked was left out.")
                case kind if kind in _PASSED_THROUGH:
                    self._blocks(element, depth)

    def _list(self, element: etree._Element, depth: int) -> None:
        """Items get a dash: their numbers are made by the program that shows them."""
        for item in element:
            first = True
            for part in item:
                match local(part):
                    case "p" | "h":
                        self._paragraph(part, "  " * depth + ("- " if first else "  "))
                        first = False
                    case "list":
                        self._list(part, depth + 1)
                    case "soft-page-break":
                        self._flow.page_break()

    def _paragraph(self, element: etree._Element, before: str, level: int | None = None) -> None:
        parts: list[str] = []
        self._inline(element, parts)
        frames, self._frames = self._frames, []
        for place, text in enumerate("".join(parts).split("\f")):
            if place:
                self._flow.page_break()
            if level is not None and not place:
                self._flow.heading(text, level)
            elif text.strip():
                self._flow.text(before + text)
        for frame in frames:
            self._frame(frame)

    def _inline(self, element: etree._Element, parts: list[str]) -> None:
        parts.append(element.text or "")
        for inner in element:
            match local(inner):
                case "s":
                    parts.append(" " * min(whole(attribute(inner, "c"), 1), 100))
                case "tab":
                    parts.append("\t")
                case "line-break":
                    parts.append("\n")
                case "soft-page-break":
                    parts.append("\f")
                case "note":
                    mark, body = child(inner, "note-citation"), child(inner, "note-body")
                    shown = f"[{_plain(mark)}]" if mark is not None else "[*]"
                    parts.append(shown)
                    if body is not None:
                        self._flow.note(f"{shown} {_plain(body)}")
                case "annotation":
                    who = next((e.text for e in inner if local(e) == "creator" and e.text), "Somebody")
                    said = " ".join(_plain(e) for e in inner if local(e) in ("p", "list"))
                    self._comments.append(f"{who}: {said}")
                case "frame" | "custom-shape" | "g":
                    self._frames.append(inner)
                case "ruby-text" | "annotation-end" | "bookmark" | "change" | "change-start" | "change-end":
                    pass
                case _:
                    self._inline(inner, parts)
            parts.append(inner.tail or "")

    def _frame(self, frame: etree._Element) -> None:
        self._out.pictures += _pictures(frame, self._flow)
        self._blocks(frame, 0)

    def _rows(self, table: etree._Element) -> list[list[tables.Cell]]:
        rows = []
        for row in _own(table, "table-row"):
            cells = []
            for cell in row:
                if local(cell) == "table-cell":
                    text = "\n".join(_cell_lines(cell))
                    self._out.pictures += sum(1 for _ in cell.iter("{*}image"))
                    across, down = _count(cell, "number-columns-spanned"), _count(cell, "number-rows-spanned")
                    repeated = _count(cell, "number-columns-repeated")
                    cells += [tables.Cell(text, across, down)] * repeated
            filled = any(cell.text for cell in cells)
            repeated = _count(row, "number-rows-repeated")
            if filled and repeated > MOST_REPEATED:
                self._out.warn(_REPEATED)
            rows += [cells] * (min(repeated, MOST_REPEATED) if filled else 1)
        return rows


def _own(table: etree._Element, name: str) -> list[etree._Element]:
    """Rows of this table, in row groups too, not those of tables inside it."""
    return [e for e in table.iter("{*}" + name) if next(e.iterancestors("{*}table"), None) is table]


def _header_rows(table: etree._Element) -> int:
    return sum(1 for row in _own(table, "table-row") if local(row.getparent()) == "table-header-rows") or 1  # type: ignore[arg-type]


def _sheet(table: etree._Element, out: Pages) -> None:
    name = attribute(table, "name") or "?"
    sheet = Sheet(f"Sheet {name}", name, out)
    number, full = 0, ""
    try:
        for row in _own(table, "table-row"):
            repeated = _count(row, "number-rows-repeated", 1 << 21)
            cells: dict[int, str] = {}
            column = 0
            for cell in row:
                if local(cell) not in ("table-cell", "covered-table-cell"):
                    continue
                times = _count(cell, "number-columns-repeated", 1 << 15)
                text = "\n".join(_cell_lines(cell))
                if text:
                    if times > MOST_REPEATED:
                        out.warn(_REPEATED)
                    for place in range(min(times, MOST_REPEATED)):
                        cells[column + place + 1] = text
                    down = _count(cell, "number-rows-spanned", 1 << 21)
                    if down > 1:
                        sheet.merge(number + 1, column + 1, number + down, column + 1)
                column += times
            if cells and repeated > MOST_REPEATED:
                out.warn(_REPEATED)
            for place in range(min(repeated, MOST_REPEATED) if cells else 0):
                sheet.row(number + place + 1, cells)
            number += repeated
    except LimitReached as limit:
        full = limit.reason
    notes = [f"Comment: {_plain(note)}" for note in table.iter("{*}annotation")]
    out.pictures += sum(1 for _ in table.iter("{*}image"))
    sheet.close(notes)
    if full:
        raise LimitReached(full)


def _slides(body: etree._Element, out: Pages) -> None:
    number = 0
    for page in body:
        if local(page) != "page":
            continue
        number += 1
        lines: list[str] = []
        notes: list[str] = []
        for element in page:
            if local(element) == "notes":
                notes = _lines(element)
                continue
            table = next(element.iter("{*}table"), None)
            if table is not None:
                rows = [[tables.Cell("\n".join(_cell_lines(c))) for c in row] for row in _own(table, "table-row")]
                lines += tables.lines(tables.grid(rows, out.warn))
                continue
            lines += _lines(element)
            found = list(element.iter("{*}image"))
            described = _description(element) if found else ""
            lines += [described] if described else []
            out.pictures += len(found) if not described else 0
        if lines:
            out.mark(lines[0], 0)
        out.add(f"Slide {number}", "\n".join([*lines, *(["", "Speaker notes:", *notes] if notes else [])]))


def _pictures(frame: etree._Element, flow: Flow) -> int:
    """How many pictures of a frame have no text that stands for them."""
    images = [e for e in frame if local(e) == "image"]
    if not images:
        return 0
    described = _description(frame)
    if described:
        flow.text(described)
    return 0 if described else 1


def _description(frame: etree._Element) -> str:
    found = next((e.text for name in ("desc", "title") for e in frame.iter("{*}" + name) if e.text), "")
    return drawing.alternative_text(found or "")


def _lines(element: etree._Element) -> list[str]:
    return [text for paragraph in element.iter("{*}p", "{*}h") if (text := _plain(paragraph).strip())]


def _cell_lines(cell: etree._Element) -> list[str]:
    """Paragraphs of a cell, without comments on it."""
    return [
        _plain(e)
        for e in cell.iter("{*}p", "{*}h")
        if not any(local(above) == "annotation" for above in e.iterancestors())
    ]


def _plain(element: etree._Element) -> str:
    parts: list[str] = []

    def walk(inner: etree._Element) -> None:
        match local(inner):
            case "s":
                parts.append(" ")
            case "tab":
                parts.append("\t")
            case "line-break":
                parts.append("\n")
            case "annotation" | "note" if inner is not element:
                return
        parts.append(inner.text or "")
        for part in inner:
            walk(part)
            parts.append(part.tail or "")

    walk(element)
    return "".join(parts).strip()


def _count(element: etree._Element, name: str, most: int = tables.MOST_COLUMNS) -> int:
    value = attribute(element, name, "1")
    return min(max(1, int(value)), most) if value.isdecimal() and len(value) < 9 else 1
