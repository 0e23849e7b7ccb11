"""The strip that shows where the model looked: its markup, and in a browser."""

import re

import pytest
from fake_app import looked

from app.evidence import DocumentLook, Evidence
from app.viewer import Place
from app.words import sentences
from ui.render.evidence import MOST_BARS, bars, marks_of, page_value, render_evidence
from ui.render.html import escape, one_line
from ui.render.markdown import Mark, render_markdown
from ui.render.viewer import read_look

ANSWER = "The **warranty** lasts 24 months. Wear parts are excluded.\n\n1. Keep the receipt.\n2. Call first."
HOSTILE = '"><img src=x onerror=alert(1)>.pdf'
SOURCES = (
    ANSWER,
    "One **bold.** Two is here. *Three. Four.*",
    "- a b. c d.\n- e f.\n\n| a | b |\n|---|---|\n| 1. x | 2 |\n\n```\ncode. here\n```\nEnd [l](http://a.b/c). fin",
    "# Head\n\nText *it. al*. x's `a. b` c.\n\n3. Five.\n   - six. \n> quote. more.",
    "<script>alert(1)</script> said. [bad](javascript:x). ![i. j](http://x.example/y.png) end.",
    "第一句。第二句？ Third.",
)


def marked(source: str) -> str:
    marks = [Mark(a, b, f"ub-s ub-s-{number}") for number, (a, b) in enumerate(sentences(source))]
    return render_markdown(source, marks)


@pytest.mark.parametrize("source", SOURCES)
def test_sentences_are_marked_and_nothing_else_changes(source: str) -> None:
    found = marked(source)
    assert 'class="ub-s ub-s-0"' in found
    plain = re.sub(r'<span class="ub-s[^>]*>([^<]*)</span>', r"\1", found)
    assert plain == render_markdown(source)


def test_each_sentence_is_reached_once_by_keyboard() -> None:
    found = marked("Ape **b** cat *d* eel. Fox **g** hen.")
    assert found.count("tabindex") == 2
    assert found.count("ub-s-0") > 2
    assert '<span class="ub-s ub-s-1" tabindex="0">Fox </span>' in found


def test_signs_in_an_answer_are_no_marks() -> None:
    source = "A \U00010a7f1\U00010a7f b. \ue0000\ue001 c\ue002."
    found = marked(source)
    assert "ub-s" not in found
    assert "\U00010a7f" not in found


def test_the_strip_of_an_answer() -> None:
    found = render_evidence(looked(ANSWER, "manual.pdf"), newest=True)
    assert found.startswith('<details class="ub-looked" open>')
    (bar,) = re.findall(r'title="(pages \d+ to \d+: \d+ %, most on page 412)"', found)
    assert bar.startswith("pages 409 to 414: ")
    assert escape(page_value("d1", 412)) in found
    assert ">manual.pdf, page 412 (printed xii): 10 %</button>" in found
    assert 'class="ub-look-said ub-of ub-of-0"' in found
    assert found.count("ub-look-bar") <= MOST_BARS + 14
    closed = render_evidence(looked(ANSWER, "manual.pdf"), newest=False)
    assert "<summary>Where the model looked: most at page 3</summary>" in closed
    assert "ub-of" not in closed
    assert len(closed) < 40_000


@pytest.mark.parametrize("count", [2, 99, 100, 101, 600, 12_345])
def test_bars_stand_for_all_pages(count: int) -> None:
    pages = tuple(range(1, count + 1))
    made = bars(pages, dict.fromkeys(pages, 1 / count) | {count: 0.5})
    assert len(made) <= MOST_BARS
    assert made[-1].page == count
    assert made[-1].left + made[-1].width == pytest.approx(100)
    assert sum(bar.share for bar in made) <= 1.5 + 1e-9


def test_a_click_opens_the_page_in_the_viewer() -> None:
    assert read_look(page_value("d1", 412)) == (Place("d1", 412), 0, False)


def test_names_of_documents_stay_text() -> None:
    found = Evidence((DocumentLook('"><b>', HOSTILE, (1, 2), (0.5, 0.5), {1: "<i>L1"}),), ())
    markup = one_line(render_evidence(found, newest=True))
    assert "<img" not in markup
    assert "<b>" not in markup
    assert "<i>" not in markup


def test_no_strip_where_there_is_nothing_to_choose() -> None:
    assert render_evidence(None, newest=True) == ""
    assert render_evidence(Evidence((DocumentLook("d", "d", (1,), (1.0,), {}),), ()), newest=True) == ""
    assert marks_of(None) == ()


def test_a_sentence_shows_its_own_pages(page, snap) -> None:
    page.fill("#ub-question textarea", "say One here. Two there. looked")
    page.press("#ub-question textarea", "Enter")
    page.wait_for_selector(".ub-looked")
    strip = page.locator(".ub-looked")
    assert strip.locator(".ub-look-said:visible").count() == 1
    assert strip.locator(".ub-look-mark:visible").count() == 0
    page.hover(".ub-s-1")
    strip.locator(".ub-look-said", has_text="This sentence").nth(1).wait_for()
    assert "page 35: 60 %" in strip.locator(".ub-look-said:visible").inner_text()
    assert strip.locator(".ub-look-mark:visible").count() == 2
    snap(page, "evidence-sentence")
    page.locator(".ub-s-0").first.focus()
    page.wait_for_function(
        "document.querySelector('.ub-looked .ub-look-said.ub-on').textContent.includes('page 5: 60 %')"
    )
    page.hover(".ub-title")
    page.wait_for_function("!document.querySelector('.ub-sentence-shown')")
    for width, dark in ((1024, False), (1280, True)):
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("dark => document.body.classList.toggle('dark', dark)", dark)
        box = strip.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
        snap(page, f"evidence-{width}-{'dark' if dark else 'light'}")


@pytest.mark.parametrize(
    "value", ['["d", Infinity, "", 0, 0, 0, 0]', "[" * 100_000, '["d", NaN, "", 0, 0, 0, 0]', "{}"]
)
def test_what_no_button_carries_is_no_place(value: str) -> None:
    assert read_look(value) is None
