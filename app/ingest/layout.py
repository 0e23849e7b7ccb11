"""From the lines of a PDF's pages to the text that is read: hyphens joined, ligatures spelled out, paragraphs kept,
running headers and footers left out.

`condense` makes one page small, in the child; `assemble` sees all pages, in the app's own process. Everything here is
linear in the text, since the text may be hostile.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from app.ingest.extracted import ExtractedPage

EDGE_BAND = 0.12  # running lines stand in the outer share of the page's height
EDGE_LINES = 2  # and are at most so many
RUNNING_SHARE = 0.4  # a running line repeats on so many of the pages with text
RUNNING_PAGES = 3  # and on at least so many
GARBLED_SHARE = 0.03
FEW_STEPS = 4
PARAGRAPH_STEP = 1.35  # so many usual line steps begin a new paragraph

_LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}
# bullets and arrows of the Symbol and Wingdings fonts, which Word writes as private-use characters
_SYMBOLS = {0xF0B7: "•", 0xF0A7: "▪", 0xF0A8: "◻", 0xF0D8: "➢", 0xF0E0: "→", 0xF0FC: "✓", 0xF076: "❖", 0xF02D: "-"}
_TRANSLATION: dict[int, str | None] = {**_LIGATURES, **_SYMBOLS, 0: None, 0xFEFF: None}
_LINE_END_HYPHEN = re.compile(r"(?<=[^\W\d_])[\x02\ufffe\u00ad\u2010-](?:\r?\n|(?<=[\x02\ufffe]))(?=([^\W\d_]{1,40}))")
_WORD_BEFORE = re.compile(r"\w{1,40}\Z")
_MARK = re.compile(r"[\x02\ufffe]")
_WORD = re.compile(r"(?<!\w)\w{1,40}(?:[-\u2010]\w{1,40})+(?!\w)")
_BAD = re.compile("[\x00\x01\x03-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ue000-\uf8ff\ufffd\U000f0000-\U0010ffff]")
_CODES = re.compile(r"\(cid:\d+\)|/[gG]\d+|/uni[0-9A-F]{4}")
_NUMBER = re.compile(r"\d+")
_DISTANCE = re.compile(r"\{[+-]\d+\}")


@dataclass(frozen=True, slots=True)
class RawLine:
    """One line as the reader gave it, with shares of the page's height from its upper edge (None if unknown).

    top, foot: upper and lower edge of the line; bottom: lower edge of its last part, for a row of a table whose cells
    have several lines.
    """

    text: str
    top: float | None = None
    foot: float | None = None
    bottom: float | None = None


@dataclass(frozen=True, slots=True)
class RawPage:
    """One page as the reader gave it; `damaged` if neither reader could read it; `images` if it has hardly any
    text but shows something. pictures, formulas: how many of them it shows that are not in the text."""

    index: int
    label: str
    lines: tuple[RawLine, ...]
    images: bool = False
    damaged: bool = False
    pictures: int = 0
    formulas: int = 0


def bad_share(text: str) -> float:
    """Share of characters that mean nothing: replacement, private use, control, codes of glyphs without a character."""
    if not text:
        return 0.0
    bad = sum(1 for char in _BAD.findall(text) if ord(char) not in _SYMBOLS)
    bad += sum(len(code) for code in _CODES.findall(text))
    return bad / len(text)


@dataclass(frozen=True, slots=True)
class PageText:
    """One page on its way to the app: text with an empty line between paragraphs, not yet cleaned.

    edges: (line of the text, its upper edge as a share of the page's height) of lines that may be headers or footers.
    Other fields as in RawPage; ocr: the text was recognised on a picture of the page, on which its words have the
    places that `app.ingest.recognised` reads from `words`.
    """

    index: int
    label: str
    text: str
    edges: tuple[tuple[int, float], ...] = ()
    images: bool = False
    damaged: bool = False
    pictures: int = 0
    formulas: int = 0
    ocr: bool = False
    words: str = ""


def condense(page: RawPage) -> PageText:
    steps = [step for above, below in pairwise(page.lines) if (step := _step(above, below)) > 0]
    usual = median(steps) if steps else 0.0
    if len(steps) < FEW_STEPS:  # too few to tell what is usual: what the size of the letters allows
        heights = [line.foot - line.top for line in page.lines if line.top is not None and line.foot is not None]
        usual = min(usual, 1.3 * max(heights, default=usual))
    parts: list[str] = []
    places: list[int] = []
    for number, line in enumerate(page.lines):
        if number and usual and _step(page.lines[number - 1], line) > PARAGRAPH_STEP * usual:
            parts.append("")
        places.append(len(parts))
        parts.append(line.text.replace("\n", " "))
    edges = tuple((places[number], top) for number, top in _edges(page.lines))
    return PageText(
        page.index,
        page.label,
        "\n".join(parts),
        edges,
        page.images,
        page.damaged,
        page.pictures,
        page.formulas,
    )


def assemble(pages: Sequence[PageText]) -> list[ExtractedPage]:
    """Pages with clean text and a flag; page numbers and labels stay as they are."""
    running = _running_lines(pages)
    left_out = [[place for place, keys in _edge_keys(page) if not running.isdisjoint(keys)] for page in pages]
    hyphenated = _hyphenated_words(page.text for page in pages)
    return [_finish(page, places, hyphenated) for page, places in zip(pages, left_out, strict=True)]


def _finish(page: PageText, running: Sequence[int], hyphenated: frozenset[str]) -> ExtractedPage:
    lines = page.text.split("\n")
    header = "\n".join(lines[place].strip() for place in sorted(running))
    gone = frozenset(running)
    text = _clean("\n".join(line for place, line in enumerate(lines) if place not in gone), hyphenated)
    nothing = not text
    if nothing and page.text.strip():
        # Only running lines: keep them, they may be all that the page says; on a picture of a page they are a stamp.
        text, header = _clean(page.text, hyphenated), ""
        nothing = page.images or not text
    if page.damaged:
        flag = "garbled"
    elif nothing:
        flag = "scanned" if page.images else "empty"
    else:
        flag = "garbled" if bad_share(text) > GARBLED_SHARE else ""
    return ExtractedPage(
        page.index,
        page.label,
        text,
        flag,
        0 if flag == "scanned" or page.ocr else page.pictures,
        page.formulas,
        header,
        page.ocr,
        page.words,
    )


def _clean(text: str, hyphenated: frozenset[str]) -> str:
    """Hyphens, ligatures, controls and blanks of one page's text."""

    def join(match: re.Match[str]) -> str:
        after = match[1]
        if not after[0].islower():
            return "-" + match[0][1:]
        before = _WORD_BEFORE.search(match.string[max(0, match.start() - 40) : match.start()])
        compound = before is not None and f"{before[0]}-{after}".lower() in hyphenated
        return "-" if compound else ""

    text = _LINE_END_HYPHEN.sub(join, text)
    text = _MARK.sub("-", text).translate(_TRANSLATION)
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _hyphenated_words(bodies: Iterable[str]) -> frozenset[str]:
    """Words that the document itself writes with a hyphen inside a line: those keep it at a line's end."""
    return frozenset(word.replace("\u2010", "-").lower() for body in bodies for word in _WORD.findall(body))


def _step(above: RawLine, below: RawLine) -> float:
    """From the foot of one line to that of the next, 0.0 if unknown; negative where a new column begins."""
    return 0.0 if above.bottom is None or below.foot is None else below.foot - above.bottom


def _edges(lines: Sequence[RawLine]) -> list[tuple[int, float]]:
    """(number, upper edge) of the lines at the upper and lower edge of a page; none where a place is unknown."""
    placed = [(line.top, line.bottom, number) for number, line in enumerate(lines) if line.text.strip()]
    known = sorted((top, bottom, number) for top, bottom, number in placed if top is not None and bottom is not None)
    if len(known) != len(placed):
        return []
    upper = [entry for entry in known if entry[1] <= EDGE_BAND][:EDGE_LINES]
    lower = [entry for entry in known if entry[0] >= 1 - EDGE_BAND][-EDGE_LINES:]
    return sorted((number, round(top, 4)) for top, _, number in {*upper, *lower})


def _edge_keys(page: PageText) -> list[tuple[int, list[tuple[str, int]]]]:
    """(line of the page's text, keys under which it may repeat) for the lines at the edges.

    A key is the line's text and its height on the page; a number that moves with the page stands as its distance from
    the page's index, so that "Page 7 of 90" repeats but "Section 7" on page 31 does not.
    """
    if not page.edges:
        return []
    lines = page.text.split("\n")
    return [(place, _keys(page, lines[place], top)) for place, top in page.edges]


def _keys(page: PageText, text: str, top: float) -> list[tuple[str, int]]:
    text = " ".join(text.split()).casefold()
    if len(text) > 200:
        return []
    texts = [text]
    for match in _NUMBER.finditer(text):
        if len(match[0]) <= 5:
            texts.append(f"{text[: match.start()]}{{{int(match[0]) - page.index:+d}}}{text[match.end() :]}")
    label = page.label.casefold()
    if label and label != str(page.index) and re.search(rf"(?<!\w){re.escape(label)}(?!\w)", text):
        texts.append(re.sub(rf"(?<!\w){re.escape(label)}(?!\w)", "{label}", text))
    # rounded twice, so that a line on the border between two heights still meets its like
    return [(key, height) for key in texts for height in (round(top * 100) * 2, int(top * 100) * 2 + 1)]


def _running_lines(pages: Sequence[PageText]) -> frozenset[tuple[str, int]]:
    """Keys that repeat often enough. With the page's own number in it, a line need only run through one chapter."""
    with_text = sum(1 for page in pages if page.text.strip())
    counts: Counter[tuple[str, int]] = Counter()
    distances: Counter[str] = Counter()
    for page in pages:
        keys = {key for _, keys in _edge_keys(page) for key in keys}
        counts.update(keys)
        distances.update({found[0] for text, _ in keys if (found := _DISTANCE.search(text))})
    often = max(RUNNING_PAGES, RUNNING_SHARE * with_text)
    page_numbers = {distance for distance, count in distances.items() if count >= often}

    def is_running(text: str, count: int) -> bool:
        found = _DISTANCE.search(text)
        return count >= often or (count >= RUNNING_PAGES and found is not None and found[0] in page_numbers)

    return frozenset(key for key, count in counts.items() if is_running(key[0], count))
