"""What is shown: model output and names are hostile, numbers and words are exact."""

from __future__ import annotations

import ast
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_app import FakeCitation, FakeConversation, FakeMessage
from hypothesis import given
from hypothesis import strategies as st

import ui
from app.errors import AppError, DoesNotFit
from app.turn import Passage, TurnState, TurnStats
from ui import strings
from ui.backend import DocumentView, FitView, ModelView, Sample
from ui.render.documents import render_meter, render_tray
from ui.render.html import duration, escape, one_line, shorten
from ui.render.markdown import allowed_link, render_markdown
from ui.render.messages import render_empty, render_history, render_live
from ui.render.sidebar import Editing, render_sidebar, time_group
from ui.render.status import render_status, render_top
from ui.uploads import Upload
from ui.views import answer_of_state

HOSTILE = [
    "<script>window.__x=1</script>",
    "<img src=x onerror='window.__x=1'>",
    '"><svg onload=window.__x=1>',
    "</div></span><iframe src=//evil.example></iframe>",
    "{{constructor.constructor('window.__x=1')()}} ${window.__x=1}",
    "<a href='javascript:window.__x=1'>click</a>",
    "\u202egnp.exe\u202c\x00\x07\u2066",
    "<style>@import url(//evil.example)</style><base href=//evil.example>",
    "line one\n\nline two\r\n<b>x</b>\u2028",
    "<math><mi//xlink:href='data:x,<script>window.__x=1</script>'>",
]
TAGS = {
    "div",
    "span",
    "p",
    "button",
    "ul",
    "ol",
    "li",
    "nav",
    "h1",
    "h2",
    "h3",
    "section",
    "article",
    "details",
    "summary",
    "input",
    "header",
    "a",
    "strong",
    "em",
    "code",
    "pre",
    "blockquote",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "br",
    "hr",
    "h4",
    "h5",
    "h6",
    "s",
}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""

    def handle_starttag(self, tag, attrs) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("input", "br", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.words += data


def check(markup: str) -> _Reader:
    """Well formed, only tags and attributes that we write, links only to http(s)."""
    reader = _Reader()
    reader.feed(markup)
    assert reader.open == []
    for tag, attributes in reader.seen:
        assert tag in TAGS, tag
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            assert name != "src"
            if name == "href":
                assert str(value).lower().startswith(("http://", "https://"))
    return reader


def everything(word: str) -> list[str]:
    """Every renderer with `word` wherever the outside can put text."""
    passage = Passage("d", word, 3, word, word, 1.0)
    citation = FakeCitation("d", word, 3, word, word, word)
    stats = TurnStats(1, 1, 0, 0, 1, 1, 1, word, 1, 0, word, word, "bf16", "exact", "whole")
    state = TurnState(
        "answering",
        answer=word,
        thinking=word,
        passages=(passage,) * 5,
        citations=(citation,),
        stats=stats,
        error=AppError(word, word),
        warnings=(word,),
    )
    details = {
        "thinking": word,
        "passages": [{"document": word, "page": 1, "label": word, "text": word}],
        "warnings": [word],
        "citations": [vars(citation)],
        "stats": stats.as_dict(),
        "error": {"message": word, "hint": word, "exit_code": 3},
    }
    messages = [FakeMessage(word, "user", word), FakeMessage("a", "assistant", word, "failed", details)]
    conversations = [FakeConversation(word, word, time.time())]
    uploads = [Upload(word, "c", Path("/t") / "x", word, s, 1, 2, word, word) for s in ("reading", "locked", "failed")]
    return [
        render_history(messages),
        render_live(state),
        render_empty(Sample(Path("x"), (word,)), "new"),
        render_tray([DocumentView(word, word, word, 3, 5, (word,))], uploads),
        render_sidebar(conversations, word, word),
        render_sidebar(conversations, "", "", Editing(word, "rename")),
        render_sidebar([], "", word),
        render_sidebar(conversations, "", "", Editing(word, "delete")),
        render_top(word, word, None),
        render_status(ModelView(word, word, 1, "whole"), FitView(1, 2), answer_of_state(state).stats),
    ]


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_text_stays_text_everywhere(word: str) -> None:
    for markup in everything(word):
        check(markup)
        assert "\n" not in markup
        assert "$" not in markup
        assert "\x00" not in markup
        assert "\u202e" not in markup


@given(st.text(max_size=200))
def test_any_text_is_shown_well_formed(word: str) -> None:
    for markup in everything(word):
        check(markup)
        assert "\n" not in markup
        assert "\r" not in markup


LINKS = {
    "https://example.org/a?b=c#d": True,
    "http://example.org": True,
    "HTTP://example.org": True,
    "http://[::1]:80/": True,
    "javascript:alert(1)": False,
    "JaVaScRiPt:alert(1)": False,
    "java\nscript:alert(1)": False,
    " javascript:x": False,
    "file:///etc/passwd": False,
    "smb://host/share": False,
    "data:text/html,x": False,
    "vbscript:x": False,
    "calculator://": False,
    "mailto:a@b.c": False,
    "//evil.example": False,
    "/gradio_api/x": False,
    "?c=1": False,
    "http:evil": False,
    "https://": False,
    "http://user:pw@evil.example/": False,
    "": False,
    "ftp://x/y": False,
}


@pytest.mark.parametrize(("url", "fine"), LINKS.items())
def test_only_web_links_are_links_and_show_their_target(url: str, fine: bool) -> None:
    assert allowed_link(url) is fine
    for source in (f"[click]({url})", f"[click](<{url}>)", f"[click][r]\n\n[r]: {url}", f"<{url}>"):
        reader = check(render_markdown(source))
        anchors = [attributes for tag, attributes in reader.seen if tag == "a"]
        assert fine or anchors == []
        for anchor in anchors:
            assert anchor["rel"] == "noopener noreferrer nofollow"
            assert anchor["target"] == "_blank"
            assert str(anchor["href"]) in reader.words


@pytest.mark.parametrize(
    "source",
    [
        "![alt](https://evil.example/x.png)",
        "![alt][r]\n\n[r]: https://evil.example/x",
        "![](http://evil.example/?q=secret)",
        "<img src=https://evil.example/x>",
        "[![alt](https://evil.example/i)](https://evil.example/l)",
        "<svg><image href=https://evil.example/x></svg>",
        "<video src=https://evil.example/x>",
    ],
)
def test_images_are_never_loaded(source: str) -> None:
    reader = check(render_markdown(source))
    assert not any(tag in ("img", "image", "video", "svg") for tag, _ in reader.seen)


def test_markdown_is_rendered() -> None:
    shown = render_markdown("# T\n\n**b** *i* `a<b`\n\n- one\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx < 1\n```")
    for part in ("<h1>T</h1>", "<strong>b</strong>", "a&lt;b", "<li>one</li>", "<td>1</td>", "x &lt; 1"):
        assert part in shown


def test_a_deeply_nested_answer_takes_no_time() -> None:
    started = time.perf_counter()
    check(render_markdown("> " * 3000 + "x" + "[" * 3000 + "*" * 3000))
    assert time.perf_counter() - started < 5


def test_reading_shows_share_tokens_and_time() -> None:
    state = TurnState("reading", read_done=615, read_total=6150, eta_s=95.0)
    words = check(render_live(state)).words
    assert "10 %" in words
    assert "615 of 6,150 tokens" in words
    assert "about 2 min left" in words
    assert "2 before this one" in check(render_live(TurnState("queued", position=2))).words


def test_passages_come_before_the_answer_and_sources_say_who_found_them() -> None:
    passage = Passage("d", "manual.pdf", 12, "xii", "Filters are covered for 12 months.", 1.0)
    citation = FakeCitation("d", "manual.pdf", 12, "xii", "Filters are covered", "attributed", (7,))
    shown = render_live(TurnState("answering", answer="A year.", passages=(passage,), citations=(citation,)))
    assert shown.index("Filters are covered for 12") < shown.index("A year.")
    words = check(shown).words
    assert "page 12 (printed xii)" in words
    assert "found by the app, not by the model" in words


def test_a_quote_that_stands_nowhere_names_no_page() -> None:
    citation = FakeCitation("", "", 0, "", "Never said", "not_found")
    words = check(render_live(TurnState("answering", answer="A year.", citations=(citation,)))).words
    assert "no page" in words
    assert "page 0" not in words


def test_what_does_not_fit_offers_both_ways_out() -> None:
    state = TurnState("failed", error=DoesNotFit("Needs 48,210 tokens.", "Choose pages.", needed_tokens=48210))
    names = [a.get("name") for _, a in check(render_live(state)).seen]
    assert "retry-passages" in names
    assert "retry-pages" in names
    assert "retry-pages" not in [
        a.get("name") for _, a in check(render_live(TurnState("failed", error=AppError("x")))).seen
    ]


def test_status_line_and_meter() -> None:
    stats = TurnStats(2310, 2104, 0, 206, 1.84, 47.0, 20, "stop", 1.0, 0, "cpu", "m", "bf16", "exact", "passages")
    status = check(
        render_status(
            ModelView("SmolLM2", "cpu", 8192, "passages"),
            FitView(6000, 8000),
            answer_of_state(TurnState("done", stats=stats)).stats,
        )
    ).words
    for part in (
        "SmolLM2",
        "cpu profile",
        "re-used 2,104 of 2,310 tokens",
        "first token 1.8 s",
        "21 tokens/s",
        "6,000 of 8,000",
    ):
        assert part in status
    assert "width:75%" in render_meter(FitView(6000, 8000))
    assert "too long" in render_meter(FitView(9000, 8000))
    assert "width:100%" in render_meter(FitView(9000, 8000))
    assert render_meter(None) == ""


def test_the_demo_model_is_called_what_it_is() -> None:
    demo = ModelView("SmolLM2", "cpu", 8192, "passages", demo=True)
    assert "demo model: 135M, English, often wrong" in check(render_top("t", "c", demo)).words
    assert "demo" not in check(render_top("t", "c", ModelView("Qwen", "cpu", 8192, "whole"))).words


def test_time_groups() -> None:
    noon = time.mktime((2026, 3, 10, 12, 0, 0, 0, 0, -1))
    for hours, group in (
        (0, "today"),
        (11, "today"),
        (13, "yesterday"),
        (35, "yesterday"),
        (37, "week"),
        (500, "older"),
    ):
        assert time_group(noon - hours * 3600, noon) == group


def test_small_helpers() -> None:
    assert shorten("one two three four", 12) == "one two…"
    assert shorten("文" * 50, 10) == "文" * 9 + "…"
    assert [duration(s) for s in (0.2, 40, 180, 4800)] == ["1 s", "40 s", "3 min", "1 h 20 min"]
    assert escape('<a b="c">') == "&lt;a b=&quot;c&quot;&gt;"
    assert one_line("a\r\n\nb") == '<div class="ub-block">a&#10;&#10;b</div>'


def test_every_text_is_used_and_every_used_text_exists() -> None:
    """Every key is found in the code, as it is or through a computed prefix, and the other way round."""
    code = "".join(path.read_text() for path in Path(ui.__file__).parent.rglob("*.py") if path.name != "strings.py")
    literal = {
        node.value
        for node in ast.walk(
            ast.parse("\n".join(re.findall(r"^.*$", code, re.M)).replace("from __future__ import annotations", ""))
        )
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    computed = ("group.", "empty.", "turn.status.", "ask.", "changes.", "export.", "parts.cell.", "table.")
    for key in strings.TEXTS:
        stem = key.removesuffix(".one").removesuffix(".many")
        assert key in literal or stem in literal or key.startswith(computed), key
    for used in re.findall(r'\btext\(\s*["\']([a-z_.]+)["\']', code):
        assert used in strings.TEXTS, used
    with pytest.raises(KeyError):
        strings.text("no.such")
