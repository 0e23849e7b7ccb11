"""Small PDFs with known facts, made at test time."""

from collections.abc import Sequence
from pathlib import Path

FACTS = (
    "The lighthouse of Varnholm was built in 1874 by the engineer Ida Brekke. Its tower is 41 metres high.",
    "The keeper's house has seven rooms. The garden grows sea kale, and the well is 12 metres deep.",
    "The access code of the lamp room is 7391. Only the keeper and the harbour master may know it.",
    "The fog horn sounds every 90 seconds. It was replaced in 1962 by an electric horn from Bergen.",
)


def write_pdf(path: Path, pages: Sequence[str]) -> Path:
    """A PDF with one paragraph a page."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.utils import simpleSplit
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(path), pagesize=A4)
    for text in pages:
        lines = canvas.beginText(72, 770)
        for line in simpleSplit(text, "Helvetica", 11, 450):
            lines.textLine(line)
        canvas.drawText(lines)
        canvas.showPage()
    canvas.save()
    return path
