"""A passage on a scanned page is marked on its picture, at the places where OCR saw its words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app import documents
from app.changes import Changes, _store_update
from app.changes.folder_files import known_text
from app.changes.versions import Chain
from app.ingest import extractor, ocr_of
from app.ingest.collected import Collected, Earlier, Entry, Recognition
from app.ingest.extracted import FilePageText, Limits
from app.ingest.ocr import parse_tsv
from app.ingest.recognised import PlacedWord, lines_of, written
from app.page_view.recognised import marked
from app.settings import Settings
from app.viewer import Place, Viewer
from app.wiring import App
from storage import Document, FileRow, Library, PageRow
from tests.app.scanned_pdfs import needs_tesseract
from ui.render.viewer import render_viewer

LINES = ["The harbour master keeps the keys", "of the lamp room. Its code is 7391", "and nobody else may know it."]
PLACED = [
    [PlacedWord("The", (0.1, 0.2, 0.15, 0.22)), PlacedWord("kilo-", (0.16, 0.2, 0.25, 0.22))],
    [PlacedWord("grams", (0.1, 0.24, 0.2, 0.26)), PlacedWord("weigh.", (0.21, 0.24, 0.3, 0.27))],
]


def test_words_are_written_and_read_back() -> None:
    assert list(lines_of(written(PLACED))) == PLACED
    assert list(lines_of("")) == []


def test_a_quote_is_marked_line_by_line() -> None:
    words = written(PLACED)
    assert marked(words, "The kilograms weigh.") == ((0.1, 0.2, 0.25, 0.22), (0.1, 0.24, 0.3, 0.27))
    assert marked(words, "weigh.") == ((0.21, 0.24, 0.3, 0.27),)
    assert marked(words, "The grams of another page") == ()
    assert marked("", "The kilograms") == ()


def test_the_table_of_tesseract_becomes_lines_and_words() -> None:
    table = "level\tpage_num\tblock_num\tpar_num\tline_num\tword_num\tleft\ttop\twidth\theight\tconf\ttext\n"
    table += "5\t1\t1\t1\t1\t1\t100\t200\t50\t20\t96.1\tLamp\n5\t1\t1\t1\t1\t2\t160\t195\t40\t25\t95\troom\n"
    table += "5\t1\t1\t1\t2\t1\t100\t400\t50\t20\t12\tdirt\n4\t1\t1\t1\t2\t0\t100\t400\t50\t20\t-1\t\n"
    lines, words = parse_tsv(table, 1000, 2000)
    assert [(line.text, line.top, line.foot) for line in lines] == [("Lamp room", 0.0975, 0.11)]
    assert [[word.text for word in line] for line in lines_of(words)] == [["Lamp", "room"]]
    assert marked(words, "room") == ((0.16, 0.0975, 0.2, 0.11),)


def test_readings_with_and_without_places_are_apart() -> None:
    name = extractor("pdf", "deu+eng")
    assert ocr_of(name) == "deu+eng"
    assert ocr_of(name.replace(", words placed", "")) == "deu+eng", "of an earlier version"


@pytest.fixture(scope="module")
def app(starter_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    data = tmp_path_factory.mktemp("marks") / "data"
    with App.open(Settings(data_dir=data, model=str(starter_model))) as opened:
        yield opened


def _scan(path: Path, turned: bool) -> Path:
    """One page of LINES, 100 of 1754 pixels apart; turned: stored on its side, and shown upright."""
    from PIL import Image, ImageDraw, ImageFont
    from pypdf import PdfReader, PdfWriter
    from reportlab.pdfgen.canvas import Canvas

    picture = Image.new("L", (1240, 1754), 255)
    for number, line in enumerate(LINES):
        ImageDraw.Draw(picture).text((120, 300 + 100 * number), line, fill=0, font=ImageFont.load_default(40))
    if turned:
        picture = picture.rotate(90, expand=True)
    size = (picture.width * 0.48, picture.height * 0.48)
    canvas = Canvas(str(path), pagesize=size)
    canvas.drawInlineImage(picture, 0, 0, *size)
    canvas.save()
    if turned:
        writer = PdfWriter(clone_from=PdfReader(path))
        writer.pages[0].rotate(90)
        writer.write(path)
    return path


def _read(app: App, path: Path) -> Document:
    conversation = app.library.create_conversation("").id
    (added,) = documents.add_files(app, conversation, [path], ocr="eng")
    assert added.document is not None, added.error
    return added.document


@needs_tesseract
@pytest.mark.parametrize("turned", [False, True])
def test_a_passage_is_marked_where_it_stands_on_the_picture(app: App, tmp_path: Path, turned: bool) -> None:
    document = _read(app, _scan(tmp_path / f"scan{turned}.pdf", turned))
    viewer = Viewer(app)
    try:
        view = viewer.look(Place(document.id, 1, "Its code is 7391 and nobody else may know it."))
        assert view.found
        assert view.placed
        second, third = view.boxes
        for number, box in ((1, second), (2, third)):
            line = (300 + 100 * number) / 1754
            assert line < box[1] < box[3] < line + 60 / 1754, "the line, and neither of its neighbours"
        assert second[0] > 400 / 1240, "the sentence begins in the middle of its line"
        assert abs(third[0] - 120 / 1240) < 0.01
        assert "ub-box" in render_viewer(view, 0, False)
        other = viewer.look(Place(document.id, 1, "The siren is tested on Mondays at noon."))
        assert (other.found, other.boxes) == (False, ())
    finally:
        viewer.close()


@pytest.mark.parametrize("ocr", ["", "eng"])
def test_pages_that_an_older_version_recognised_are_recognised_again(ocr: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With OCR; without it their text is better than none. A PDF without such pages is known either way."""
    monkeypatch.setattr("app.ingest.ocr.version", lambda: "5.3.0")
    old = extractor("pdf", "eng").replace(", words placed", "")
    kept = {
        ("a" * 64, old): [FilePageText("p1", "printed"), FilePageText("p2", "on a picture", ocr=True)],
        ("b" * 64, old): [FilePageText("p1", "printed")],
    }
    earlier = Earlier(text=lambda sha256, name: kept.get((sha256, name)))
    folder = Collected("records", None, Limits(), earlier, Recognition(ocr, {}))
    scanned, printed = (Entry(f"{x}.pdf", False, 9, 9, x * 64, old) for x in "ab")
    assert folder.take_known(scanned) == (not ocr)
    assert folder.take_known(printed)
    assert [page.text for page in printed.pages] == ["printed"]
    if ocr:
        kept["a" * 64, extractor("pdf", ocr)] = kept["a" * 64, old]
        assert folder.take_known(scanned)


