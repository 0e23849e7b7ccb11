"""In a real browser: a document read in parts, and many questions answered as a table."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api")


def with_document(page, tmp_path: Path) -> None:
    file = tmp_path / "manual.pdf"
    file.write_bytes(b"%PDF-1.4")
    page.locator("input[type=file]").first.set_input_files(str(file))
    page.wait_for_selector("#ub-tray :text('manual.pdf')")
    page.wait_for_selector(".ub-suggestion")


def test_parts_show_where_they_are_and_what_they_found(page, served, snap, tmp_path: Path) -> None:
    backend, _ = served
    with_document(page, tmp_path)
    snap(page, "suggestions")
    assert page.locator(".ub-suggestion").all_inner_texts()[0] == "Summarize this document."
    page.get_by_text("Part by part", exact=True).click()
    page.wait_for_selector("#ub-pages :is(input, textarea)")
    with backend.held("parts"):
        page.locator("#ub-question textarea").fill("Where is the warranty?")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Part 5 of 12, pages 41–50")
        assert "40 of 120 pages read" in page.locator(".ub-parts-now").inner_text()
        assert page.locator(".ub-live .ub-cell").count() == 12
        assert page.locator(".ub-live .ub-cell-found").count() == 1
        assert page.locator(".ub-live .ub-cell-left").count() == 7
        snap(page, "parts_running")
    page.wait_for_selector(".ub-log .ub-parts")
    facts = page.locator(".ub-log .ub-parts-facts").inner_text()
    assert "Read in 12 parts: 120 of 120 pages" in facts
    assert "2 pages have no text" in facts
    assert "found in 2 parts" in facts
    page.locator(".ub-log .ub-parts > summary").click()
    page.wait_for_selector(".ub-parts-list :text('pages 21–30')")
    snap(page, "parts_done")
    page.locator("#ub-theme").click()
    page.set_viewport_size({"width": 1024, "height": 800})
    snap(page, "parts_done_dark")


def test_stop_in_the_middle_of_parts_keeps_what_was_found(page, served, tmp_path: Path) -> None:
    backend, _ = served
    with_document(page, tmp_path)
    page.get_by_text("Part by part", exact=True).click()
    with backend.held("parts"):
        page.locator("#ub-question textarea").fill("Where is the warranty?")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Part 5 of 12")
        page.locator("#ub-stop").click()
        page.wait_for_selector(".ub-log :text('Stopped after 4 of 12 parts: 40 of 120 pages')")
    assert "(page 24)" in page.locator(".ub-log .ub-text").inner_text()
    assert page.locator(".ub-log .ub-cell-left, .ub-log .ub-cell-now").count() == 8


def test_many_questions_become_a_table_to_download(page, served, snap, tmp_path: Path) -> None:
    backend, _ = served
    with_document(page, tmp_path)
    page.locator("#ub-many-open").click()
    listed = tmp_path / "questions.txt"
    listed.write_text("# warranty\nHow long is it?\n2. =What voids it?\n\nWho pays?\nWhere is the form?\n", "utf-8")
    page.locator("#ub-many input[type=file]").set_input_files(str(listed))
    playwright.expect(page.locator("#ub-listed textarea")).to_have_value(re.compile("Who pays"))
    snap(page, "many_panel")
    with backend.held("rows"):
        page.locator("#ub-many-send").click()
        page.wait_for_selector("text=Question 3 of 4")
        assert "Who pays?" in page.locator(".ub-table-now").inner_text()
        assert page.locator(".ub-live .ub-table tbody tr").count() == 2
        snap(page, "table_running")
    page.wait_for_selector(".ub-log .ub-table tbody tr:nth-child(4)")
    assert "4 of 4 answered" in page.locator(".ub-log .ub-downloads").inner_text()
    assert "Answer <b>1</b> | with a bar." in page.locator(".ub-log .ub-table").inner_text()
    assert not page.locator("#ub-many").is_visible()
    snap(page, "table_done")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text("utf-8-sig"))))
    assert waiting.value.suggested_filename == "questions.csv"
    assert [row["question"] for row in rows] == [
        "How long is it?",
        "'=What voids it?",
        "Who pays?",
        "Where is the form?",
    ]
    assert rows[0]["pages"] == "manual.pdf p. 1"
    assert rows[0]["quote_status"] == "quote found (1)"
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Markdown").click()
    text = Path(waiting.value.path()).read_text("utf-8")
    assert r"| How long is it? | Answer \<b>1\</b> \| with a bar. |" in text
    page.reload()
    page.wait_for_selector(".ub-log .ub-table tbody tr:nth-child(4)")
    page.locator("#ub-theme").click()
    page.set_viewport_size({"width": 1024, "height": 800})
    snap(page, "table_done_dark")


def test_stop_keeps_the_finished_rows(page, served, tmp_path: Path) -> None:
    backend, _ = served
    with_document(page, tmp_path)
    page.locator("#ub-many-open").click()
    page.locator("#ub-listed textarea").fill("One?\nTwo?\nThree?\nFour?")
    with backend.held("rows"):
        page.locator("#ub-many-send").click()
        page.wait_for_selector("text=Question 3 of 4")
        page.locator("#ub-stop").click()
        page.wait_for_selector(".ub-log .ub-downloads :text('2 of 4 answered')")
    assert page.locator(".ub-log .ub-table tbody tr").count() == 2
