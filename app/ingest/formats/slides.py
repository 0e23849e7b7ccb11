"""PowerPoint files (.pptx, .pptm, .ppsx, .potx): one page a slide, its text in order, then the speaker's notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from lxml import etree

from app.ingest.extracted import page_ranges
from app.ingest.formats import drawing, tables
from app.ingest.formats.package import Package, attribute, child, local
from app.ingest.formats.pages import Pages

_REPEATED = frozenset({"sldNum", "dt", "ftr", "hdr"})
_TITLES = frozenset({"title", "ctrTitle"})
_ROW = 228_600
"""Shapes whose tops differ by less (a quarter of an inch, in EMU) stand side by side."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Text of one shape and where it stands, in EMU; None: nobody says where."""

    lines: list[str]
    top: int | None
    left: int
    is_title: bool = False


def read(file: BinaryIO, name: str, out: Pages, password: str | None = None) -> None:
    package = Package(file, name)
    main = package.main_part()
    relations = {key: part for key, _, part in package.relations(main)}
    listed = child(package.xml(main), "sldIdLst")
    only_pictures: list[int] = []
    for number, entry in enumerate(listed if listed is not None else (), 1):
        part = relations.get(_relation(entry), "")
        if part not in package:
            out.add(f"Slide {number}", "")
            out.warn(f"Slide {number} is missing in the file.")
            continue
        slide = _Slide(package, part, out)
        before = out.pictures
        text, title = slide.text()
        hidden = " (hidden)" if slide.is_hidden else ""
        if title:
            out.mark(title, 0)
        if not text and out.pictures > before:
            only_pictures.append(number)
        out.add(f"Slide {number}{hidden}", text)
    if only_pictures:
        slides = page_ranges(only_pictures).replace("page", "slide", 1)
        out.warn(f"{slides[0].upper()}{slides[1:]}: pictures without text.")
    if any(part.lower().endswith("vbaproject.bin") for part in package.names()):
        out.warn("It holds macros, which were neither run nor read.")


def _relation(element: etree._Element) -> str:
    """r:id; an element may have an id of its own, without a namespace."""
    return next((value for key, value in element.attrib.items() if key.endswith("relationships}id")), "")


