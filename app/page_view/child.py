"""The child process that renders pages of one PDF: `python -m app.page_view.child`.

Requests come in as JSON lines on stdin: first {"fd" or "path", "memory", "seconds"}, for a PDF in an archive with
"archive" (its name), "member" and "content" (its sha256, or ""), then {"page", "width", "quote"} for each page, counted
from 1. Each is answered by one JSON line, and for a page by as many bytes of PNG as that line's "png" says. An answer
may be {"error": "password" | "damaged" | "page" | "member" | "content"}. The process ends with its input.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import sys
from typing import Any, BinaryIO

import pypdfium2
import pypdfium2.raw as pdfium

from app.errors import AppError
from app.ingest.disk import NotInside
from app.page_view.find import locate

MOST_PIXELS = 12_000_000
MOST_BYTES = 2_000_000
MOST_BOXES = 400


def set_limits(memory: int, seconds: int) -> None:
    """Address space, processor time, no file written, no core dump. Windows has none of these: the parent watches."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def render(page: pypdfium2.PdfPage, width: int) -> tuple[bytes, int, int]:
    """(PNG, its width and height). Narrower than asked for where the page is very long or its picture too large."""
    across, down = page.get_size()
    if not (across > 0 and down > 0):
        raise ValueError(f"page: got {across} x {down} points, need more than nothing")
    scale = min(width / across, (MOST_PIXELS / (across * down)) ** 0.5)
    while True:
        picture = page.render(scale=scale).to_pil().convert("RGB")
        for shades in (0, 256):
            kept = picture.quantize(shades) if shades else picture
            out = io.BytesIO()
            kept.save(out, "PNG", compress_level=3 if not shades else 6)
            if out.tell() <= MOST_BYTES:
                return out.getvalue(), picture.width, picture.height
        scale *= 0.7


def boxes(page: pypdfium2.PdfPage, quote: str) -> list[list[float]]:
    """Where the quote stands, as [left, top, right, bottom] in shares of the page as it is seen; [] if it does not."""
    textpage = page.get_textpage()
    try:
        text = _text(textpage)
        found: list[list[float]] = []
        for start, end in locate(text, quote):
            count = pdfium.FPDFText_CountRects(textpage.raw, start, end - start)
            found += [_seen(page, *textpage.get_rect(number)) for number in range(min(count, MOST_BOXES))]
        return _lines(found[:MOST_BOXES])
    finally:
        textpage.close()


def _text(textpage: pypdfium2.PdfTextPage) -> str:
    """One character for each of pdfium's, so that places match; what it puts for a hyphen is one."""
    count = textpage.count_chars()
    text = textpage.get_text_range() if count > 0 else ""
    if len(text) != count:
        text = "".join(chr(pdfium.FPDFText_GetUnicode(textpage.raw, place)) for place in range(count))
    return text.translate({2: "-", 0xFFFE: "-"})


def _seen(page: pypdfium2.PdfPage, left: float, bottom: float, right: float, top: float) -> list[float]:
    """A rectangle of the page's own space on the page as it is seen, after its rotation and crop."""
    size = 10_000
    x, y = ctypes.c_int(), ctypes.c_int()
    corners = []
    for across, up in ((left, bottom), (right, top)):
        pdfium.FPDF_PageToDevice(page.raw, 0, 0, size, size, 0, across, up, x, y)
        corners.append((min(max(x.value / size, 0.0), 1.0), min(max(y.value / size, 0.0), 1.0)))
    (x0, y0), (x1, y1) = corners
    return [round(value, 4) for value in (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))]


def _lines(found: list[list[float]]) -> list[list[float]]:
    """Rectangles on one line that touch, as one; pdfium cuts a line where its font changes."""
    merged: list[list[float]] = []
    for box in found:
        last = merged[-1] if merged else None
        height = box[3] - box[1]
        if (
            last
            and min(last[3], box[3]) - max(last[1], box[1]) > 0.5 * min(height, last[3] - last[1])
            and -0.02 < box[0] - last[2] < 0.03
        ):
            merged[-1] = [min(last[0], box[0]), min(last[1], box[1]), max(last[2], box[2]), max(last[3], box[3])]
        else:
            merged.append(box)
    return [box for box in merged if box[2] > box[0] and box[3] > box[1]]


def answer(document: pypdfium2.PdfDocument, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    number = int(request["page"])
    if not 1 <= number <= len(document):
        return {"error": "page"}, b""
    try:
        page = document[number - 1]
    except pypdfium2.PdfiumError:
        return {"error": "damaged"}, b""
    try:
        picture, width, height = render(page, int(request["width"]))
        marked = boxes(page, str(request["quote"])) if request["quote"] else []
    finally:
        page.close()
    return {"png": len(picture), "width": width, "height": height, "boxes": marked}, picture


def _open(file: BinaryIO, opening: dict[str, Any]) -> pypdfium2.PdfDocument | str:
    if "member" in opening:
        from app.ingest import archives
        from app.ingest.extracted import Limits

        try:
            taken = archives.open_member(file, opening["archive"], opening["member"], Limits(), opening["content"])
        except (AppError, NotInside, archives.Stopped, MemoryError, *archives.BROKEN):
            return "member"
        if opening["content"] and hashlib.sha256(taken.getbuffer()).hexdigest() != opening["content"]:
            return "content"
        file = taken
    try:
        return pypdfium2.PdfDocument(file)
    except pypdfium2.PdfiumError as error:
        return "password" if getattr(error, "err_code", None) == pdfium.FPDF_ERR_PASSWORD else "damaged"


def main() -> int:
    lines, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land between the answers

    def send(header: dict[str, Any], body: bytes = b"") -> None:
        out.write(json.dumps(header).encode("ascii") + b"\n" + body)
        out.flush()

    opening = json.loads(lines.readline())
    from PIL import Image, PngImagePlugin  # noqa: F401  # loaded before the limits and before the file is looked at

    set_limits(opening["memory"], opening["seconds"])
    with os.fdopen(opening["fd"], "rb") if "fd" in opening else open(opening["path"], "rb") as file:
        document = _open(file, opening)
        if isinstance(document, str):
            send({"error": document})
            return 0
        send({"pages": len(document)})
        while line := lines.readline():
            try:
                send(*answer(document, json.loads(line)))
            except (pypdfium2.PdfiumError, ValueError, MemoryError):
                send({"error": "damaged"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
