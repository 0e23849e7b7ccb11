"""Scanned files from the browser to tesseract and back: the pages are named, read when asked for, cited and shown."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from test_browser import ask, until
from test_real_app import running

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.app.scanned_pdfs import DEED, MIXED, needs_tesseract, write_scan

pytestmark = [pytest.mark.browser, pytest.mark.slow, needs_tesseract]


@pytest.fixture
def page(chromium):
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    broken: list[str] = []
    opened.on("pageerror", lambda error: broken.append(str(error)))
    yield opened
    context.close()
    assert broken == []


def test_a_scan_and_a_zip_are_read_with_ocr_and_a_citation_opens_the_page(
    page, snap, data_dir: Path, starter_model: Path, tmp_path: Path
) -> None:
    deed = write_scan(tmp_path / "deed.pdf", DEED)
    handbook = write_scan(tmp_path / "handbook.pdf", MIXED)
    archive = tmp_path / "records.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.write(handbook, "docs/handbook.pdf")
        packed.write(deed, "docs/old/deed.pdf")
        packed.writestr("tide.py", "def alarm(level):\n    return level > 3\n")
    with running(data_dir, starter_model) as address:
        page.goto(address)
        page.wait_for_selector(".ub-empty")
        page.set_input_files("#ub-controls input[type=file]", [str(archive), str(deed)])
        page.wait_for_selector(".ub-scan >> nth=1")
        cards = page.locator(".ub-scan p").all_inner_texts()
        assert any("docs/handbook.pdf (page 2), docs/old/deed.pdf (all of it)" in card for card in cards), cards
        assert any("deed.pdf is scanned: pages 1-2 of 2" in card for card in cards), cards
        snap(page, "real-scans-offered")
        for name in ("records.zip", "deed.pdf is"):
            page.locator(".ub-scan", has_text=name).locator("[name=ocr]").click()
        until(page, "!document.querySelector('.ub-scan, .ub-doc-busy')", seconds=120)
        page.wait_for_selector(".ub-doc-note >> text=by OCR (eng): letters may be wrong >> nth=1")
        snap(page, "real-scans-read")
        ask(page, "What is the code of the lamp room?")
        page.wait_for_selector(".ub-passage-open >> text=docs/handbook.pdf, page 2")
        until(page, "document.querySelectorAll('#ub-history .ub-answer').length === 1", seconds=240)
        page.locator(".ub-passage-open", has_text="docs/handbook.pdf, page 2").first.click()
        page.wait_for_selector(".ub-view-page >> text=docs/handbook.pdf, page 2 of 3")
        until(page, "(document.querySelector('.ub-sheet img') || {}).naturalWidth > 0")
        page.wait_for_selector(".ub-view-note >> text=This page is a scan")
        snap(page, "real-scans-cited")
        page.click(".ub-view-mode")
        page.wait_for_selector(".ub-prose .ub-mark")
        assert "7391" in "".join(page.locator(".ub-mark").all_inner_texts())
