"""Several children at one PDF, several files at once, scanned pages by OCR."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from reportlab.lib.pagesizes import A4

from app.errors import AppError, BadInput, Cancelled, WrongUse
from app.ingest import Extracted, Limits, ocr, parts, pool, read_file, read_many


@pytest.fixture
def two_slots(monkeypatch: pytest.MonkeyPatch) -> pool.Slots:
    slots = pool.Slots(2)
    monkeypatch.setattr("app.ingest.files.SLOTS", slots)
    monkeypatch.setattr(parts, "SLOTS", slots)
    monkeypatch.setattr("app.ingest.files.LEAST_PAGES", 4)
    return slots


def test_ranges_give_the_same_as_one_child(pdfs: Any, two_slots: pool.Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pdfs.text("long.pdf", [[f"Leaf {number} of the long book."] for number in range(1, 24)])
    seen: list[tuple[int, int]] = []
    shared = read_file(path, progress=lambda done, total: seen.append((done, total)))
    assert two_slots.take_free(5) == 2  # all are given back
    assert read_alone(path, monkeypatch) == shared
    assert [page.index for page in shared.pages] == list(range(1, 24))
    assert seen[-1] == (23, 23)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def read_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> Extracted:
    alone = pool.Slots(1)
    monkeypatch.setattr("app.ingest.files.SLOTS", alone)
    monkeypatch.setattr(parts, "SLOTS", alone)
    return read_file(path)


def test_no_hole_where_a_limit_strikes(pdfs: Any, two_slots: pool.Slots) -> None:
    """The text of the first pages is all that fits: pages read by another child behind it are dropped and named."""
    path = pdfs.text("wide.pdf", [[f"{number} " + "word " * 15] * 20 for number in range(1, 21)])
    found = read_file(path, limits=Limits(text_bytes=9_000))
    assert found.extractor.endswith("+partial")
    assert [page.index for page in found.pages] == list(range(1, len(found.pages) + 1))
    assert 1 <= len(found.pages) < 20
    assert "missing" in found.warnings[0]


def test_cancel_ends_all_children(pdfs: Any, two_slots: pool.Slots) -> None:
    path = pdfs.text("long.pdf", [[f"Leaf {number}."] for number in range(1, 60)])
    cancel = threading.Event()
    with pytest.raises(Cancelled):
        read_file(path, cancel=cancel, progress=lambda done, total: cancel.set())
    assert two_slots.take_free(5) == 2
    assert not [thread for thread in threading.enumerate() if thread.name == "reading pages"]


def test_files_side_by_side_in_order_with_their_progress(pdfs: Any) -> None:
    paths = [pdfs.text(f"{name}.pdf", [[f"This is {name}."]]) for name in "abc"]
    paths.insert(1, paths[0].with_name("none.pdf"))
    told: set[tuple[str, int, int]] = set()
    me = threading.get_ident()

    def progress(path: Path, done: int, total: int) -> None:
        assert threading.get_ident() == me
        told.add((path.name, done, total))

    results = read_many(paths, progress=progress)
    assert [path for path, _ in results] == paths
    assert isinstance(results[1][1], BadInput)
    texts = [found.pages[0].text for _, found in results if isinstance(found, Extracted)]
    assert texts == ["This is a.", "This is b.", "This is c."]
    assert {("a.pdf", 1, 1), ("b.pdf", 1, 1), ("c.pdf", 1, 1)} <= told


def _scan(pdfs: Any, name: str) -> Path:
    """A page of text as a picture, as a scanner makes it."""
    from PIL import Image, ImageDraw, ImageFont

    def draw(canvas: Any, index: int) -> None:
        picture = Image.new("L", (1240, 1754), 255)
        font = ImageFont.load_default(40)
        ImageDraw.Draw(picture).text((120, 300), f"The harbour opens at nine on page {index}.", fill=0, font=font)
        canvas.drawInlineImage(picture, 0, 0, *A4)

    return pdfs.draw(name, 2, draw)


@pytest.mark.slow
@pytest.mark.skipif(ocr.program() is None, reason="no tesseract here (package tesseract-ocr)")
def test_scanned_pages_are_recognised_when_asked(pdfs: Any) -> None:
    path = _scan(pdfs, "scan.pdf")
    with pytest.raises(BadInput, match="scanned") as refused:
        read_file(path)
    assert "--ocr" in refused.value.hint
    found = read_file(path, ocr="eng")
    assert [page.text for page in found.pages] == [f"The harbour opens at nine on page {n}." for n in (1, 2)]
    assert [(page.flag, page.ocr, page.pictures) for page in found.pages] == [("", True, 0)] * 2
    assert "tesseract" in found.extractor
    assert "pages 1-2 of 2: recognised by OCR" in found.warnings[0]
    cancel = threading.Event()
    with pytest.raises(Cancelled):
        read_file(path, ocr="eng", cancel=cancel, progress=lambda done, total: cancel.set())


def test_ocr_that_is_not_there_says_what_to_install(pdfs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pdfs.text("plain.pdf", [["Text."]])
    for name in ("-x", "../eng", "eng;ls"):
        with pytest.raises(WrongUse, match="names no language"):
            read_file(path, ocr=name)
    monkeypatch.setattr(ocr, "languages", lambda: ("eng", "osd"))
    monkeypatch.setattr(ocr, "program", lambda: "tesseract")
    with pytest.raises(WrongUse, match="no data for deu") as missing:
        read_file(path, ocr="deu+eng")
    assert "tesseract-ocr-deu" in missing.value.hint
    monkeypatch.setattr(ocr, "program", lambda: None)
    with pytest.raises(AppError, match="not installed") as absent:
        read_file(path, ocr="eng")
    assert "tesseract-ocr" in absent.value.hint
    with pytest.raises(BadInput) as scanned:
        read_file(pdfs.scanned("scan.pdf", "s"))
    assert "tesseract-ocr" in scanned.value.hint


def test_tables_code_and_columns(pdfs: Any) -> None:
    """Tables keep their cells, program code its indents, two columns drawn line by line their order."""
    height = A4[1]

    def draw(canvas: Any, index: int) -> None:
        if index == 1:
            for row, cells in enumerate((("Boat", "Fee", "Crew"), ("Gull", "12", ""), ("Tern", "", "4"))):
                for column, cell in enumerate(cells):
                    canvas.drawString(105 + 100 * column, height - 115 - 20 * row, cell)
            canvas.grid([100, 200, 300, 400], [height - 100 - 20 * row for row in range(4)])
            for row in range(4):
                for column, cell in enumerate((f"Item {row}", f"{row * 3}.50", "euros")):
                    canvas.drawString(100 + 120 * column, height - 300 - 15 * row, cell)
            canvas.setFont("Courier", 10)
            for row, line in enumerate(("def add(a, b):", "    return a + b", "total = add(1, 2)   # three")):
                canvas.drawString(100, height - 500 - 12 * row, line)
        else:
            for row in range(12):
                canvas.drawString(60, height - 150 - 15 * row, f"left line {row} tells about the old moon")
                canvas.drawString(330, height - 150 - 15 * row, f"right line {row} tells about the sun")

    found = read_file(pdfs.draw("kinds.pdf", 2, draw))
    lines = found.pages[0].text.split("\n")
    assert lines[:3] == ["Boat | Fee | Crew", "Gull | 12 |", "Tern |  | 4"]
    assert [f"Item {row} | {row * 3}.50 | euros" for row in range(4)] == [line for line in lines if "euros" in line]
    assert lines[-3:] == ["def add(a, b):", "    return a + b", "total = add(1, 2)   # three"]
    second = [line for line in found.pages[1].text.split("\n") if line]
    assert [line.split()[0] for line in second] == ["left"] * 12 + ["right"] * 12
    assert found == read_file(pdfs.folder / "kinds.pdf")  # the same text each time
