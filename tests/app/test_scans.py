"""Scanned pages: named wherever the file lies, read by OCR when asked for, kept, and never a loss when it fails."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from app import conversations, documents, scans
from app.before_reading.choice import store_choice, stored_choice
from app.changes import apply_changes
from app.errors import AppError, BadInput, Cancelled, NeedsOcr, WrongUse
from app.ingest import extractor, ocr, ocr_of
from app.pages import PageChoice
from app.scans import ScannedFile, ocr_estimate, read_scans, scans_of
from app.settings import Settings
from app.viewer import Place, Viewer
from app.wiring import App
from storage import Document, Library, NotFound
from tests.app.scanned_pdfs import DEED, LAMP, MIXED, needs_tesseract, write_scan


@pytest.fixture(scope="module")
def app(starter_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    data = tmp_path_factory.mktemp("scans") / "data"
    with App.open(Settings(data_dir=data, model=str(starter_model))) as opened:
        yield opened


def add(app: App, path: Path) -> tuple[str, Document]:
    conversation = app.library.create_conversation("").id
    (added,) = documents.add_files(app, conversation, [path])
    assert added.document is not None, added.error
    return conversation, added.document


def records(root: Path) -> Path:
    """A folder with a PDF that is scanned in part, one that is scanned in full, and code."""
    (root / "old").mkdir(parents=True)
    write_scan(root / "handbook.pdf", MIXED)
    write_scan(root / "old" / "deed.pdf", DEED)
    (root / "tide.py").write_text("def alarm(level):\n    return level > 3\n")
    return root


def packed(root: Path) -> Path:
    with zipfile.ZipFile(root.with_suffix(".zip"), "w") as archive:
        for file in sorted(root.rglob("*.*")):
            archive.write(file, str(file.relative_to(root)))
    return root.with_suffix(".zip")


def texts(app: App, document: str) -> dict[str, str]:
    return {row.label: row.text for row in app.library.pages(document)}


def test_pages_are_named_in_a_file_a_folder_and_an_archive(app: App, tmp_path: Path) -> None:
    _, alone = add(app, write_scan(tmp_path / "handbook.pdf", MIXED))
    found = scans_of(app.library, alone)
    assert found is not None
    assert found.files == (ScannedFile("", (2,)),)
    assert found.sentence() == "Page 2 of handbook.pdf is scanned: a picture without text, so it was not read."
    with pytest.raises(AssertionError, match="scanned") as refused:
        add(app, write_scan(tmp_path / "deed.pdf", DEED))
    assert "pages 1-2 of 2" in str(refused.value)
    root = records(tmp_path / "records")
    for path in (root, packed(root)):
        _, document = add(app, path)
        found = scans_of(app.library, document)
        assert found is not None
        wanted = {ScannedFile("handbook.pdf", (2,)), ScannedFile("old/deed.pdf", (1, 2), whole=True)}
        assert set(found.files) == wanted
        assert found.pages == 3
        assert "handbook.pdf (page 2)" in found.sentence()
        assert "old/deed.pdf (all of it)" in found.note()
        view = Viewer(app).look(Place(document.id, next(iter(_pages(app, document.id, "handbook.pdf:p2")))))
        assert view.scanned
        assert view.picture
    _, plain = add(app, root / "tide.py")
    assert scans_of(app.library, plain) is None


def _pages(app: App, document: str, label: str) -> Iterator[int]:
    return (row.index for row in app.library.pages(document) if row.label == label)


def test_a_file_of_pictures_says_how_many(app: App, tmp_path: Path) -> None:
    root = tmp_path / "only"
    root.mkdir()
    write_scan(root / "deed.pdf", DEED)
    for path in (root / "deed.pdf", root, packed(root)):
        (added,) = documents.add_files(app, app.library.create_conversation("").id, [path])
        assert isinstance(added.error, NeedsOcr)
        assert added.error.pages == 2


def test_names_of_extractors_tell_their_languages() -> None:
    assert ocr_of(extractor("pdf")) == ocr_of(extractor("folder")) == ""
    for kind in ("pdf", "folder", "archive"):
        assert ocr_of(extractor(kind, "deu+eng")) == "deu+eng"
        assert ocr_of(extractor(kind, "chi_sim") + "+partial") == "chi_sim"


def test_an_estimate_is_a_guess_until_something_was_measured(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        guess = ocr_estimate(library, 10, "eng")
        assert not guess.measured
        clock = scans._Clock(None)
        clock(3, 4)
        clock(4, 4)
        clock._begin, clock._end = 0.0, 6.0
        clock.keep(library, "deu+eng")
        one, two = ocr_estimate(library, 10, "eng"), ocr_estimate(library, 10, "deu+eng")
        assert (one.seconds, one.measured, two.seconds) == (7.5, True, 15.0)


def test_without_tesseract_nothing_is_read_and_the_document_stays(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, document = add(app, write_scan(tmp_path / "stays.pdf", MIXED))
    monkeypatch.setattr(ocr, "program", lambda: None)
    with pytest.raises(AppError, match="not installed"):
        read_scans(app, conversation, document.id, "eng")
    with pytest.raises(WrongUse, match="names no language"):
        read_scans(app, conversation, document.id, "../eng")
    assert app.library.documents(conversation) == [document]
    assert ocr.readable() == ()
    assert "tesseract-ocr" in ocr.INSTALL


@needs_tesseract
@pytest.mark.slow
def test_scanned_pages_of_a_file_are_read_and_kept(app: App, tmp_path: Path) -> None:
    path = write_scan(tmp_path / "harbour.pdf", MIXED)
    conversation, document = add(app, path)
    store_choice(app, conversation, PageChoice.parse("2-3", document.id))
    told: list[tuple[int, int]] = []
    cancel = threading.Event()
    with pytest.raises(Cancelled):
        read_scans(app, conversation, document.id, "eng", cancel=cancel, progress=lambda *_: cancel.set())
    assert app.library.documents(conversation) == [document], "cancelled: as it was"
    fresh = read_scans(app, conversation, document.id, "eng", progress=lambda *news: told.append(news))
    assert told[-1] == (1, 1), "progress counts scanned pages"
    assert app.library.documents(conversation) == [fresh]
    assert texts(app, fresh.id) == {"1": MIXED[0][1], "2": LAMP, "3": MIXED[2][1]}
    row = app.library.page(fresh.id, 2)
    assert row is not None
    assert row.ocr
    assert fresh.name == "harbour.pdf"
    assert scans_of(app.library, fresh) is None
    chosen = stored_choice(app, conversation)
    assert chosen is not None
    assert chosen.pages(fresh.id, 3) == (2, 3), "what was chosen stays chosen"
    assert document.id not in {d.id for d in app.library.documents()}, "nobody asked anything: the old reading goes"
    assert app.library.search("lamp room code", [fresh.id], 1)[0].page == 2
    assert ocr_estimate(app.library, 1, "eng").measured
    view = Viewer(app).look(Place(fresh.id, 2, LAMP))
    assert view.picture

    other, again = add(app, path)
    message = app.library.add_message(other, "user", "Asked before.")
    now: list[object] = []
    assert read_scans(app, other, again.id, "eng", progress=lambda *news: now.append(news)).id == fresh.id
    assert now == [], "kept: nothing is recognised twice"
    assert again.id in {d.id for d in app.library.documents()}, "earlier citations open in the old reading"
    assert message.text
    conversations.delete(app, other, with_documents=True)
    assert again.id not in {d.id for d in app.library.documents()}
    conversations.delete(app, conversation, with_documents=True)
    assert not list((app.data_dir / "documents").glob(f"{document.sha256}*"))


@needs_tesseract
@pytest.mark.parametrize("while_read", ["taken out", "deleted", "asked"])
def test_nothing_is_left_of_a_reading_that_found_no_place(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, while_read: str
) -> None:
    conversation, document = add(app, write_scan(tmp_path / "gone.pdf", MIXED))
    read = scans._read

    def read_meanwhile(*arguments: object) -> Document:
        fresh = read(*arguments)  # type: ignore[arg-type]
        if while_read == "taken out":
            documents.detach(app, conversation, document.id)
        elif while_read == "deleted":
            conversations.delete(app, conversation, with_documents=True)
        else:
            monkeypatch.setattr(type(app.engine_service), "current", lambda *_: object())
        return fresh

    monkeypatch.setattr(scans, "_read", read_meanwhile)
    with pytest.raises((AppError, NotFound)) as stopped:
        read_scans(app, conversation, document.id, "eng")
    assert isinstance(stopped.value, Cancelled) == (while_read == "taken out")
    left = [other for other in app.library.documents() if other.sha256 == document.sha256]
    assert left == ([document] if while_read == "asked" else [])
    if left:
        conversations.delete(app, conversation, with_documents=True)
    assert not list((app.data_dir / "documents").glob(f"{document.sha256}*"))


def _tell(told: list[tuple[int, int]], done: int, total: int) -> None:
    told.append((done, total))


@needs_tesseract
@pytest.mark.slow
def test_scanned_files_of_folders_and_archives_are_read(app: App, tmp_path: Path) -> None:
    root = records(tmp_path / "records")
    for path in (root, packed(root)):
        conversation, document = add(app, path)
        told: list[tuple[int, int]] = []
        fresh = read_scans(app, conversation, document.id, "eng", progress=partial(_tell, told))
        assert told[-1] == (3, 3)
        found = texts(app, fresh.id)
        assert found["handbook.pdf:p2"] == LAMP
        assert found["old/deed.pdf:p1"] == DEED[0][1]
        assert found["tide.py:L1-2"]
        assert app.library.documents(conversation) == [fresh]
        assert scans_of(app.library, fresh) is None
        view = Viewer(app).look(Place(fresh.id, next(_pages(app, fresh.id, "old/deed.pdf:p2")), DEED[1][1]))
        assert (view.file, view.file_page) == ("old/deed.pdf", 2)
        assert view.picture
    # a folder that was read with OCR goes on being read so, and what is known is not recognised again
    conversation, fresh = add(app, root)
    assert ocr_of(fresh.extractor) == "eng"
    assert scans_of(app.library, fresh) is None
    (root / "tide.py").write_text("def alarm(level):\n    return level > 4\n")
    newer = apply_changes(app, conversation, fresh.id, "again")
    assert ocr_of(newer.extractor) == "eng"
    assert texts(app, newer.id)["old/deed.pdf:p2"] == DEED[1][1]


@needs_tesseract
@pytest.mark.slow
def test_a_file_of_pictures_is_added_with_ocr_or_says_that_it_holds_nothing(app: App, tmp_path: Path) -> None:
    conversation = app.library.create_conversation("").id
    (added,) = documents.add_files(app, conversation, [write_scan(tmp_path / "deed.pdf", DEED)], ocr="eng")
    assert added.document is not None
    assert list(texts(app, added.document.id).values()) == [text for _, text in DEED]
    (empty,) = documents.add_files(app, conversation, [write_scan(tmp_path / "white.pdf", [("s", " ")])], ocr="eng")
    assert isinstance(empty.error, BadInput)
    assert not isinstance(empty.error, NeedsOcr), "it is not offered a second time"
