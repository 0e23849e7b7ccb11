"""Pages to look at: the quote is marked where it stands, hostile files hurt nobody, nothing outlives its document."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from PIL import Image
from pypdf import PdfWriter

from app import documents, ingest
from app.errors import AppError
from app.page_view.find import locate
from app.page_view.page_text import page_text
from app.page_view.process import Limits, NoPicture, Renderer
from app.sample import SAMPLE_PDF
from app.settings import Settings
from app.viewer import WIDTHS, Place, Viewer
from app.wiring import App
from tests.app.citation_cases import sentences_of


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    made = Renderer()
    yield made
    made.close()


def test_a_quote_is_located_whatever_its_breaks() -> None:
    text = "Some lines before.\nThe anchor stock weighs 212 kilo-\ngrams and never leaves its base. And after."
    (span,) = locate(text, "the anchor stock weighs 212 kilograms and never leaves its base")
    assert text[slice(*span)] == "The anchor stock weighs 212 kilo-\ngrams and never leaves its base"
    (near,) = locate(text, "The anchor stock weighs 212 kilograms and never leave its base")
    assert near == span
    assert locate(text, "The anchor stock weighs 213 kilograms and never leaves its base") == []
    assert locate(text, "Nothing of this kind stands here at all") == []
    assert locate(text, "") == []


def test_lines_that_stand_apart_are_marked_each() -> None:
    columns = "left one is here\nright one is there\nleft two is here\nright two is there"
    spans = locate(columns, "left one is here\nleft two is here")
    assert [columns[a:b] for a, b in spans] == ["left one is here", "left two is here"]
    assert locate(columns, "left one is here\nsomething else entirely\nand more of that\nand more") == []


def test_text_is_shown_with_its_lines() -> None:
    shown = page_text("src/a.py:L41-43", "def f():\n    return 1\n\n", "return 1")
    assert [(line.number, line.text, line.marks) for line in shown.lines] == [
        (41, "def f():", ()),
        (42, "    return 1", ((4, 12),)),
    ]
    by_lines = page_text("L1-3", "a\nb\nc\n", "not in here at all", (2, 3))
    assert [line.number for line in by_lines.lines if line.marks] == [2, 3]
    assert page_text("4", "running text", "").lines[0].number == 0


def test_sentences_of_a_real_pdf_are_marked_on_its_pages(renderer: Renderer) -> None:
    """What was read of each page is found again in what pdfium sees there."""
    read = ingest.read_file(SAMPLE_PDF)
    from app.citations import PageSource

    wanted = found = 0
    for page in read.pages:
        for sentence in sentences_of(PageSource("s", "s", page.index, page.label, page.text))[:6]:
            picture = renderer.page(SAMPLE_PDF, page.index, WIDTHS[0], sentence)
            wanted += 1
            found += bool(picture.boxes)
            assert all(0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1 for x0, y0, x1, y1 in picture.boxes)
            assert len(picture.png) <= 2_000_000
    assert wanted >= 20
    assert found >= 0.95 * wanted, (found, wanted)


def _turned(path: Path, angle: int) -> Path:
    writer = PdfWriter(clone_from=SAMPLE_PDF)
    writer.pages[0].rotate(angle)
    writer.write(path)
    return path


@pytest.mark.parametrize("angle", [90, 180, 270])
def test_marks_turn_with_the_page(renderer: Renderer, tmp_path: Path, angle: int) -> None:
    quote = ingest.read_file(SAMPLE_PDF).pages[0].text.split("\n")[0]
    upright = renderer.page(SAMPLE_PDF, 1, WIDTHS[0], quote)
    turned = renderer.page(_turned(tmp_path / "turned.pdf", angle), 1, WIDTHS[0], quote)
    (x0, y0, x1, y1), (a0, b0, a1, b1) = upright.boxes[0], turned.boxes[0]
    expected = {90: (1 - y1, x0, 1 - y0, x1), 180: (1 - x1, 1 - y1, 1 - x0, 1 - y0), 270: (y0, 1 - x1, y1, 1 - x0)}
    assert (a0, b0, a1, b1) == pytest.approx(expected[angle], abs=0.01)


def test_a_huge_page_and_a_noisy_picture_stay_small(renderer: Renderer, tmp_path: Path) -> None:
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    path = tmp_path / "huge.pdf"
    canvas = Canvas(str(path), pagesize=(200, 14_000))
    canvas.drawString(20, 13_000, "A very long page.")
    canvas.showPage()
    canvas.setPageSize((600, 800))
    noise = Image.effect_noise((1200, 1600), 120).convert("RGB")
    canvas.drawImage(ImageReader(noise), 0, 0, 600, 800)
    canvas.showPage()
    canvas.save()
    tall = renderer.page(path, 1, WIDTHS[-1])
    assert tall.width * tall.height <= 12_100_000
    noisy = renderer.page(path, 2, WIDTHS[-1])
    assert len(noisy.png) <= 2_000_000
    assert Image.open(io.BytesIO(noisy.png)).size == (noisy.width, noisy.height)


def test_what_cannot_be_drawn_says_why(renderer: Renderer, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(SAMPLE_PDF.read_bytes()[:2000])
    with pytest.raises(NoPicture, match="damaged"):
        renderer.page(broken, 1, 800)
    locked = tmp_path / "locked.pdf"
    writer = PdfWriter(clone_from=SAMPLE_PDF)
    writer.encrypt("secret", algorithm="AES-256")
    writer.write(locked)
    with pytest.raises(NoPicture, match="password"):
        renderer.page(locked, 1, 800)
    with pytest.raises(NoPicture, match="no such page"):
        renderer.page(SAMPLE_PDF, 999, 800)
    with pytest.raises(NoPicture, match="cannot be opened"):
        renderer.page(tmp_path / "gone.pdf", 1, 800)
    assert renderer.page(SAMPLE_PDF, 1, 800).png.startswith(b"\x89PNG")


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_a_process_that_takes_too_long_is_killed() -> None:
    before = _children()
    slow = Renderer(Limits(page_seconds=0.01))
    with pytest.raises(NoPicture, match="too long"):
        slow.page(SAMPLE_PDF, 1, 800)
    assert _children() == before


def test_a_process_dies_when_it_is_killed_or_idle_and_the_next_page_is_drawn_anew() -> None:
    before = _children()
    renderer = Renderer(Limits(idle_seconds=0.5))
    renderer.page(SAMPLE_PDF, 1, 800)
    (child,) = _children() - before
    psutil.Process(child).kill()
    with pytest.raises(NoPicture, match=r"ended|broke down"):
        renderer.page(SAMPLE_PDF, 1, 800)
    assert renderer.page(SAMPLE_PDF, 1, 800).width == 800
    deadline = time.monotonic() + 10
    while _children() != before:
        assert time.monotonic() < deadline, "an idle process is ended"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def looked(starter_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """(data folder, id of the PDF, id of a text file) of an app that was closed since."""
    folder = tmp_path_factory.mktemp("looked")
    (folder / "notes.md").write_text("# Notes\n\nThe siren is **red**.\n")
    original = folder / "handbook.pdf"
    original.write_bytes(SAMPLE_PDF.read_bytes())
    with App.open(Settings(data_dir=folder / "data", model=str(starter_model))) as app:
        conversation = app.library.create_conversation("").id
        added = documents.add_files(app, conversation, [original, folder / "notes.md"])
        ids = [file.document.id for file in added if file.document]
    original.unlink()
    return folder / "data", ids[0], ids[1]


def test_after_a_restart_and_without_the_original(looked, starter_model: Path) -> None:
    data, pdf, notes = looked
    with App.open(Settings(data_dir=data, model=str(starter_model))) as app:
        viewer = Viewer(app)
        quote = sentences_of_page(app, pdf)
        view = viewer.look(Place(pdf, 1, quote))
        assert view.picture
        assert view.boxes
        assert view.found
        assert viewer.picture(pdf, 1, 0).startswith(b"\x89PNG")
        as_text = viewer.look(Place(pdf, 1, quote), as_text=True)
        assert as_text.text
        assert as_text.found
        text = viewer.look(Place(notes, 1, "The siren is red"))
        assert text.text
        assert [line.number for line in text.text.lines if line.marks] == [3]
        assert not text.drawable
        missing = viewer.look(Place(pdf, 1, "These words stand nowhere in that document"))
        assert missing.found is False
        assert missing.boxes == ()
        for place in (Place(pdf, 99), Place("nobody", 1)):
            with pytest.raises(AppError):
                viewer.look(place)
        documents.remove_document(app, pdf)
        with pytest.raises(AppError, match="no longer here"):
            viewer.picture(pdf, 1, 0)
        viewer.close()


def sentences_of_page(app: App, document: str) -> str:
    from app.citations import PageSource

    row = app.library.page(document, 1)
    assert row is not None
    return sentences_of(PageSource(document, "", 1, row.label, row.text))[0]
