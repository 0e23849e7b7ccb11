"""The page in a real chromium, over the fake app: what a user does, and what hostile documents try."""

from __future__ import annotations

import time

import pytest
from fake_app import ANSWER
from test_render import HOSTILE

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def add(page, *names: str, content: bytes = b"%PDF-1.4") -> None:
    files = [{"name": name, "mimeType": "application/pdf", "buffer": content} for name in names]
    page.set_input_files("#ub-controls input[type=file]", files)


def ask(page, question: str) -> None:
    page.fill("#ub-question textarea", question)
    page.press("#ub-question textarea", "Enter")


def until(page, expression: str, seconds: float = 30) -> None:
    """Playwright's own wait_for_function evaluates strings inside the page, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def answered(page, count: int = 1) -> None:
    until(page, f"document.querySelectorAll('#ub-history .ub-answer').length === {count}")
    page.wait_for_selector("#ub-send")


def test_upload_ask_stream_reload(page, served, snap) -> None:
    backend, _ = served
    snap(page, "empty-light")
    with backend.held("pages"):
        add(page, "warranty handbook.pdf")
        page.wait_for_selector("text=reading page 8 of 20")
        snap(page, "adding")
    page.wait_for_selector("text=20 pages · 6,150 tokens")
    with backend.held("answering"):
        with backend.held("reading"):
            ask(page, "How long is the warranty?")
            page.wait_for_selector("#ub-live .ub-passage")
            page.wait_for_selector("text=30 % · 1,845 of 6,150 tokens · about 7 s left")
            assert page.locator("#ub-live .ub-text").count() == 0, "passages come before the answer"
            snap(page, "reading-light")
        page.wait_for_selector("#ub-live .ub-text strong")
        partial = page.inner_text("#ub-live .ub-text")
        snap(page, "answering-light")
    answered(page)
    whole = page.inner_text("#ub-history .ub-text")
    assert len(partial) < len(whole)
    assert "24 months" in whole
    assert page.locator(".ub-chip").first.is_visible()
    page.hover(".ub-chip >> nth=0")
    assert page.locator(".ub-tip-quote").first.is_visible()
    snap(page, "answer-light")
    status = page.inner_text("#ub-status")
    for part in (
        "cpu profile",
        "re-used 6,150 of 6,210 tokens",
        "first token 1.8 s",
        "21 tokens/s",
        "of 11,776 tokens",
    ):
        assert part in status
    assert "demo model: 135M, English, often wrong" in page.inner_text("#ub-top")
    assert "?c=" in page.url
    assert "token" not in page.url
    page.reload()
    page.wait_for_selector("#ub-history .ub-text strong")
    assert page.inner_text("#ub-history .ub-text") == whole
    assert "warranty handbook.pdf" in page.inner_text("#ub-tray")
    assert "How long is the warranty?" in page.inner_text("#ub-conversations .ub-row-open")


def test_reload_takes_up_a_running_answer(page, served) -> None:
    with served[0].held("reading"):
        ask(page, "How long is the warranty?")
        page.wait_for_selector("text=1,845 of 6,150 tokens")
        page.reload()
        page.wait_for_selector("#ub-live >> text=1,845 of 6,150 tokens")
        assert page.locator("#ub-stop").is_visible()
    answered(page)


def test_stop_keeps_what_was_written(page, served) -> None:
    with served[0].held("answering"):
        ask(page, "say " + "word " * 30)
        page.wait_for_selector("#ub-live .ub-text >> text=word")
        page.click("#ub-stop")
        page.wait_for_selector("text=Stopped. What was written so far is kept.")
    assert 0 < page.inner_text("#ub-history .ub-text").count("word") < 30
    page.wait_for_selector("#ub-send")


def test_stop_while_reading(page, served) -> None:
    with served[0].held("reading"):
        ask(page, "anything")
        page.wait_for_selector("text=1,845 of 6,150 tokens")
        page.click("#ub-stop")
        page.wait_for_selector("text=Stopped. What was written so far is kept.")


def test_rename_search_delete(page, snap) -> None:
    ask(page, "say one")
    answered(page)
    row = page.locator(".ub-row-open")
    row.locator("[name=rename-ask]").click()
    field = page.locator("input[name=rename]")
    field.wait_for()
    assert field.evaluate("e => e === document.activeElement")
    field.fill("Ürümqi report")
    field.press("Enter")
    page.wait_for_selector(".ub-row-title >> text=Ürümqi report")
    until(page, "document.querySelector('.ub-title').textContent === 'Ürümqi report'")
    page.fill("#ub-search input", "no such thing")
    page.wait_for_selector("text=No conversation matches")
    page.fill("#ub-search input", "ürümqi")
    until(page, "document.querySelectorAll('.ub-row').length === 1")
    row.locator("[name=delete-ask]").click()
    page.wait_for_selector("text=Delete this conversation?")
    snap(page, "delete")
    page.keyboard.press("Escape")
    page.wait_for_selector(".ub-row-title >> text=Ürümqi report")
    page.locator(".ub-row-open [name=delete-ask]").click()
    page.click("[name=delete]")
    page.wait_for_selector(".ub-empty")
    assert page.url.endswith("/")
    page.wait_for_selector("text=No conversation matches")


def test_switching_conversations_shows_each_ones_own(page, served) -> None:
    ask(page, "say alpha answer")
    answered(page)
    page.click("#ub-new")
    page.wait_for_selector(".ub-empty")
    with served[0].held("answering"):
        ask(page, "say beta " + "beta " * 20)
        page.wait_for_selector("#ub-live .ub-text")
        page.locator(".ub-row-title", has_text="say alpha").first.click()
        until(page, "document.querySelector('#ub-history').innerText.includes('alpha answer')")
    until(page, "document.querySelector('#ub-history').innerText.includes('alpha answer')")
    page.wait_for_timeout(500)
    assert "beta" not in page.inner_text("#ub-scroll")
    page.locator(".ub-row-title", has_text="say beta").first.click()
    until(page, "document.querySelector('#ub-scroll').innerText.includes('beta')")
    answered(page)


def test_problems_with_files_have_a_reason_and_a_hint(page, snap) -> None:
    add(page, "broken.pdf", "locked.pdf", "scan.pdf")
    page.wait_for_selector("text=broken.pdf is damaged: it ends in the middle. Download or copy it again.")
    page.wait_for_selector("input[name=password]")
    page.wait_for_selector("text=not read, scanned: pages 3-4")
    snap(page, "documents")
    page.fill("input[name=password]", "wrong")
    page.click("[name=unlock]")
    page.wait_for_timeout(800)
    page.wait_for_selector("input[name=password]")
    page.fill("input[name=password]", "secret")
    page.press("input[name=password]", "Enter")
    page.wait_for_selector(".ub-doc:not(.ub-doc-busy):not(.ub-doc-locked) >> text=locked.pdf")
    assert "secret" not in page.content()
    page.locator(".ub-doc-failed [name=upload-close]").click()
    page.wait_for_selector(".ub-doc-failed", state="detached")
    page.locator(".ub-doc", has_text="scan.pdf").locator("[name=remove]").click()
    page.wait_for_selector("text=scan.pdf", state="detached")


def test_error_card_and_does_not_fit(page, snap) -> None:
    ask(page, "crash")
    page.wait_for_selector(".ub-error >> text=The model file is damaged.")
    assert "Download the model again." in page.inner_text(".ub-error")
    assert "Traceback" not in page.content()
    page.click("#ub-reading label:has-text('Whole document')")
    page.wait_for_selector("#ub-pages")
    ask(page, "is it too long")
    page.wait_for_selector(".ub-error >> text=48,210")
    snap(page, "does-not-fit")
    page.fill("input[name=pages]", "1-12")
    page.press("input[name=pages]", "Enter")
    page.wait_for_selector("#ub-history .ub-answer >> nth=1 >> text=24 months")
    assert page.locator("#ub-history .ub-answer").count() == 2


def test_an_error_before_the_turn_keeps_the_question(page) -> None:
    ask(page, "raise")
    page.wait_for_selector("#ub-notice >> text=The disk is full.")
    assert page.input_value("#ub-question textarea") == "raise"


def test_drop_files_on_the_page(page) -> None:
    page.evaluate(
        """() => { const data = new DataTransfer();
        data.items.add(new File(["hello"], "dropped.txt", {type: "text/plain"}));
        const at = document.querySelector("#ub-scroll");
        for (const kind of ["dragenter", "dragover", "drop"])
          at.dispatchEvent(new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true})); }"""
    )
    page.wait_for_selector(".ub-doc >> text=dropped.txt")


def test_the_sample_is_one_click_away(page) -> None:
    page.click("[name=sample] >> nth=1")
    page.wait_for_selector(".ub-doc >> text=sample handbook.pdf")
    assert page.input_value("#ub-question textarea") == "How long is the warranty?"
    page.wait_for_selector("text=20 pages")
    page.click("[name=suggest] >> nth=2")
    page.wait_for_selector("#ub-history .ub-bubble >> text=What does error E4 mean?")


def test_hostile_text_does_nothing(page, served) -> None:
    """In file name, question, title and answer, all at once."""
    backend, _ = served
    words = "\n\n".join(HOSTILE)
    backend.answer = f"{words}\n\n[link](javascript:window.__x=1) ![i](https://evil.example/i.png)\n\n`{words}`"
    try:
        add(page, "<img src=x onerror='window.__x=1'>{{1+1}}${1+1}.pdf")
        page.wait_for_selector("text=6,150 tokens")
        ask(page, words)
        answered(page)
    finally:
        backend.answer = ANSWER
    page.locator(".ub-row-open [name=rename-ask]").click()
    page.wait_for_selector("input[name=rename]")
    for anchor in page.locator("#ub-history a").all():
        assert str(anchor.get_attribute("href")).startswith("http")
    assert page.evaluate("window.__x") is None
    assert page.locator("#ub-shell :is(script, iframe, img, style, base, math, object, embed)").count() == 0
    assert "{{constructor" in page.inner_text("#ub-history .ub-text")


def test_scripts_cannot_run_even_if_markup_slips_through(chromium, served) -> None:
    """The second wall: inline handlers and remote images are refused by the page's policy itself."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(served[1])
    page.wait_for_selector(".ub-empty")
    blocked = page.evaluate(
        """async () => { const seen = [];
        document.addEventListener("securitypolicyviolation", e => seen.push(e.effectiveDirective));
        const box = document.createElement("div"); document.body.append(box);
        box.innerHTML = '<img src=x onerror="window.__x=1"><img src="https://evil.example/i.png">';
        await new Promise(r => setTimeout(r, 500)); box.remove(); return seen; }"""
    )
    assert "img-src" in blocked
    assert any(directive.startswith("script-src") for directive in blocked)
    assert page.evaluate("window.__x") is None
    context.close()


