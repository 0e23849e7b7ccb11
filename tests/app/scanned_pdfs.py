"""PDFs whose pages are pictures of text, as a scanner makes them, and what tests of OCR need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.ingest import ocr

needs_tesseract = pytest.mark.skipif(ocr.program() is None, reason="no tesseract here (package tesseract-ocr)")


def write_scan(path: Path, pages: Sequence[tuple[str, str]]) -> Path:
    """(kind, text) a page; kind "s": scanned, "t": typeset."""
    from PIL import Image, ImageDraw, ImageFont
    from reportlab.lib.pagesizes import A4
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(path), pagesize=A4)
    for kind, text in pages:
        if kind == "s":
            picture = Image.new("L", (1240, 1754), 255)
            ImageDraw.Draw(picture).text((120, 300), text, fill=0, font=ImageFont.load_default(40))
            canvas.drawInlineImage(picture, 0, 0, *A4)
        else:
            canvas.drawString(72, 700, text)
        canvas.showPage()
    canvas.save()
    return path


LAMP = "The lamp room code is 7391."
MIXED = (("t", "Opening hours are from nine to five."), ("s", LAMP), ("t", "The siren is tested on Mondays."))
DEED = (("s", "This deed was made in 1874."), ("s", "Signed at Varnholm."))
