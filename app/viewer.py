"""What stands on a page of a document, for a person to look at: its picture with the quote marked, or its text.

PDF pages are drawn by a child process from the app's own copy of the file, so they open after a restart and when the
original is gone. Everything else is shown as the text that was read, with the numbers of its lines where it has them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.documents import stored_file
from app.errors import AppError
from app.page_view.page_text import Line, PageText, page_text
from app.page_view.process import NoPicture, Picture, Renderer
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
    drawable: whether the document has pictures at all. scanned: a picture without text in it.
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
        path = self._drawable(document)
        view = PageView(place, document.name, document.kind, document.pages, row.label, drawable=path is not None)
        problem = ""
        if path is not None and not as_text:
            try:
                picture = self._draw(path, document.id, place.page, WIDTHS[zoom], place.quote)
                return _with_picture(view, picture, row)
            except NoPicture as error:
                problem = f"{error.message} {error.hint}".strip()
        text = page_text(row.label, row.text, place.quote, (place.first_line, place.last_line))
        asked = bool(place.quote.strip() or place.first_line)
        return PageView(
            place,
            document.name,
            document.kind,
            document.pages,
            row.label,
            text=text,
            found=text.found if asked else None,
            problem=problem,
            drawable=path is not None,
        )

    def picture(self, document_id: str, page: int, zoom: int) -> bytes:
        """A page as PNG. Raises AppError."""
        zoom = min(max(zoom, 0), len(WIDTHS) - 1)
        with self._lock:
            kept = self._pictures.get((document_id, page, WIDTHS[zoom]))
        document, _ = self._row(document_id, page)  # a document that was deleted is not shown from memory
        if kept is not None:
            return kept
        path = self._drawable(document)
        if path is None:
            raise NoPicture(f"{document.name} has no pictures of its pages.", "Its text is shown instead.")
        return self._draw(path, document.id, page, WIDTHS[zoom], "").png

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

    def _drawable(self, document: Document) -> Path | None:
        """The PDF of a document whose pages are those of the file."""
        return stored_file(self.app, document) if document.kind == "pdf" else None

    def _draw(self, path: Path, document_id: str, page: int, width: int, quote: str) -> Picture:
        picture = self.renderer.page(path, page, width, quote)
        with self._lock:
            self._pictures[document_id, page, width] = picture.png
            self._pictures.move_to_end((document_id, page, width))
            while len(self._pictures) > KEPT_PICTURES:
                self._pictures.popitem(last=False)
        return picture


def _with_picture(view: PageView, picture: Picture, row: PageRow) -> PageView:
    return PageView(
        view.place,
        view.document,
        view.kind,
        view.pages,
        view.label,
        picture=(picture.width, picture.height),
        boxes=picture.boxes,
        found=bool(picture.boxes) if view.place.quote.strip() else None,
        drawable=True,
        scanned=row.flag == "scanned",
    )