class _Slide:
    def __init__(self, package: Package, part: str, out: Pages) -> None:
        self._package, self._part, self._out = package, part, out
        self._relations = {key: (kind, target) for key, kind, target in package.relations(part)}
        self._root = package.xml(part)
        self.is_hidden = attribute(self._root, "show", "1") in ("0", "false")
        self._places = self._layout_places()
        self._missed: set[str] = set()

    def text(self) -> tuple[str, str]:
        """(the slide's text, its title)."""
        tree = child(self._root, "cSld", "spTree")
        shapes = list(self._shapes(tree)) if tree is not None else []
        title = next((" ".join(shape.lines) for shape in shapes if shape.is_title), "")
        lines = [line for shape in _in_order(shapes) for line in shape.lines]
        comments = self._comments()
        notes = self._notes()
        for heading, found in (("Comments:", comments), ("Speaker notes:", notes)):
            if found:
                lines += ["", heading, *found]
        if self._missed:
            self._out.warn(f"Not read on slides: {', '.join(sorted(self._missed))}.")
        return "\n".join(lines).strip("\n"), title

    def _shapes(self, parent: etree._Element) -> Iterator[_Shape]:
        for element in parent:
            match local(element):
                case "sp" | "cxnSp":
                    yield from self._text_shape(element)
                case "graphicFrame":
                    yield self._frame(element)
                case "grpSp":
                    inner = list(self._shapes(element))
                    lines = [line for shape in _in_order(inner) for line in shape.lines]
                    yield _Shape(lines, *self._place(element), any(shape.is_title for shape in inner))
                case "pic":
                    yield self._picture(element)
                case "AlternateContent":
                    chosen = child(element, "Choice")
                    chosen = child(element, "Fallback") if chosen is None else chosen
                    if chosen is not None:
                        yield from self._shapes(chosen)
                case "contentPart":
                    self._missed.add("handwriting")

    def _text_shape(self, element: etree._Element) -> Iterator[_Shape]:
        body = child(element, "txBody")
        kind = _placeholder(element)[0]
        if body is not None and kind not in _REPEATED and (lines := drawing.paragraphs(body)):
            yield _Shape(lines, *self._place(element), kind in _TITLES)

    def _frame(self, element: etree._Element) -> _Shape:
        lines: list[str] = []
        table = next(element.iter("{*}tbl"), None)
        if table is not None:
            lines += tables.lines(tables.grid(_table_rows(table), self._out.warn))
        for inner in element.iter("{*}chart"):
            kind, part = self._relations.get(_relation(inner), ("", ""))
            if kind == "chart" and part in self._package:
                lines += tables.lines(drawing.chart(self._package, part, self._out.warn))
        for inner in element.iter("{*}relIds"):
            part = self._relations.get(attribute(inner, "dm"), ("", ""))[1]
            if part in self._package:
                lines += drawing.diagram(self._package, part)
        if next(element.iter("{*}oleObj"), None) is not None:
            self._missed.add("embedded objects")
        return _Shape(lines, *self._place(element))

    def _picture(self, element: etree._Element) -> _Shape:
        properties = next(element.iter("{*}cNvPr"), None)
        described = attribute(properties, "descr") if properties is not None else ""
        if next(element.iter("{*}videoFile", "{*}audioFile"), None) is not None:
            self._missed.add("sound and video")
            return _Shape([], None, 0)
        text = drawing.alternative_text(described)
        if not text:
            self._out.pictures += 1
        return _Shape([text] if text else [], *self._place(element))

    def _place(self, element: etree._Element) -> tuple[int | None, int]:
        """(top, left); a placeholder without its own stands where the layout puts it."""
        found = next(element.iter("{*}off"), None)
        if found is not None:
            return _number(attribute(found, "y")), _number(attribute(found, "x")) or 0
        kind, index = _placeholder(element)
        for key in (("", index), (kind, "")):
            if any(key) and key in self._places:
                return self._places[key]
        return None, 0

    def _layout_places(self) -> dict[tuple[str, str], tuple[int | None, int]]:
        """Where the layout, and behind it the master, puts each placeholder: by index and by type."""
        places: dict[tuple[str, str], tuple[int | None, int]] = {}
        part = self._part
        for kind in ("slideLayout", "slideMaster"):
            found = self._package.related(part, kind)
            if not found:
                break
            part = found[0]
            for element in self._package.xml(part).iter("{*}sp"):
                offset = next(element.iter("{*}off"), None)
                if offset is None:
                    continue
                place = (_number(attribute(offset, "y")), _number(attribute(offset, "x")) or 0)
                name, index = _placeholder(element)
                for key in (("", index), (name, "")):
                    if any(key):
                        places.setdefault(key, place)
        return places

    def _notes(self) -> list[str]:
        found = []
        for part in self._package.related(self._part, "notesSlide"):
            for element in self._package.xml(part).iter("{*}sp"):
                body = child(element, "txBody")
                if body is not None and _placeholder(element)[0] not in {*_REPEATED, "sldImg"}:
                    found += drawing.paragraphs(body)
        return found

    def _comments(self) -> list[str]:
        found = []
        for part in self._package.related(self._part, "comments"):
            for element in self._package.xml(part).iter("{*}cm"):
                texts = [inner.text for inner in element.iter("{*}text", "{*}t") if inner.text and inner.text.strip()]
                if texts:
                    found.append(" ".join(texts))
        return found


def _in_order(shapes: list[_Shape]) -> list[_Shape]:
    """The title, then from top to bottom and left to right; shapes without a place stay behind the one before them."""
    keyed: list[tuple[tuple[bool, int, int], _Shape]] = []
    top, left = 0, 0
    for shape in shapes:
        if shape.top is not None:
            top, left = shape.top, shape.left
        keyed.append(((not shape.is_title, top, left), shape))
    keyed.sort(key=lambda entry: entry[0])
    ordered: list[tuple[tuple[bool, int, int], _Shape]] = []
    row_top: int | None = None
    for (later, top, left), shape in keyed:
        if row_top is None or top - row_top > _ROW:
            row_top = top
        ordered.append(((later, row_top, left), shape))
    return [shape for _, shape in sorted(ordered, key=lambda entry: entry[0])]


def _placeholder(element: etree._Element) -> tuple[str, str]:
    """(type, index) of a placeholder; ("", "") for other shapes."""
    properties = child(element, "nvSpPr", "nvPr")
    if properties is None:
        properties = child(element, "nvGraphicFramePr", "nvPr")
    if properties is None:
        properties = child(element, "nvPicPr", "nvPr")
    found = child(properties, "ph")
    return (attribute(found, "type", "body"), attribute(found, "idx")) if found is not None else ("", "")


def _table_rows(table: etree._Element) -> Iterator[list[tables.Cell]]:
    for row in table.iter("{*}tr"):
        cells: list[tables.Cell] = []
        for cell in row:
            if local(cell) != "tc" or attribute(cell, "hMerge", "0") in ("1", "true"):
                continue  # the cell that covers it says how many columns it takes
            across = _number(attribute(cell, "gridSpan", "1")) or 1
            goes_on = attribute(cell, "vMerge", "0") in ("1", "true")
            cells.append(tables.Cell("\n".join(drawing.paragraphs(cell)), across, goes_on=goes_on))
        yield cells


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
