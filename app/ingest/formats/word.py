"""Word documents (.docx, .docm, .dotx): text in order with headings, numbers, tables, notes and comments.

Pages are those that Word laid out the last time, where the file tells them; otherwise sections under headings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

from lxml import etree

from app.ingest.formats import drawing, tables
from app.ingest.formats.flow import Flow
from app.ingest.formats.numbering import Numbering
from app.ingest.formats.package import Package, attribute, child, local, whole
from app.ingest.formats.pages import Pages
from app.ingest.formats.word_styles import Style, list_of, styles

_BREAK = "\f"
"""Marks the place of a page break inside collected text; a form feed never comes from the file itself."""
_BOXES = {"f0fe": "☒", "f0a8": "☐", "f06f": "☐", "f0fc": "✓", "f0fb": "✗", "f0b7": "•", "f0e0": "→"}
_PASSED_THROUGH = frozenset(
    {"ins", "moveTo", "customXml", "smartTag", "sdt", "sdtContent", "hyperlink", "fldSimple", "dir", "bdo"}
)
_DELETED = frozenset({"del", "moveFrom"})


def read(file: BinaryIO, name: str, out: Pages, password: str | None = None) -> None:
    package = Package(file, name)
    main = package.main_part()
    body = child(package.xml(main), "body")
    if body is None:
        return
    numbered = next(body.iter("{*}lastRenderedPageBreak"), None) is not None
    flow = Flow(out, numbered=numbered)
    reader = _Reader(package, main, flow, out)
    reader.blocks(body)
    reader.finish()
    flow.close()
    if any(part.endswith("vbaproject.bin") for part in map(str.lower, package.names())):
        out.warn("It holds macros, which were neither run nor read.")


class _Reader:
    """One pass through the body."""

    def __init__(self, package: Package, main: str, flow: Flow, out: Pages) -> None:
        self._package, self._main, self._flow, self._out = package, main, flow, out
        self._relations = {key: (kind, part) for key, kind, part in package.relations(main)}
        numbering = package.related(main, "numbering")
        self._numbering = Numbering(package.xml(numbering[0]) if numbering else None)
        found = package.related(main, "styles")
        self._styles = dict(styles(package.xml(found[0]))) if found else {}
        self._notes = {kind: self._note_texts(kind) for kind in ("footnote", "endnote")}
        self._endnotes: list[str] = []
        self._boxes: list[etree._Element] = []
        self._charts: list[str] = []
        self._hidden = self._objects = 0
        self._after_break = False  # nothing came since a page break that the author made

    def blocks(self, parent: etree._Element) -> None:
        for element in parent:
            match local(element):
                case "p":
                    self._paragraph(element)
                case "tbl":
                    self._table(element)
                case "altChunk":
                    self._out.warn("A part that is embedded as a file of its own was not read.")
                case kind if kind in _PASSED_THROUGH:
                    self.blocks(element)

    def finish(self) -> None:
        """What stands apart from the running text: endnotes, comments, headers and footers."""
        if self._endnotes:
            self._flow.section("Endnotes")
            for text in self._endnotes:
                self._flow.text(text)
        for title, lines in (("Comments", self._comments()), ("Headers and footers", self._margins())):
            if lines:
                self._flow.section(title)
                for line in lines:
                    self._flow.text(line)
        if self._hidden:
            self._out.warn("Text that the author made invisible was left out.")
        if self._objects:
            self._out.warn(f"{self._objects} embedded objects were not read.")

    def _paragraph(self, element: etree._Element) -> None:
        text = self._inline(element)
        level, number = self._level_and_number(element, bool(text.strip()))
        boxes, self._boxes = self._boxes, []
        charts, self._charts = self._charts, []
        first = True
        for place, part in enumerate(text.split(_BREAK)):
            if place:
                self._flow.page_break()
            if not part.strip():
                continue
            if first and number:
                part = f"{number} {part.lstrip()}"
            if level is not None and first:
                self._flow.heading(part, level)
            else:
                self._flow.text(part)
            first = False
        for box in boxes:
            self.blocks(box)
        for part in charts:
            self._flow.table(drawing.chart(self._package, part, self._out.warn))

    def _level_and_number(self, element: etree._Element, counts: bool) -> tuple[int | None, str]:
        """(heading level from 0 or None, number in front of the text)."""
        properties = child(element, "pPr")
        chain = list(self._style_chain(properties))
        level = next((style.outline for style in chain if style.outline is not None), None)
        if level is None and chain and chain[0].name.casefold() == "title":
            level = 0
        list_id = next((style.list_id for style in chain if style.list_id), "")
        list_level = next((style.list_level for style in chain if style.list_id), 0)
        own = list_of(properties)
        if own is not None:
            list_id, list_level = own[0] or list_id, own[1]
        direct = child(properties, "outlineLvl")
        if direct is not None:
            level = whole(attribute(direct, "val"), 9)
        if level is not None and level > 8:
            level = None
        return level, self._numbering.next(list_id, list_level) if counts and list_id not in ("", "0") else ""

    def _style_chain(self, properties: etree._Element | None) -> Iterator[Style]:
        link = child(properties, "pStyle")
        name = attribute(link, "val") if link is not None else ""
        for _ in range(20):
            style = self._styles.get(name)
            if style is None:
                return
            yield style
            name = style.based_on

    def _inline(self, element: etree._Element) -> str:
        parts: list[str] = []
        self._runs(element, parts)
        return "".join(parts)

    def _runs(self, element: etree._Element, parts: list[str]) -> None:
        for inner in element:
            match local(inner):
                case "r":
                    self._run(inner, parts)
                case "oMath" | "oMathPara":
                    parts.append(drawing.formula(inner))
                case "AlternateContent":
                    self._alternative(inner, lambda chosen: self._runs(chosen, parts))
                case kind if kind in _DELETED:
                    self._out.warn("Text that was deleted with changes tracked was left out.")
                case kind if kind in _PASSED_THROUGH:
                    self._runs(inner, parts)

    def _run(self, run: etree._Element, parts: list[str]) -> None:
        properties = child(run, "rPr")
        if _on(child(properties, "vanish")):
            self._hidden += any(text.strip() for text in run.itertext())
            return
        position = child(properties, "vertAlign")
        is_raised = position is not None and attribute(position, "val") == "superscript"
        self._pieces(run, parts, is_raised)

    def _pieces(self, run: etree._Element, parts: list[str], is_raised: bool) -> None:
        for piece in run:
            match local(piece):
                case "t":
                    text = (piece.text or "").replace(_BREAK, " ")
                    if text:
                        self._after_break = False
                    parts.append(drawing.raised("".join(parts[-3:]), text) if is_raised else text)
                case "tab" | "ptab":
                    parts.append("\t")
                case "br":
                    is_page = attribute(piece, "type") == "page"
                    parts.append(_BREAK if is_page else "\n")
                    self._after_break |= is_page
                case "lastRenderedPageBreak":
                    if not self._after_break:  # else it is the break that the author made, told a second time
                        parts.append(_BREAK)
                    self._after_break = False
                case "cr":
                    parts.append("\n")
                case "noBreakHyphen":
                    parts.append("-")
                case "sym":
                    parts.append(_symbol(attribute(piece, "char")))
                case "footnoteReference" | "endnoteReference" as kind:
                    self._reference(kind.removesuffix("Reference"), attribute(piece, "id"), parts)
                case "drawing" | "pict":
                    self._drawing(piece, parts)
                case "object":
                    self._objects += 1
                case "ruby":
                    base = child(piece, "rubyBase")
                    if base is not None:
                        self._runs(base, parts)
                case "AlternateContent":
                    self._alternative(piece, lambda chosen: self._pieces(chosen, parts, is_raised))

    def _alternative(self, element: etree._Element, take: Callable[[etree._Element], None]) -> None:
        """The same content for newer and older programs: the first is enough."""
        chosen = child(element, "Choice")
        chosen = child(element, "Fallback") if chosen is None else chosen
        if chosen is not None:
            take(chosen)

    def _drawing(self, element: etree._Element, parts: list[str]) -> None:
        self._boxes.extend(box for box in element.iter("{*}txbxContent") if not _is_inside_box(box, element))
        for inner in element.iter("{*}chart"):
            kind, part = self._relations.get(attribute(inner, "id"), ("", ""))
            if kind == "chart" and part in self._package:
                self._charts.append(part)
        for inner in element.iter("{*}relIds"):
            kind, part = self._relations.get(attribute(inner, "dm"), ("", ""))
            if part in self._package:
                parts.append("\n" + "\n".join(drawing.diagram(self._package, part)))
        if next(element.iter("{*}blip", "{*}imagedata"), None) is None:
            return
        described = next((attribute(inner, "descr") for inner in element.iter("{*}docPr") if inner.get("descr")), "")
        if text := drawing.alternative_text(described):
            parts.append(text)
        else:
            self._out.pictures += 1

    def _reference(self, kind: str, key: str, parts: list[str]) -> None:
        text = self._notes[kind].get(key)
        if text is None:
            return
        mark = f"[{text[0]}]" if kind == "footnote" else f"[e{text[0]}]"
        parts.append(mark)
        if kind == "footnote":
            self._flow.note(f"{mark} {text[1]}")
        else:
            self._endnotes.append(f"{mark} {text[1]}")

    def _note_texts(self, kind: str) -> dict[str, tuple[int, str]]:
        """{id: (number, text)}; separators have a type, notes have none."""
        found: dict[str, tuple[int, str]] = {}
        for part in self._package.related(self._main, kind + "s"):
            for element in self._package.xml(part):
                if local(element) == kind and not attribute(element, "type"):
                    found[attribute(element, "id")] = (len(found) + 1, _plain_text(element))
        return found

    def _comments(self) -> list[str]:
        found = []
        for part in self._package.related(self._main, "comments"):
            for element in self._package.xml(part):
                if local(element) == "comment" and (text := _plain_text(element)):
                    found.append(f"{attribute(element, 'author') or 'Somebody'}: {text}")
        return found

    def _margins(self) -> list[str]:
        """Each different header and footer once; a bare page number is none."""
        found: dict[str, None] = {}
        for kind in ("header", "footer"):
            for part in self._package.related(self._main, kind):
                text = _plain_text(self._package.xml(part))
                if any(char.isalpha() for char in text.casefold().replace("page", "")):
                    found[text] = None
        return list(found)

    def _table(self, element: etree._Element) -> None:
        rows: list[list[tables.Cell]] = []
        header_rows = 0
        for row in _rows(element):
            texts, breaks = [], False
            properties = child(row, "trPr")
            skipped = child(properties, "gridBefore")
            if skipped is not None:
                texts.append(tables.Cell("", _span(skipped)))
            for cell in _cells(row):
                text, broken = self._cell(cell)
                breaks |= broken
                texts.append(_cell_of(cell, text))
            if breaks and rows:
                self._flow.table(tables.grid(rows, self._out.warn), max(1, header_rows))
                rows = []
                self._flow.page_break()
            if _on(child(properties, "tblHeader")) and header_rows == len(rows):
                header_rows += 1
            rows.append(texts)
        self._flow.table(tables.grid(rows, self._out.warn), max(1, header_rows))

    def _cell(self, cell: etree._Element) -> tuple[str, bool]:
        """A cell's text and whether a page ends in it; tables inside are flattened."""
        texts = []
        for paragraph in _paragraphs(cell):
            text = self._inline(paragraph)
            _, number = self._level_and_number(paragraph, bool(text.strip()))
            texts.append(f"{number} {text.strip()}" if number else text)
            for box in self._boxes:
                texts.append(_plain_text(box))
            self._boxes = []
        joined = "\n".join(texts)
        return joined.replace(_BREAK, " "), _BREAK in joined


