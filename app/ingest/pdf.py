"""Read a PDF inside the child process: pdfium for text, pypdf as the second reader.

`read_pdf` sends messages (dicts of plain JSON values) through `emit`, in page order, so that whatever was read before a
limit strikes is already with the parent:
  {"type": "start", "total": pages}, {"type": "page", "page": {...PageText}}, {"type": "outline", "entries": [...]},
  {"type": "warning", "text": sentence}
Files that cannot be read raise BadInput or PasswordNeeded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from time import process_time
from typing import Any, BinaryIO

import pypdfium2
import pypdfium2.raw as pdfium

from app.errors import BadInput, PasswordNeeded
from app.ingest.blocks import arrange, count_formulas
from app.ingest.extracted import Limits
from app.ingest.formats.pages import one_line
from app.ingest.glyphs import frame_of, read_runs
from app.ingest.graphics import Graphics, read_graphics
from app.ingest.layout import GARBLED_SHARE, PageText, RawLine, RawPage, bad_share, condense
from app.ingest.timer import OutOfTime, processor_time

Emit = Callable[[dict[str, Any]], None]

PAGE_FIELDS = tuple(field.name for field in fields(PageText))
SECOND_READER_PAGE_SECONDS = 3.0
SECOND_READER_SECONDS = 12.0
IN_MEMORY = 32 << 20
OUTLINE_ENTRIES = 5_000
SHORT_TEXT = 200  # a stamp on a scanned page is no longer
MORE_BY_OCR = 1.3
CUT_OFF_HINT = "Download or copy it again, then open the new copy."


def read_pdf(
    file: BinaryIO,
    name: str,
    password: str | None,
    limits: Limits,
    emit: Emit,
    first: int = 1,
    last: int = 0,
    ocr: str = "",
) -> None:
    """Send the pages `first` to `last` (0: all that follow). The file stays open and is the caller's.

    ocr: languages in which tesseract is to read pages that have hardly any text but show something ("" for none).
    """
    cut_off = is_cut_off(file)
    document = _open(file, name, password, cut_off)
    if cut_off:
        document.close()
        raise BadInput(f"{name} is cut off: its end is missing.", CUT_OFF_HINT)
    total = len(document)
    if total == 0:
        raise BadInput(f"{name} has no pages.", "Open it in a PDF viewer to see whether it is whole.")
    emit({"type": "start", "total": total})
    second = SecondReader(file, password)
    text_bytes = 0
    for index in range(first, min(total, limits.pages, last or total) + 1):
        page = _with_ocr(document, _read_page(document, index, second), ocr, limits)
        text_bytes += len(page.text.encode("utf-8", "replace"))
        if text_bytes > limits.text_bytes:
            emit({"type": "stopped", "reason": f"it holds more than {limits.text_bytes / 1e6:g} MB of text"})
            return
        emit({"type": "page", "page": {name: getattr(page, name) for name in PAGE_FIELDS}})
    if last:
        return
    emit({"type": "outline", "entries": list(_outline(document))})
    if total > limits.pages:
        emit({"type": "stopped", "reason": f"it has more than {limits.pages:,} pages"})


def is_cut_off(file: BinaryIO) -> bool:
    """Whether objects, or nothing that ends a PDF, follow the last end mark."""
    size = file.seek(0, 2)
    file.seek(max(0, size - (1 << 20)))
    tail = file.read()
    _, mark, after = tail.rpartition(b"%%EOF")
    if mark:
        return re.search(rb"\d\s+obj\b", after) is not None
    # Some writers leave the mark out, or only its last bytes are lost: then the offset before it still leads somewhere.
    offset = re.search(rb"startxref\s+(\d+)\s", tail[-128:])
    if offset is None:
        return True
    file.seek(min(int(offset[1]), size))
    return re.match(rb"\s*(xref\b|\d+\s+\d+\s+obj\b)", file.read(64)) is None


def _open(file: BinaryIO, name: str, password: str | None, cut_off: bool) -> pypdfium2.PdfDocument:
    size = file.seek(0, 2)
    file.seek(0)
    try:  # from memory where that is little: pdfium then asks Python for no bytes
        return pypdfium2.PdfDocument(file.read() if size <= IN_MEMORY else file, password=password)
    except pypdfium2.PdfiumError as error:
        code = getattr(error, "err_code", None)
        if code == pdfium.FPDF_ERR_PASSWORD:
            if password:
                raise PasswordNeeded(
                    f"The password does not open {name}.", "Type it again; capitals matter."
                ) from error
            raise PasswordNeeded(f"{name} is protected by a password.", "Give the password to read it.") from error
        if code == pdfium.FPDF_ERR_SECURITY:
            raise BadInput(
                f"{name} is encrypted in a way that is not supported.", "Save a copy without encryption."
            ) from error
        if cut_off:
            raise BadInput(f"{name} is cut off: its end is missing.", CUT_OFF_HINT) from error
        raise BadInput(
            f"{name} is damaged and cannot be read as a PDF.", "Open it in a PDF viewer and save it anew."
        ) from error


def _read_page(document: pypdfium2.PdfDocument, index: int, second: SecondReader) -> RawPage:
    label = one_line(document.get_page_label(index - 1)) or str(index)
    try:
        page = document[index - 1]
    except pypdfium2.PdfiumError:
        text = second.text(index)
        return RawPage(index, label, _plain_lines(text or ""), damaged=not text)
    try:
        lines, graphics = _lines(page)
        text = "\n".join(line.text for line in lines)
        images = len(text) <= SHORT_TEXT and graphics.may_hold_letters
        damaged = False
        if (not text.strip() and not images) or bad_share(text) > GARBLED_SHARE:
            other = second.text(index)
            damaged = other is None and not text.strip()
            if other and other.strip() and (not text.strip() or bad_share(other) < bad_share(text)):
                lines = _plain_lines(other)
        return RawPage(index, label, lines, images, damaged, len(graphics.pictures), count_formulas(lines))
    finally:
        page.close()


def _with_ocr(document: pypdfium2.PdfDocument, page: RawPage, language: str, limits: Limits) -> PageText:
    """The page as it goes to the app; recognised anew where that gives more letters than its text has."""
    text = "\n".join(line.text for line in page.lines)
    if not language or not (page.images or bad_share(text) > GARBLED_SHARE):
        return condense(page)
    from app.ingest.ocr import recognise

    picture = document[page.index - 1]
    try:
        seen = recognise(picture, language, limits)
    finally:
        picture.close()
    lines, words = seen or ((), "")
    letters = sum(char.isalnum() for line in lines for char in line.text)
    if seen is None or letters < MORE_BY_OCR * sum(char.isalnum() for char in text):
        return condense(page)
    found = condense(replace(page, lines=lines, images=page.images and not letters))
    return replace(found, ocr=True, words=words) if letters else found


def _plain_lines(text: str) -> tuple[RawLine, ...]:
    return tuple(RawLine(line.rstrip("\r")) for line in text.split("\n")) if text.strip() else ()


def _lines(page: pypdfium2.PdfPage) -> tuple[tuple[RawLine, ...], Graphics]:
    """The page's lines in reading order, each with where it stands on the page as seen, and what is drawn there."""
    frame = frame_of(page)
    textpage = page.get_textpage()
    try:
        found = read_runs(textpage, frame)
        if found is None:
            return _pdfium_lines(page, textpage), read_graphics(page, frame)
        runs, upright = found
        graphics = read_graphics(page, upright)
        return arrange(runs, graphics, upright), graphics
    finally:
        textpage.close()