def test_keyboard_and_names(page) -> None:
    """Every button has a name, the question box takes focus, messages are a log."""
    ask(page, "say hello")
    answered(page)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input:not([type=file]), textarea')]
        .filter(e => e.checkVisibility())
        .filter(e => !(e.textContent || e.title || e.ariaLabel || e.closest('label')?.textContent || '').trim())
        .map(e => e.outerHTML.slice(0, 200))"""
    )
    assert nameless == []
    assert page.locator("[role=log]").count() == 1
    page.focus(".ub-tool >> nth=0")
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_copy_takes_the_answer(page) -> None:
    ask(page, "say copied words")
    answered(page)
    page.click("[name=copy]")
    assert page.evaluate("navigator.clipboard.readText()").strip() == "copied words"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (1024, "light"), (400, "dark")])
def test_nothing_breaks_at_any_width(chromium, served, snap, width: int, scheme: str) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto(served[1])
    page.wait_for_selector(".ub-empty")
    snap(page, f"empty-{width}-{scheme}")
    add(page, "a rather long name of a document that somebody made in a hurry 2025-03-01 final.pdf")
    page.wait_for_selector("text=6,150 tokens")
    ask(page, "How long is the warranty?")
    answered(page)
    snap(page, f"answer-{width}-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.evaluate(
        """() => [...document.querySelectorAll('#ub-dock *, #ub-top *')].filter(e => e.checkVisibility()
        && e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.ub-tray')).map(e => e.className)"""
    )
    assert wide == []
    if width < 760:
        assert not page.locator("#ub-side").is_visible()
        page.click("[name=menu]")
        page.wait_for_selector("#ub-new", state="visible")
        snap(page, f"menu-{width}-{scheme}")
    dark = page.evaluate("getComputedStyle(document.querySelector('#ub-main')).color")
    assert (dark == "rgb(236, 235, 231)") is (scheme == "dark")
    context.close()


def test_light_and_dark_can_be_chosen(page) -> None:
    page.click("#ub-theme")
    assert page.evaluate("document.body.classList.contains('dark')")
    page.reload()
    page.wait_for_selector(".ub-empty")
    until(page, "document.body.classList.contains('dark')")
