"""What a PDF page draws besides text: rules (for tables), pictures, and how many of them there are."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import pypdfium2
import pypdfium2.raw as pdfium

from app.ingest.glyphs import Frame

OBJECTS_LOOKED_AT = 4_000
SEGMENTS_LOOKED_AT = 400
FORM_DEPTH = 3
THIN = 2.5  # points: a rule is no thicker
SHORTEST = 4.0  # and no shorter
PICTURE = 24.0  # smaller pictures are ornaments
DRAWING_PARTS = 12  # so many strokes close together are a drawing
DRAWING = 40.0
LETTER_STROKES = 100


@dataclass(frozen=True, slots=True)
class Rule:
    """A straight line along the page: at `place` (x if upright, else y) from `start` to `end`, in points as seen."""

    upright: bool
    place: float
    start: float
    end: float


Box = tuple[float, float, float, float]  # left, top, right, foot


@dataclass(frozen=True, slots=True)
class Graphics:
    """rules: for tables. pictures: places of pictures and drawings. strokes: paths of any kind."""

    rules: tuple[Rule, ...] = ()
    pictures: tuple[Box, ...] = ()
    images: int = 0
    strokes: int = 0

    @property
    def may_hold_letters(self) -> bool:
        """Whether a page without text shows something: a picture, or strokes that may be letters drawn as outlines."""
        return self.images > 0 or self.strokes >= LETTER_STROKES


def read_graphics(page: pypdfium2.PdfPage, frame: Frame) -> Graphics:
    rules: list[Rule] = []
    images: list[Box] = []
    parts: list[Box] = []
    strokes = 0
    for kind, box, thing, whole in _objects(page):
        if kind == pdfium.FPDF_PAGEOBJ_IMAGE:
            thin = _rules(frame, box, None)  # some writers draw rules as pictures
            rules.extend(thin)
            if not thin:
                images.append(_seen(frame, box))
        elif kind == pdfium.FPDF_PAGEOBJ_SHADING:
            parts.append(_seen(frame, box))
        else:
            strokes += 1
            found = _rules(frame, box, thing if whole else None)
            rules.extend(found)
            if not found:
                parts.append(_seen(frame, box))
    width, height = frame.size
    page_area = width * height
    shown = [box for box in _joined(images, 2.0) if min(_sides(box)) >= PICTURE]
    # a filled box behind the text is no drawing
    small = [box for box in parts if _area(box) < 0.5 * page_area]
    drawings = [
        box
        for box, members in _clusters(small, 12.0)
        if members >= DRAWING_PARTS and min(_sides(box)) >= DRAWING and not any(_overlap(box, other) for other in shown)
    ]
    return Graphics(tuple(rules), (*shown, *drawings), len(images), strokes)


def _objects(page: pypdfium2.PdfPage) -> Iterator[tuple[int, Box, object, bool]]:
    """(kind, box in PDF points, object, whether its points are the page's) of pictures, paths and shadings."""
    box = [ctypes.c_float() for _ in range(4)]
    pointers = [ctypes.byref(side) for side in box]
    looked_at = 0
    for place in range(pdfium.FPDFPage_CountObjects(page.raw)):
        thing = pdfium.FPDFPage_GetObject(page.raw, place)
        kind = pdfium.FPDFPageObj_GetType(thing)
        if kind == pdfium.FPDF_PAGEOBJ_TEXT:
            continue
        looked_at += 1
        if looked_at > OBJECTS_LOOKED_AT:
            return
        if kind == pdfium.FPDF_PAGEOBJ_FORM:
            yield from _inside(thing, _matrix(thing), 1, OBJECTS_LOOKED_AT - looked_at)
        elif pdfium.FPDFPageObj_GetBounds(thing, *pointers):
            yield kind, (box[0].value, box[1].value, box[2].value, box[3].value), thing, True


Matrix = tuple[float, float, float, float, float, float]


def _matrix(thing: object) -> Matrix:
    matrix = pdfium.FS_MATRIX()
    if not pdfium.FPDFPageObj_GetMatrix(thing, ctypes.byref(matrix)):
        return 1.0, 0.0, 0.0, 1.0, 0.0, 0.0
    return matrix.a, matrix.b, matrix.c, matrix.d, matrix.e, matrix.f


def _inside(form: object, matrix: Matrix, depth: int, most: int) -> Iterator[tuple[int, Box, object, bool]]:
    """The objects of a form, with their boxes on the page."""
    box = [ctypes.c_float() for _ in range(4)]
    pointers = [ctypes.byref(side) for side in box]
    for place in range(min(pdfium.FPDFFormObj_CountObjects(form), most)):
        thing = pdfium.FPDFFormObj_GetObject(form, place)
        kind = pdfium.FPDFPageObj_GetType(thing)
        if kind == pdfium.FPDF_PAGEOBJ_FORM and depth < FORM_DEPTH:
            yield from _inside(thing, _product(_matrix(thing), matrix), depth + 1, most // 4)
        elif kind not in (pdfium.FPDF_PAGEOBJ_TEXT, pdfium.FPDF_PAGEOBJ_FORM) and pdfium.FPDFPageObj_GetBounds(
            thing, *pointers
        ):
            corners = [
                (matrix[0] * x + matrix[2] * y + matrix[4], matrix[1] * x + matrix[3] * y + matrix[5])
                for x in (box[0].value, box[2].value)
                for y in (box[1].value, box[3].value)
            ]
            xs, ys = zip(*corners, strict=True)
            yield kind, (min(xs), min(ys), max(xs), max(ys)), thing, False


def _product(a: Matrix, b: Matrix) -> Matrix:
    """First a, then b."""
    return (
        a[0] * b[0] + a[1] * b[2],
        a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2],
        a[2] * b[1] + a[3] * b[3],
        a[4] * b[0] + a[5] * b[2] + b[4],
        a[4] * b[1] + a[5] * b[3] + b[5],
    )


def _seen(frame: Frame, box: Box) -> Box:
    return frame.seen(*box)


def _rules(frame: Frame, box: Box, path: object | None) -> list[Rule]:
    """The straight lines along the page that this path draws; none for a curve or a filled area."""
    left, top, right, foot = _seen(frame, box)
    width, height = right - left, foot - top
    if width <= THIN or height <= THIN:
        if max(width, height) < SHORTEST:
            return []
        upright = height > width
        return [Rule(upright, (left + right) / 2, top, foot) if upright else Rule(False, (top + foot) / 2, left, right)]
    return [] if path is None else _path_rules(frame, path)


def _path_rules(frame: Frame, path: object) -> list[Rule]:
    """Of a stroked path of straight segments: a box or a whole grid drawn at once."""
    fill, stroke = ctypes.c_int(), ctypes.c_int()
    pdfium.FPDFPath_GetDrawMode(path, ctypes.byref(fill), ctypes.byref(stroke))
    count = pdfium.FPDFPath_CountSegments(path)
    if not stroke.value or not 2 <= count <= SEGMENTS_LOOKED_AT:
        return []
    a, b, c, d, e, f = _matrix(path)
    x, y = ctypes.c_float(), ctypes.c_float()
    rules: list[Rule] = []
    here = begin = (0.0, 0.0)
    for place in range(count):
        segment = pdfium.FPDFPath_GetPathSegment(path, place)
        kind = pdfium.FPDFPathSegment_GetType(segment)
        if kind == pdfium.FPDF_SEGMENT_BEZIERTO:
            return []
        pdfium.FPDFPathSegment_GetPoint(segment, ctypes.byref(x), ctypes.byref(y))
        point = (a * x.value + c * y.value + e, b * x.value + d * y.value + f)
        if kind == pdfium.FPDF_SEGMENT_MOVETO:
            here = begin = point
            continue
        ends = [(here, point)]
        if pdfium.FPDFPathSegment_GetClose(segment):
            ends.append((point, begin))
        for one, other in ends:
            (x0, x1), (y0, y1) = sorted((one[0], other[0])), sorted((one[1], other[1]))
            left, top, right, foot = _seen(frame, (x0, y0, x1, y1))
            if min(right - left, foot - top) > THIN:
                return []  # a slanting line: a drawing
            if max(right - left, foot - top) >= SHORTEST:
                upright = foot - top > right - left
                rules.append(Rule(True, left, top, foot) if upright else Rule(False, top, left, right))
        here = point
    return rules


def _sides(box: Box) -> tuple[float, float]:
    return box[2] - box[0], box[3] - box[1]


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _overlap(one: Box, other: Box, around: float = 0.0) -> bool:
    return (
        one[0] <= other[2] + around
        and other[0] <= one[2] + around
        and one[1] <= other[3] + around
        and other[1] <= one[3] + around
    )


def _joined(boxes: list[Box], around: float) -> list[Box]:
    """Boxes that touch, as one: a picture is often stored in strips."""
    return [box for box, _ in _clusters(boxes, around)]


def _clusters(boxes: list[Box], around: float) -> list[tuple[Box, int]]:
    """(box around them, how many) of boxes closer than `around`; linear sweeps until nothing joins any more."""
    groups = [(box, 1) for box in boxes]
    while True:
        groups.sort(key=lambda group: group[0][1])
        joined: list[tuple[Box, int]] = []
        for box, count in groups:
            for place in range(len(joined) - 1, max(-1, len(joined) - 30), -1):
                other, members = joined[place]
                if _overlap(box, other, around):
                    bounds = (
                        min(box[0], other[0]),
                        min(box[1], other[1]),
                        max(box[2], other[2]),
                        max(box[3], other[3]),
                    )
                    joined[place] = (bounds, members + count)
                    break
            else:
                joined.append((box, count))
        if len(joined) == len(groups):
            return joined
        groups = joined
