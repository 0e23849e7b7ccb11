"""From the browser to the real starter model and back: a real PDF, a real answer, a restart, and it goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_browser import ask, until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@contextmanager
def running(data_dir: Path, model: Path) -> Iterator[str]:
    import ui
    from app.settings import load_settings
    from app.wiring import App

    settings = load_settings({"model": str(model), "max_answer_tokens": 32}, {}, data_dir)
    with App.open(settings) as app, ui.launch(app, open_browser=False) as page:
        yield page.address


def wait_for_answer(page, count: int) -> str:
    until(page, f"document.querySelectorAll('#ub-history .ub-answer').length === {count}", seconds=240)
    return page.inner_text(f"#ub-history .ub-answer >> nth={count - 1}")


def test_a_real_pdf_is_asked_and_the_conversation_outlives_a_restart(
    chromium, snap, data_dir: Path, starter_model: Path, tmp_path: Path
) -> None:
    from app.sample import SAMPLE_PDF, SAMPLE_QUESTIONS

    pdf = tmp_path / "museum.pdf"
    pdf.write_bytes(SAMPLE_PDF.read_bytes())
    first = SAMPLE_QUESTIONS[0]
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(60_000)
    with running(data_dir, starter_model) as address:
        page.goto(address)
        page.wait_for_selector(".ub-empty")
        page.set_input_files("#ub-controls input[type=file]", str(pdf))
        page.wait_for_selector(".ub-doc:not(.ub-doc-busy) >> text=/\\d+ pages · [\\d,]+ tokens/")
        ask(page, first.question)
        page.wait_for_selector(".ub-passage")
        pages = page.locator(".ub-passages > ol .ub-page").all_inner_texts()
        assert any(re.search(rf"page {first.page}\b", shown) for shown in pages), pages
        answer = wait_for_answer(page, 1)
        snap(page, "real-answer")
        assert page.locator(".ub-error").count() == 0
        assert len(page.inner_text("#ub-history .ub-text")) > 5
        status = page.inner_text("#ub-status")
        assert re.search(r"re-used [\d,]+ of [\d,]+ tokens", status)
        assert re.search(r"first token \d+\.\d s", status)
        assert re.search(r"\d+ tokens/s", status)
        assert "demo model: 135M, English, often wrong" in page.inner_text("#ub-top")
        conversation = page.url.split("?c=")[1]
    with running(data_dir, starter_model) as address:
        page.goto(f"{address}&c={conversation}")
        page.wait_for_selector("#ub-history .ub-text")
        assert page.inner_text("#ub-history .ub-answer").split() == answer.split()
        assert "museum.pdf" in page.inner_text("#ub-tray")
        ask(page, SAMPLE_QUESTIONS[1].question)
        wait_for_answer(page, 2)
        reused = re.search(r"re-used ([\d,]+) of", page.inner_text("#ub-status"))
        assert reused is not None
        assert int(reused[1].replace(",", "")) > 100
    context.close()
