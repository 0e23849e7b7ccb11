"""The text of a page, from lines as the readers give them."""

from __future__ import annotations

import time

from app.ingest.extracted import ExtractedPage
from app.ingest.layout import RawLine, RawPage, bad_share, condense
from app.ingest.layout import assemble as assemble_pages


def assemble(pages: list[RawPage]) -> list[ExtractedPage]:
    return assemble_pages([condense(page) for page in pages])


def text_of(*lines: str) -> str:
    [page] = assemble([RawPage(1, "1", tuple(RawLine(line) for line in lines))])
    return page.text


def test_hyphens_at_line_ends() -> None:
    assert text_of("exam-", "ple") == "example"
    assert text_of("exam\x02", "ple") == "example"
    assert text_of("exam\ufffeple") == "example"
    assert text_of("exam\u00ad", "ple") == "example"
    assert text_of("exam\x02ple") == "example"
    assert text_of("a long-term plan", "the long-", "term view") == "a long-term plan\nthe long-term view"
    assert text_of("North\x02", "Sea") == "North-\nSea"
    assert text_of("pages 12-", "14") == "pages 12-\n14"
    assert text_of("a dash -", "then text") == "a dash -\nthen text"
    assert text_of("fünf-", "zig Gäste") == "fünfzig Gäste"


def test_ligatures_symbols_and_widths() -> None:
    assert text_of("e\ufb03cient \ufb01re \ufb02ow \ufb05op") == "efficient fire flow stop"
    assert text_of("\uf0b7 first point") == "• first point"
    assert text_of("x² ＡＢＣ ½ ①") == "x² ＡＢＣ ½ ①"  # no other character is changed


def test_bad_share() -> None:
    assert bad_share("") == bad_share("plain text, Größe, 中文, \uf0b7 a bullet") == 0
    assert bad_share("\ufffd" * 5 + "abcde") == 0.5
    assert bad_share("\ue123" * 10) == 1
    assert bad_share("(cid:12)(cid:7)") == 1
    assert bad_share("\x01\x02ab") == 0.25  # \x02 is pdfium's hyphen


def placed(text: str, top: float) -> RawLine:
    return RawLine(text, top, top + 0.014, top + 0.014)


def test_roman_numbers_in_footers_follow_the_labels() -> None:
    labels = ["i", "ii", "iii", "iv"]
    bodies = ["Whales", "Seals", "Gulls", "Crabs"]
    pages = [
        RawPage(n, label, (placed(body, 0.3), placed(f"Preface {label}", 0.95)))
        for n, (label, body) in enumerate(zip(labels, bodies, strict=True), 1)
    ]
    assert [page.text for page in assemble(pages)] == bodies


def test_a_chapters_title_beside_the_page_number_is_running() -> None:
    """Such a line stands on few of the pages, but the number in it is the page's own throughout the book."""
    chapters = ["Tides"] * 4 + ["Winds"] * 4 + ["Fog"] * 4
    bodies = [f"body of {letter}" for letter in "abcdefghijkl"]
    pages = [
        RawPage(n, str(n), (placed(body, 0.3), placed("Total 12", 0.9), placed(f"{chapter}  {n + 20}", 0.95)))
        for n, (chapter, body) in enumerate(zip(chapters, bodies, strict=True), 1)
        if n != 12
    ]
    pages[0] = RawPage(1, "1", (placed("body of a", 0.3), placed("Loss 21", 0.95)))
    assert assemble(pages)[0].text.endswith("Loss 21")
    assert not any(chapter in page.text for page in assemble(pages) for chapter in chapters)


def test_without_places_nothing_is_left_out() -> None:
    pages = [RawPage(n, str(n), (RawLine("Same line"), RawLine(f"body {n * 7}"))) for n in range(1, 6)]
    assert [page.text for page in assemble(pages)] == [f"Same line\nbody {n * 7}" for n in range(1, 6)]


def test_hostile_lines_cost_linear_time() -> None:
    start = time.process_time()
    for hostile in ("a" * 1_000_000, "a-" * 500_000, "\x02" * 1_000_000, "1 " * 500_000, " " * 1_000_000):
        text_of("begin", hostile, "end")
    assert time.process_time() - start < 20
