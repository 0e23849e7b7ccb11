"""What stands on a page of a document, for a person to look at: its picture with the quote marked, or its text.

PDF pages are drawn by a child process from the app's own copy of the file or archive, so they open after a restart and
when the original is gone. Those of a folder are drawn from the user's own file while it is what it was when it was
read. Everything else is shown as the text that was read, with the numbers of its lines where it has them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.documents import stored_file
from app.errors import AppError
from app.ingest import printable
from app.ingest.collected import PDF
from app.page_view.page_text import Line, PageText, page_text
from app.page_view.process import NoPicture, PdfSource, Picture, Renderer
from app.page_view.recognised import marked
from storage import NotFound

if TYPE_CHECKING:
    from app.wiring import App
    from storage import Document, PageRow

WIDTHS = (1000, 1500, 2000)
"""Pixels across a page at each zoom level."""
KEPT_PICTURES = 6

__all__ = ["WIDTHS", "Line", "NoPicture", "PageText", "PageView", "Place", "Viewer"]


@dataclass(frozen=True, slots=True)
class Place:
    """What to look at. page counts from 1. quote: what to mark. first_line, last_line: marked where no quote is."""

    document_id: str
    page: int
    quote: str = ""
    first_line: int = 0
    last_line: int = 0


@dataclass(frozen=True, slots=True)
class PageView:
    """One page as it is shown: a picture where boxes and size are set, else text.

    picture: (width, height) in pixels, None for text. boxes: (left, top, right, bottom) in shares of the picture.
    found: whether the quote was found; None without one. problem: why a page that should have a picture has none.
    drawable: whether the page could have a picture. scanned: a picture without text in it. recognised: its text is what
    OCR saw on it; placed: where its words stand is known, so that a quote is marked on the picture too. file,
    file_page, file_pages: in a folder or archive the PDF that the page is of, its number there from 1 and how many that
    has.
    """

    place: Place
    document: str
    kind: str
    pages: int
    label: str
    picture: tuple[int, int] | None = None
    boxes: tuple[tuple[float, float, float, float], ...] = ()
    text: PageText | None = None
    found: bool | None = None
    problem: str = ""
    drawable: bool = False
    scanned: bool = False
    recognised: bool = False
    placed: bool = False
    file: str = ""
    file_page: int = 0
    file_pages: int = 0


@dataclass(frozen=True, slots=True)
class _Drawable:
    """The PDF that a page is of, and its number in it. file: its path in a folder or archive, which has `pages`."""

    source: PdfSource
    page: int
    file: str = ""
    pages: int = 0


@dataclass(slots=True)
class Viewer:
    """Thread safe. Close it when the page is closed."""

    app: App
    renderer: Renderer = field(default_factory=Renderer)
    _pictures: OrderedDict[tuple[str, int, int], bytes] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, place: Place, *, zoom: int = 0, as_text: bool = False) -> PageView:
        """zoom: a place in WIDTHS. Raises AppError for a document or page that is not there."""
        zoom = min(max(zoom, 0), len(WIDTHS) - 1)
        document, row = self._row(place.document_id, place.page)
        pdf = self._drawable(document, place.page)
        view = PageView(
            place,
            document.name,
            document.kind,
            document.pages,
            row.label,
            drawable=pdf is not None,
            scanned=row.flag == "scanned",
            recognised=row.ocr,
            placed=bool(row.words),
            file=pdf.file if pdf else "",
            file_page=pdf.page if pdf and pdf.file else 0,
            file_pages=pdf.pages if pdf else 0,
        )
        problem = ""
        if pdf is not None and not as_text:
            try:
                picture = self._draw(pdf, document.id, place.page, WIDTHS[zoom], "" if row.words else place.quote)
                boxes = marked(row.words, place.quote) if row.words and place.quote.strip() else picture.boxes
                return replace(
                    view,
                    picture=(picture.width, picture.height),
                    boxes=boxes,
                    found=bool(boxes) if place.quote.strip() else None,
                )
            except NoPicture as error:
                problem = f"{error.message} {error.hint}".strip()
        text = page_text(row.label, row.text, place.quote, (place.first_line, place.last_line))
        asked = bool(place.quote.strip() or place.first_line)
        return replace(view, text=text, found=text.found if asked else None, problem=problem)

    def picture(self, document_id: str, page: int, zoom: int) -> bytes:
        """A page as PNG. Raises AppError."""
        zoom = min(max(zoom, 0), len(WIDTHS) - 1)
        with self._lock:
            kept = self._pictures.get((document_id, page, WIDTHS[zoom]))
        document, _ = self._row(document_id, page)  # a document that was deleted is not shown from memory
        if kept is not None:
            return kept
        pdf = self._drawable(document, page)
        if pdf is None:
            raise NoPicture(f"{document.name} has no pictures of its pages.", "Its text is shown instead.")
        return self._draw(pdf, document.id, page, WIDTHS[zoom], "").png

    def forget(self) -> None:
        """Documents were deleted: no picture stays in memory, nor the process that has one of them open; it is ended
        as soon as it has drawn what it may be drawing."""
        with self._lock:
            self._pictures.clear()
        threading.Thread(target=self.close, name="viewer-forgets", daemon=True).start()

    def close(self) -> None:
        self.renderer.close()
        with self._lock:
            self._pictures.clear()

    def _row(self, document_id: str, page: int) -> tuple[Document, PageRow]:
        try:
            document = self.app.library.document(document_id)
        except NotFound as error:
            raise AppError("This document is no longer here.", "Add its file again to read it.") from error
        row = self.app.library.page(document_id, page) if 1 <= page <= document.pages else None
        if row is None:
            raise AppError(f"{document.name} has no page {page}.", f"It has {document.pages} pages.")
        return document, row

    def _drawable(self, document: Document, page: int) -> _Drawable | None:
        """None for a page that is of no PDF."""
        kept = stored_file(self.app, document)
        if document.kind == "pdf":
            return _Drawable(PdfSource(kept), page) if kept is not None else None
        file = self.app.library.file_of_page(document.id, page)
        if file is None or not file.extractor.startswith(PDF):
            return None
        if kept is not None:
            source = PdfSource(kept, file.path, content=file.sha256)
        elif document.kind != "archive" and document.source and file.sha256:
            source = PdfSource(Path(document.source), file.path, file.sha256)
        else:
            return None
        return _Drawable(source, page - file.first_page + 1, printable(file.path), file.pages)

    def _draw(self, pdf: _Drawable, document_id: str, page: int, width: int, quote: str) -> Picture:
        picture = self.renderer.page(pdf.source, pdf.page, width, quote)
        with self._lock:
            self._pictures[document_id, page, width] = picture.png
            self._pictures.move_to_end((document_id, page, width))
            while len(self._pictures) > KEPT_PICTURES:
                self._pictures.popitem(last=False)
        return picture
