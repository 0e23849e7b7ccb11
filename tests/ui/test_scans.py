"""Scanned pages on the page: a card to read them with OCR, progress in the chip, stop, and what to install."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_app import FakeBackend
from test_browser import add, until

from app.errors import AppError, WrongUse
from ui.render.documents import render_tray
from ui.scans import ScanOffers
from ui.uploads import Upload, Uploads


class Screen:
    """A fake app with its uploads and offers."""

    def __init__(self, folder: Path) -> None:
        self.backend = FakeBackend(folder / "temp", step=0.001)
        self.uploads = Uploads(self.backend)
        self.offers = ScanOffers(self.backend, self.uploads)
        self.conversation = self.backend.new_conversation()

    def add(self, name: str) -> None:
        self.uploads.add(self.conversation, [self.backend.temp_dir / name])
        self.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + 20
        while any(upload.busy for upload in self.uploads.of(self.conversation)):
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def card(self) -> str:
        return self.offers.render(self.conversation)[0]

    def act(self, action: str, id: str, languages: str = "") -> None:
        self.offers.act(self.conversation, action, id, languages)

    def tray(self) -> str:
        offered = self.offers.render(self.conversation)[1]
        return render_tray(self.backend.documents(self.conversation), self.uploads.of(self.conversation), offered)


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    made = Screen(tmp_path)
    yield made
    made.uploads.close()


def test_a_time_that_cannot_be_told_is_a_problem_of_that_file(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    screen.add("scan.pdf")
    (document,) = screen.backend.documents(screen.conversation)

    def broken(pages: int, languages: str) -> None:
        raise AppError("The disk cannot be read.", "Look at it.")

    monkeypatch.setattr(screen.backend, "ocr_estimate", broken)
    screen.uploads.recognise_document(screen.conversation, document.id, "scan.pdf", "eng", 2)
    screen.wait()
    (upload,) = screen.uploads.of(screen.conversation)
    assert (upload.state, upload.message) == ("failed", "The disk cannot be read.")


def test_a_document_in_part_scanned_is_read_in_the_language_that_was_ticked(screen: Screen) -> None:
    screen.add("scan.pdf")
    (document,) = screen.backend.documents(screen.conversation)
    card = screen.card()
    assert "Pages 3-4 of scan.pdf are scanned" in card
    assert "about 6 s, a guess" in card
    assert card.count('type="checkbox"') == 2
    assert 'value="deu" checked' in card
    assert "pages 3-4" in screen.tray()
    for languages, error in (("", "Choose a language"), ("eng+xxx", "no longer"), ("../eng", "no longer")):
        with pytest.raises(WrongUse, match=error):
            screen.act("ocr", document.id, languages)
    with screen.backend.held("ocr"):
        screen.act("ocr", document.id, "eng")
        screen.act("ocr", document.id, "eng")  # a second click changes nothing
        (upload,) = screen.uploads.of(screen.conversation)
        assert (upload.languages, upload.scanned) == ("eng", 2)
        until_reading = time.monotonic() + 20
        while screen.uploads.of(screen.conversation)[0].total != 2:
            assert time.monotonic() < until_reading
            time.sleep(0.005)
        tray = screen.tray()
        assert tray.count("ub-doc-name") == 1, "progress stands in the document's own chip"
        assert "recognising page 1 of 2 · about 6 s left" in tray
        assert 'name="upload-close"' in tray
        assert "<li" not in screen.card()
        assert "ub-scan" not in screen.card()
    screen.wait()
    (fresh,) = screen.backend.documents(screen.conversation)
    assert fresh.notes == ("Recognised by OCR (eng): pages 3-4.",)
    assert "ub-scan" not in screen.card()


def test_stopping_leaves_the_document_and_its_card(screen: Screen) -> None:
    screen.add("scan.pdf")
    (document,) = screen.backend.documents(screen.conversation)
    with screen.backend.held("ocr"):
        screen.act("ocr", document.id, "deu")
        (upload,) = screen.uploads.of(screen.conversation)
        screen.uploads.close_one(upload.id)
    screen.wait()
    assert screen.backend.documents(screen.conversation) == [document]
    assert screen.uploads.of(screen.conversation) == ()
    assert "ub-scan" in screen.card()


def test_a_failure_is_said_and_can_be_tried_again(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    screen.add("scan.pdf")
    (document,) = screen.backend.documents(screen.conversation)

    def fail(*_: object) -> None:
        raise AppError("tesseract has no data for deu.", "Install tesseract-ocr-deu.")

    with monkeypatch.context() as patched:
        patched.setattr(screen.backend, "read_scans", fail)
        screen.act("ocr", document.id, "deu")
        screen.wait()
    assert "Install tesseract-ocr-deu." in screen.tray()
    assert "ub-scan" in screen.card()
    screen.act("ocr", document.id, "deu")
    screen.wait()
    (fresh,) = screen.backend.documents(screen.conversation)
    assert fresh.scans is None
    assert screen.uploads.of(screen.conversation) == ()


def test_a_file_of_pictures_waits_for_a_decision(screen: Screen) -> None:
    path = screen.backend.temp_dir / "x" / "pictures.pdf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    screen.uploads.add(screen.conversation, [path])
    screen.wait()
    (upload,) = screen.uploads.of(screen.conversation)
    assert (upload.state, upload.scanned) == ("scanned", 20)
    assert "pictures.pdf is scanned: pages 1-20" in screen.card()
    screen.act("ocr-leave", upload.id)
    assert "ub-scan" not in screen.card()
    assert 'name="ocr-open"' in screen.tray()
    screen.act("ocr-open", upload.id)
    assert 'name="ocr-open"' not in screen.tray(), "the card is there"
    assert path.exists()
    screen.act("ocr", upload.id, "deu+eng")
    screen.wait()
    (document,) = screen.backend.documents(screen.conversation)
    assert document.name == "pictures.pdf"
    assert not path.exists()


def test_without_the_program_the_card_says_what_to_install(screen: Screen) -> None:
    screen.backend.ocr_languages = ()
    screen.add("scan.pdf")
    screen.add("pictures.pdf")
    card = screen.card()
    assert card.count("Install the program tesseract.") == 1
    assert "pages 1-20 of 20" in card
    assert 'name="ocr"' not in card
    (document,) = screen.backend.documents(screen.conversation)
    (upload,) = screen.uploads.of(screen.conversation)
    screen.act("ocr-leave", f"{document.id},{upload.id}")
    assert "ub-scan" not in screen.card()


def test_names_are_escaped() -> None:
    bad = Upload("u", "c", Path("<b>.pdf"), "<b>.pdf", state="scanned", scanned=1)
    assert "<b>" not in render_tray((), (bad,))


@pytest.mark.browser
@pytest.mark.slow
def test_the_card_in_a_browser(page, served, snap) -> None:
    backend, _ = served
    add(page, "scan of a deed.pdf")
    page.wait_for_selector(".ub-scan")
    snap(page, "scans-card")
    page.locator(".ub-scan label", has_text="English").click()
    page.locator(".ub-scan label", has_text="German").click()
    with backend.held("ocr"):
        page.click(".ub-scan [name=ocr]")
        page.wait_for_selector(".ub-doc-busy >> text=recognising page 1 of 2")
        assert page.locator(".ub-scan").count() == 0
        snap(page, "scans-reading")
    page.wait_for_selector("text=Recognised by OCR (eng)")
    until(page, "!document.querySelector('.ub-doc-busy')")
    assert page.locator(".ub-scan").count() == 0
