"""The viewer in a real chromium, over the real app: a chip opens the page, the quote is marked, keys work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_browser import until
from viewed_app import LONG, Viewed, viewed

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ANSWERS = (
    ("Where does the anchor stock come from?", f'It was found by a dredger: "{LONG}" (page 3).'),
    ("And when is it open?", 'The handbook says "Opening hours are from nine to five." [p. 4].'),
    (
        "Who sounds the siren?",
        "The siren sounds when the water is high (tide.py:61-62). It has a golden roof (page 2).",
    ),
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, starter_model: Path) -> Iterator[tuple[Viewed, str]]:
    import ui

    with viewed(tmp_path_factory.mktemp("viewed"), starter_model) as made:
        for question, answer in ANSWERS:
            made.answer(question, answer)
        with ui.launch(made.app, open_browser=False) as running:
            yield made, f"{running.address}&c={made.conversation}"


@pytest.fixture
def page(chromium, opened):
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    shown = context.new_page()
    shown.set_default_timeout(20_000)
    problems: list[str] = []
    shown.on("pageerror", lambda error: problems.append(str(error)))
    host = opened[1].split("/?")[0]
    context.on("request", lambda r: None if r.url.startswith((host, "data:", "blob:")) else problems.append(r.url))
    shown.goto(opened[1])
    shown.wait_for_selector("#ub-history .ub-chip >> nth=2")
    yield shown
    context.close()
    assert problems == []


def boxes(page) -> list[dict[str, float]]:
    return page.evaluate(
        """() => { const sheet = document.querySelector('.ub-sheet').getBoundingClientRect();
        return [...document.querySelectorAll('.ub-box')].map(b => { const r = b.getBoundingClientRect();
        return {top: (r.top - sheet.top) / sheet.height, left: (r.left - sheet.left) / sheet.width,
                width: r.width / sheet.width, height: r.height / sheet.height}; }); }"""
    )


def picture_is_there(page) -> None:
    until(
        page,
        "(() => { const i = document.querySelector('.ub-sheet img'); return i && i.complete && i.naturalWidth })()",
    )


def test_a_chip_opens_its_page_with_the_quote_marked(page, snap) -> None:
    page.click("#ub-history .ub-answer >> nth=0 >> .ub-text .ub-chip")
    page.wait_for_selector("#ub-view .ub-box")
    picture_is_there(page)
    assert "page 3 of 5" in page.inner_text(".ub-view-page")
    assert page.get_attribute(".ub-sheet img", "src").endswith("/3-0.png")
    found = boxes(page)
    assert len(found) == 3, "three lines of the quote"
    assert all(0.2 < box["top"] < 0.5 and box["width"] > 0.2 and 0.005 < box["height"] < 0.03 for box in found), found
    visible = page.evaluate(
        """() => { const b = document.querySelector('.ub-view-body').getBoundingClientRect();
        const r = document.querySelector('.ub-box').getBoundingClientRect();
        return r.top >= b.top && r.bottom <= b.bottom; }"""
    )
    assert visible
    snap(page, "viewer-light")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".ub-view-page >> text=page 4 of 5")
    assert page.locator(".ub-box").count() == 0
    page.wait_for_selector(".ub-view-note >> text=nothing is marked")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#ub-view .ub-box")
    page.click(".ub-view-bar button:has(.ub-icon-plus)")
    until(page, "document.querySelector('.ub-sheet img').src.endsWith('/3-1.png')")
    picture_is_there(page)
    page.click(".ub-view-mode")
    page.wait_for_selector(".ub-prose .ub-mark")
    assert "212" in "".join(page.locator(".ub-mark").all_inner_texts())
    page.keyboard.press("Escape")
    page.wait_for_selector("#ub-viewer", state="hidden")
    focused = page.evaluate("document.activeElement.classList.contains('ub-chip')")
    assert focused, "the focus goes back to where it came from"


def test_a_wrong_page_is_repaired_and_says_so(page, snap) -> None:
    chip = page.locator("#ub-history .ub-answer").nth(1).locator(".ub-text .ub-chip")
    assert "said p. 4" in chip.inner_text()
    assert re.search(r"1 p\. 2 ✓", chip.inner_text())
    source = page.locator("#ub-history .ub-answer").nth(1).locator(".ub-source").inner_text()
    assert "the answer said p. 4, it stands on p. 2" in source
    chip.hover()
    snap(page, "viewer-repaired")
    assert chip.locator(".ub-tip-quote").is_visible()
    chip.click()
    page.wait_for_selector(".ub-view-page >> text=page 2 of 5")
    page.wait_for_selector("#ub-view .ub-box")


def test_code_opens_with_its_lines_marked(page, snap) -> None:
    chip = page.locator("#ub-history .ub-answer").nth(2).locator(".ub-text .ub-chip").first
    assert "tide.py:" in chip.inner_text()
    chip.click()
    page.wait_for_selector(".ub-lines .ub-line-cited")
    cited = page.locator(".ub-line-cited").all_inner_texts()
    assert any("Sounds the siren when the water is high" in line for line in cited), cited
    numbers = [int(re.match(r"\d+", line)[0]) for line in cited]
    assert str(numbers[0]) in chip.inner_text()
    snap(page, "viewer-code")


def test_what_no_page_says_is_said(page) -> None:
    answer = page.locator("#ub-history .ub-answer").nth(2)
    chip = answer.locator(".ub-text .ub-chip.ub-not_found")
    assert "✗" in chip.inner_text()
    assert "not found" in answer.locator(".ub-source").nth(1).inner_text()
    chip.click()
    page.wait_for_selector(".ub-view-page >> text=page 2 of 5")
    assert page.locator(".ub-box").count() == 0


def test_a_passage_card_opens_its_page(page) -> None:
    page.locator("#ub-history .ub-answer").last.locator(".ub-passage-open").first.click()
    page.wait_for_selector(".ub-view-page >> text=page 2 of 5")
    page.wait_for_selector("#ub-view .ub-box")
    page.click("[name=look-close]")
    page.wait_for_selector("#ub-viewer", state="hidden")


@pytest.mark.parametrize(("width", "scheme"), [(1024, "dark"), (1024, "light"), (400, "dark")])
def test_it_fits_at_any_width(chromium, opened, snap, width: int, scheme: str) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto(opened[1])
    page.click("#ub-history .ub-answer >> nth=0 >> .ub-text .ub-chip")
    page.wait_for_selector("#ub-view .ub-box")
    picture_is_there(page)
    snap(page, f"viewer-{width}-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        """() => [...document.querySelectorAll('.ub-view-head *, .ub-view-bar *')].filter(e => e.checkVisibility()
        && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.className)"""
    )
    assert outside == []
    if width > 860:
        assert page.locator("#ub-question textarea").is_visible()
    page.keyboard.press("Escape")
    page.wait_for_selector("#ub-viewer", state="hidden")
    context.close()


@pytest.mark.parametrize("ending", ["md", "json", "docx"])
def test_the_export_menu_saves_the_conversation(page, opened, ending: str) -> None:
    page.click(".ub-exports summary")
    page.wait_for_selector(".ub-export-menu", state="visible")
    rows = page.locator(".ub-export-as")
    assert rows.count() == 3
    with page.expect_download() as started:
        rows.nth(_order(page).index(ending)).click()
    saved = Path(started.value.path()).read_bytes()
    assert started.value.suggested_filename.endswith(f".{ending}")
    if ending == "docx":
        assert saved.startswith(b"PK")
    else:
        assert b"bronze anchor stock" in saved
        assert b"golden roof" in saved


def _order(page) -> list[str]:
    """The endings of the menu, from top to bottom."""
    return page.eval_on_selector_all(".ub-export-as", "rows => rows.map(row => row.value.split('.').pop())")
