"""A real app with real files and answers that cite them, without a model at work: what the viewer is tested on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from app import documents
from app.citations import PageSource, attribute
from app.settings import Settings
from app.wiring import App

CODE = "\n".join(
    [f"# line {n} of the tide tables\n" if n % 9 else "" for n in range(1, 60)]
    + ["def alarm(level):", '    """Sounds the siren when the water is high."""', "    siren.sound(level)"]
)
LONG = (
    "The harbour was dredged in the winter of 1974, and what the dredger brought up filled eleven sheds. Among the "
    "finds was a bronze anchor stock of 212 kilograms that never left its base again."
)


def write_pdf(path: Path, pages: list[list[str]]) -> Path:
    """A PDF of typeset lines, one list a page."""
    from reportlab.lib.pagesizes import A4
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(path), pagesize=A4)
    for lines in pages:
        text = canvas.beginText(72, 760)
        text.setFont("Helvetica", 12)
        for line in lines:
            text.textLine(line)
        canvas.drawText(text)
        canvas.showPage()
    canvas.save()
    return path


def handbook(path: Path) -> Path:
    """Five pages; the third has a quote over three lines with a hyphen, the last one no text at all."""
    filler = [f"Line {n} of this page is about nothing in particular." for n in range(30)]
    found = [
        "The harbour was dredged in the winter of 1974, and what the dredger brought",
        "up filled eleven sheds. Among the finds was a bronze anchor stock of 212 kilo-",
        "grams that never left its base again.",
    ]
    third = [*filler[:12], "", *found, "", *filler[12:20]]
    return write_pdf(path, [filler, ["Opening hours are from nine to five.", *filler], third, filler[::-1], []])


@dataclass(frozen=True, slots=True)
class Viewed:
    """A conversation with a PDF and a source file. documents: ids by name."""

    app: App
    conversation: str
    documents: dict[str, str]

    def answer(self, question: str, text: str) -> str:
        """Stores an answer with the citations that the app finds for it. -> its message's id"""
        library = self.app.library
        sources = [
            PageSource(document.id, document.name, row.index, row.label, row.text)
            for document in library.documents(self.conversation)
            for row in library.pages(document.id)
        ]
        asked = library.add_message(self.conversation, "user", question)
        cited = attribute(text, sources, question)
        passages = [
            {
                "document_id": s.document_id, "document": s.document, "page": s.page, "label": s.label,
                "text": s.text[:300], "score": 1.0,
            }
            for s in sources if s.page == 2
        ]  # fmt: skip
        return library.add_message(
            self.conversation, "assistant", text, "complete", question=asked.id, reading="whole",
            citations=[asdict(citation) for citation in cited], passages=passages,
        ).id  # fmt: skip


@contextmanager
def viewed(folder: Path, model: Path) -> Iterator[Viewed]:
    folder.mkdir(parents=True, exist_ok=True)
    pdf = handbook(folder / "harbour handbook.pdf")
    code = folder / "tide.py"
    code.write_text(CODE)
    with App.open(Settings(data_dir=folder / "data", model=str(model))) as app:
        conversation = app.library.create_conversation("The harbour").id
        added = documents.add_files(app, conversation, [pdf, code])
        assert all(file.document for file in added), added
        yield Viewed(app, conversation, {file.path.name: file.document.id for file in added if file.document})
