"""PDF files made at test time: good ones with reportlab and pypdf, hostile ones byte by byte."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader, PdfWriter
from reportlab.lib.pagesizes import A4
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfgen.canvas import Canvas

WIDTH, HEIGHT = A4
Draw = Callable[[Canvas, int], None]


class PdfMaker:
    """Writes PDFs into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def draw(self, name: str, pages: int, draw: Draw, **options: Any) -> Path:
        """`draw(canvas, index)` is called for each page, index from 1."""
        path = self.folder / name
        canvas = Canvas(str(path), pagesize=A4, **options)
        for index in range(1, pages + 1):
            draw(canvas, index)
            canvas.showPage()
        canvas.save()
        return path

    def text(self, name: str, pages: Sequence[Sequence[str]], **options: Any) -> Path:
        """Each page a list of lines; "" leaves a line empty."""

        def draw(canvas: Canvas, index: int) -> None:
            for number, line in enumerate(pages[index - 1]):
                canvas.drawString(70, HEIGHT - 150 - 15 * number, line)

        return self.draw(name, len(pages), draw, **options)

    def cjk(self, name: str, font: str, pages: Sequence[Sequence[str]]) -> Path:
        pdfmetrics.registerFont(UnicodeCIDFont(font))

        def draw(canvas: Canvas, index: int) -> None:
            canvas.setFont(font, 12)
            for number, line in enumerate(pages[index - 1]):
                canvas.drawString(70, HEIGHT - 150 - 18 * number, line)

        return self.draw(name, len(pages), draw)

    def scanned(self, name: str, kinds: str) -> Path:
        """kinds: one letter a page: "t" text, "s" a picture, "b" nothing."""

        def draw(canvas: Canvas, index: int) -> None:
            kind = kinds[index - 1]
            if kind == "t":
                canvas.drawString(70, 500, f"Text of page {index} about the lighthouse.")
            elif kind == "s":
                canvas.drawInlineImage(_picture(), 0, 0, WIDTH, HEIGHT)

        return self.draw(name, len(kinds), draw)

    def changed(self, name: str, source: Path, change: Callable[[PdfWriter], None]) -> Path:
        """A copy that went through pypdf's writer: labels, outline, encryption, rotation."""
        writer = PdfWriter(clone_from=PdfReader(source))
        change(writer)
        path = self.folder / name
        writer.write(path)
        return path

    def sharing_one_stream(self, name: str, pages: int, content: bytes) -> Path:
        """All pages draw the same compressed content: a small file that is much work."""
        kids = b" ".join(b"%d 0 R" % (5 + place) for place in range(pages))
        packed = zlib.compress(content, 9)
        page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 4 0 R>>>>/Contents 3 0 R>>"
        path = self.folder / name
        path.write_bytes(
            raw_pdf(
                b"<</Type/Catalog/Pages 2 0 R>>",
                b"<</Type/Pages/Count %d/Kids[%s]>>" % (pages, kids),
                b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(packed), packed),
                b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
                *[page] * pages,
            )
        )
        return path


def raw_pdf(*objects: bytes) -> bytes:
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(out)


def _picture() -> Any:
    from PIL import Image

    return Image.new("L", (60, 80), 200)


@pytest.fixture
def pdfs(tmp_path: Path) -> PdfMaker:
    folder = tmp_path / "pdfs"
    folder.mkdir()
    return PdfMaker(folder)


@pytest.fixture
def in_memory() -> Callable[[bytes], io.BytesIO]:
    return io.BytesIO
