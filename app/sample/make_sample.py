"""Make harbour-museum-handbook.pdf: `python -m app.sample.make_sample`. Needs reportlab, which only tests install.

The text is handbook.md; the museum, its people and its figures are invented. The same text gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.platypus import BaseDocTemplate, Flowable, Frame, PageBreak, PageTemplate, Paragraph, Spacer, Table

TITLE = "Kestrel Quay Harbour Museum"
SUBTITLE = "Visitor and operations handbook, season 2026"

BODY = ParagraphStyle("body", fontName="Helvetica", fontSize=10.5, leading=15, spaceAfter=7)
HEAD = ParagraphStyle("head", fontName="Helvetica-Bold", fontSize=13, leading=17, spaceBefore=8, spaceAfter=5)
FRONT = ParagraphStyle("front", fontName="Helvetica-Bold", fontSize=22, leading=28, spaceAfter=6)


def pages() -> list[list[str | list[list[str]]]]:
    """The text of handbook.md: "---" begins a page, "# " a heading, "|" a row of a table; all else is a paragraph."""
    text = Path(__file__).with_name("handbook.md").read_text(encoding="utf-8")
    return [[_part(block) for block in page.strip().split("\n\n")] for page in text.split("\n---\n")]


def _part(block: str) -> str | list[list[str]]:
    if block.startswith("|"):
        return [[cell.strip() for cell in row.strip("|").split("|")] for row in block.split("\n")]
    return " ".join(block.split("\n"))


def _flowables() -> list[Flowable]:
    story: list[Flowable] = [Paragraph(TITLE, FRONT), Paragraph(SUBTITLE, HEAD), Spacer(1, 6 * mm)]
    for number, page in enumerate(pages()):
        if number:
            story.append(PageBreak())
        for part in page:
            if isinstance(part, list):
                story.append(_table(part))
                story.append(Spacer(1, 4 * mm))
            elif part.startswith("# "):
                story.append(Paragraph(part[2:], HEAD))
            else:
                story.append(Paragraph(part, BODY))
    return story


def _table(rows: list[list[str]]) -> Table:
    style: list[Any] = [
        ("FONT", (0, 0), (-1, 0), "Helvetica-Bold", 10),
        ("FONT", (0, 1), (-1, -1), "Helvetica", 10),
        ("LINEBELOW", (0, 0), (-1, -1), 0.4, colors.grey),
    ]
    return Table(rows, style=style, hAlign="LEFT")


def _edges(canvas: Any, document: Any) -> None:
    canvas.setFont("Helvetica", 8.5)
    canvas.drawString(25 * mm, A4[1] - 15 * mm, f"{TITLE}, handbook 2026")
    canvas.drawRightString(A4[0] - 25 * mm, 12 * mm, f"Page {document.page} of {len(pages())}")


def make(path: Path) -> None:
    """Write the PDF."""
    document = BaseDocTemplate(str(path), pagesize=A4, title=f"{TITLE}: {SUBTITLE}", author="Unabridged", invariant=1)
    frame = Frame(25 * mm, 20 * mm, A4[0] - 50 * mm, A4[1] - 42 * mm)
    document.addPageTemplates(PageTemplate(frames=[frame], onPage=_edges))
    document.build(_flowables())


if __name__ == "__main__":
    make(Path(__file__).with_name("harbour-museum-handbook.pdf"))