def _rows(table: etree._Element) -> Iterator[etree._Element]:
    for element in table:
        if local(element) == "tr":
            if child(element, "trPr", "del") is None:
                yield element
        elif local(element) in _PASSED_THROUGH:
            yield from _rows(element)


def _cells(row: etree._Element) -> Iterator[etree._Element]:
    for element in row:
        if local(element) == "tc":
            yield element
        elif local(element) in _PASSED_THROUGH:
            yield from _cells(element)


def _paragraphs(parent: etree._Element) -> Iterator[etree._Element]:
    """All paragraphs inside, those of inner tables too, without those of text boxes."""
    for element in parent:
        if local(element) == "p":
            yield element
        elif local(element) in _PASSED_THROUGH or local(element) in ("tbl", "tr", "tc"):
            yield from _paragraphs(element)


def _cell_of(cell: etree._Element, text: str) -> tables.Cell:
    properties = child(cell, "tcPr")
    across, merge = child(properties, "gridSpan"), child(properties, "vMerge")
    goes_on = merge is not None and attribute(merge, "val", "continue") == "continue"
    return tables.Cell(text, _span(across) if across is not None else 1, goes_on=goes_on)


def _span(element: etree._Element) -> int:
    return min(whole(attribute(element, "val"), 1), tables.MOST_COLUMNS)


def _is_inside_box(box: etree._Element, outer: etree._Element) -> bool:
    """Boxes in boxes are met when the outer one is read."""
    for above in box.iterancestors():
        if above is outer:
            return False
        if local(above) == "txbxContent":
            return True
    return False


def _on(element: etree._Element | None) -> bool:
    """A property that is present is on, unless it says that it is not."""
    return element is not None and attribute(element, "val", "1") not in ("0", "false", "off")


def _symbol(code: str) -> str:
    low = code.lower()
    if low in _BOXES:
        return _BOXES[low]
    try:
        char = chr(int(code, 16))
    except (ValueError, OverflowError):
        return ""
    return "" if "\ue000" <= char <= "\uf8ff" else char


def _plain_text(element: etree._Element) -> str:
    lines = []
    for paragraph in element.iter("{*}p"):
        parts = [
            inner.text or "" if local(inner) == "t" else "\t"
            for inner in paragraph.iter("{*}t", "{*}tab")
            if not any(local(above) in ("tabs", "del", "moveFrom") for above in inner.iterancestors())
        ]
        if text := "".join(parts).strip():
            lines.append(text)
    return "\n".join(lines)