def test_places_are_read_only_where_they_are_needed_and_copied_with_their_pages(tmp_path: Path) -> None:
    made_by, words = extractor("pdf", "eng"), written(PLACED)
    with Library.open(tmp_path) as library:

        def stored(key: str, kind: str, name: str) -> Document:
            row = PageRow(1, "deed.pdf:p1", "The kilograms weigh.", ocr=True, words=words)
            return library.add_document(key * 64, name, kind, made_by, [row], 10, name)

        alone, folder = stored("a", "pdf", "deed.pdf"), stored("b", "folder", "records")
        library.set_files(folder.id, [FileRow("deed.pdf", 9, 0, "c" * 64, made_by, first_page=1, pages=1)])
        rows = library.pages(alone.id)
        assert [(row.text, row.ocr, row.words) for row in rows] == [("The kilograms weigh.", True, "")]
        assert next(library.page_batches(alone.id)) == rows
        for sha256 in ("a" * 64, "c" * 64):
            known = known_text(library, sha256, made_by)
            assert known is not None
            assert [page.words for page in known] == [words]
        changes = Changes(folder.id, "records", (), ("deed.pdf",), (), ())
        update = _store_update(library, Chain(folder, ()), folder, changes)
        copied = library.page(update.id, 2)
        assert copied is not None
        assert copied.words == words


@needs_tesseract
def test_words_stay_placed_in_a_folder_and_old_readings_say_that_theirs_are_not(app: App, tmp_path: Path) -> None:
    root = tmp_path / "records"
    root.mkdir()
    path = _scan(root / "deed.pdf", False)
    (root / "tide.py").write_text("def alarm(level):\n    return level > 3\n")
    alone = _read(app, path)
    words = app.library.pages(alone.id, words=True)[0].words
    folder = _read(app, root)  # the text of the file is known, and so are the places
    row = next(row for row in app.library.pages(folder.id, words=True) if row.label == "deed.pdf:p1")
    assert row.words == words != ""
    with app.library._writer.transaction() as db:
        db.execute("UPDATE pages SET words = '' WHERE document_id = ?", (alone.id,))
    viewer = Viewer(app)
    try:
        marked_in_folder = viewer.look(Place(folder.id, row.index, LINES[2]))
        assert len(marked_in_folder.boxes) == 1
        old = viewer.look(Place(alone.id, 1, LINES[2]))
        assert old.boxes == ()
        assert "earlier version" in render_viewer(old, 0, False)
        assert "earlier version" not in render_viewer(marked_in_folder, 0, False)
    finally:
        viewer.close()