def _pdfium_lines(page: pypdfium2.PdfPage, textpage: pypdfium2.PdfTextPage) -> tuple[RawLine, ...]:
    """The lines as pdfium has them, for writing from right to left and for fonts that give letters no size."""
    count = textpage.count_chars()
    text = textpage.get_text_range() if count > 0 else ""
    if len(text) != count:  # characters beyond the basic plane: go one by one, so that places match
        text = "".join(chr(pdfium.FPDFText_GetUnicode(textpage.raw, place)) for place in range(count))
    lines: list[RawLine] = []
    start = 0
    for match in re.finditer(r"\r?\n|\r|\Z", text):
        line = text[start : match.start()]
        if line.strip():
            lines.append(RawLine(line, *_extent(page, textpage, start, line)))
        start = match.end()
    return tuple(lines)


def _extent(
    page: pypdfium2.PdfPage, textpage: pypdfium2.PdfTextPage, start: int, line: str
) -> tuple[float, float, float]:
    """(top, foot, bottom) of RawLine, on the page as it is seen after its rotation."""
    first = start + len(line) - len(line.lstrip())
    last = start + len(line.rstrip()) - 1
    left, low, right, high = page.get_bbox()
    width, height = max(right - left, 1e-6), max(high - low, 1e-6)

    def upper_and_lower(place: int) -> tuple[float, float]:
        x0, y0, x1, y1 = textpage.get_charbox(place, loose=True)
        match page.get_rotation():
            case 90:
                return (x0 - left) / width, (x1 - left) / width
            case 180:
                return (y0 - low) / height, (y1 - low) / height
            case 270:
                return (right - x1) / width, (right - x0) / width
            case _:
                return (high - y1) / height, (high - y0) / height

    top, foot = upper_and_lower(first)
    return top, foot, upper_and_lower(last)[1]


def _outline(document: pypdfium2.PdfDocument) -> Iterator[dict[str, Any]]:
    for number, bookmark in enumerate(document.get_toc()):
        if number >= OUTLINE_ENTRIES:
            return
        target = bookmark.get_dest()
        index = target.get_index() if target else None
        title = " ".join(bookmark.get_title().split())[:500]
        if title and index is not None and index >= 0:
            yield {"title": title, "page": index + 1, "level": bookmark.level}


class SecondReader:
    """pypdf, opened when it is first needed; slow, so bounded: some seconds a page and a document."""

    def __init__(self, file: BinaryIO, password: str | None) -> None:
        self._file = file
        self._password = password
        self._reader: Any = None
        self._failed = False
        self._spent = 0.0

    def text(self, index: int) -> str | None:
        """The page's text; None if pypdf cannot read it either; "" once the time for second opinions is spent."""
        if self._spent >= SECOND_READER_SECONDS:
            return ""
        if self._failed:
            return None
        start = process_time()
        try:
            with processor_time(SECOND_READER_PAGE_SECONDS):
                return self._open().pages[index - 1].extract_text()
        except (OutOfTime, MemoryError, RecursionError):
            return None
        except Exception:  # pypdf raises its own errors and, on damaged files, almost any built-in one
            return None
        finally:
            self._spent += process_time() - start

    def _open(self) -> Any:
        if self._reader is None:
            from pypdf import PdfReader

            self._failed = True  # until it is open: a file that cannot be opened is tried once
            self._reader = PdfReader(self._file, strict=False, password=self._password)
            self._failed = False
        return self._reader
