"""Cuts a document's pages into the passages that search finds.

A passage lies inside one page and has roughly 80 to 120 words. It is cut between sentences, paragraphs, list items or
lines; a heading and other short lines stay with what follows. Neighbours share their border sentence. Running heads and
feet, which stand on many pages, are left out. Pure text in, passages out.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from storage.text import SPACELESS_RUN, character_pairs

TARGET_WORDS = 100
MOST_WORDS = 130
LEAST_WORDS = 45  # a heading starts a new passage only if the one before has this much
OVERLAP_WORDS = 28
LONGEST_WORD = 120  # characters; anything longer is not a word and is cut hard
MOST_CHARACTERS_PER_WORD = 12
SPACELESS_CHARACTERS_PER_WORD = 1.7

_LIST_ITEM = re.compile(r"\s*(?:[-*•‣▪–—·o]|\(?[0-9]{1,3}[.)]|\(?[a-zA-Z][.)])\s+\S")
_NUMBERED_HEADING = re.compile(
    r"\s*(?:chapter\s+|section\s+|appendix\s+)?((?:[0-9]{1,3}|[A-Z])(?:\.[0-9]{1,3})*)\.?\s+\S", re.I
)
_MARKDOWN_HEADING = re.compile(r"(#{1,6})\s+\S")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+(?=[\"'“‘(\[]?[A-Z0-9À-ÞА-Я])|(?<=[。！？；])")
_HYPHEN_BREAK = re.compile(r"(?<=[^\W\d_])(?:[-\u00ad\u2010]\n|\ufffe\n?|\x02\n?)\s*(?=[a-zà-ÿ])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufffe\uffff]")
_BLANK_ENDED = re.compile(r"\S+\s*")
_DIGITS = re.compile(r"\d+")
_ENDS_SENTENCE = (".", "!", "?", ":", ";", "。", "！", "？", "…")


@dataclass(frozen=True, slots=True)
class Passage:
    """`heading` is the section that the passage stands in, `pairs` its character pairs for scripts without spaces."""

    page: int
    heading: str
    text: str
    pairs: str


@dataclass(frozen=True, slots=True)
class _Unit:
    """A sentence or a line that is never cut."""

    text: str
    words: float
    heading: int = 0  # its level, 0 if it is none
    binds_next: bool = False


def split_pages(pages: Sequence[tuple[int, str]]) -> list[Passage]:
    """Passages of all pages [(index, text)], in order."""
    cleaned = [(index, _clean(text).split("\n")) for index, text in pages]
    running = _running_lines([lines for _, lines in cleaned])
    section: dict[int, str] = {}
    passages = []
    for index, lines in cleaned:
        left_out = {place for place in _edge_lines(lines) if _without_numbers(lines[place]) in running}
        kept = [line for place, line in enumerate(lines) if place not in left_out]
        if not any(line.strip() for line in kept):
            kept = lines  # a page of nothing else: rather a running line than no text
        passages.extend(_page_passages(index, _units(kept), section))
    return passages


def count_words(text: str) -> float:
    """Words as a reader would count them; scripts without spaces count by characters."""
    spaceless = sum(len(run) for run in SPACELESS_RUN.findall(text))
    return len(SPACELESS_RUN.sub(" ", text).split()) + spaceless / SPACELESS_CHARACTERS_PER_WORD


def _size(text: str) -> float:
    """Words, but not fewer than so many characters would be: code and tables have long ones."""
    return max(count_words(text), len(text) / MOST_CHARACTERS_PER_WORD)


def _clean(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    return _UNPRINTABLE.sub(" ", _HYPHEN_BREAK.sub("", text))


def _edge_lines(lines: Sequence[str]) -> list[int]:
    filled = [position for position, line in enumerate(lines) if line.strip()]
    return sorted({*filled[:2], *filled[-2:]})


def _running_lines(pages: Sequence[Sequence[str]]) -> set[str]:
    """First and last lines that recur, page numbers apart, on a fifth of the pages (and at least four)."""
    seen: Counter[str] = Counter()
    for lines in pages:
        seen.update({_without_numbers(lines[place]) for place in _edge_lines(lines) if len(lines[place]) <= 120})
    need = max(4, len(pages) / 5)
    return {line for line, count in seen.items() if count >= need}


def _without_numbers(line: str) -> str:
    return _DIGITS.sub("#", line).strip()


def _heading_level(line: str, blank_before: bool, width: float) -> int:
    """1 and deeper for lines that look like a section's title, 0 for all others."""
    line = line.strip()
    markdown = _MARKDOWN_HEADING.match(line)
    if markdown:
        return len(markdown[1])
    if not line or len(line) > 90 or len(line) > 0.9 * width + 10 or line.endswith((".", ",", ";", ":", "。", "，")):
        return 0
    numbered = _NUMBERED_HEADING.match(line)
    letters = [word for word in line.split() if word[0].isalpha()]
    if not letters or "...." in line or ". . ." in line:
        return 0
    if numbered and (numbered[1][0].isdigit() or len(numbered[1]) > 1) and letters[0][0].isupper():
        return 1 + numbered[1].count(".")
    capital = sum(word[0].isupper() for word in letters if len(word) > 3)
    long_words = sum(len(word) > 3 for word in letters)
    if blank_before and len(letters) <= 10 and letters[0][0].isupper() and long_words and capital >= 0.6 * long_words:
        return 4
    return 0


def _units(lines: Sequence[str]) -> list[_Unit]:
    filled = [len(line.rstrip()) for line in lines if line.strip()]
    width = median(sorted(filled)[len(filled) // 2 :]) if filled else 0.0
    units: list[_Unit] = []
    paragraph: list[str] = []

    def close_paragraph() -> None:
        if paragraph:
            short = len(paragraph) == 1 and len(paragraph[0]) < 0.6 * width
            units.extend(_sentences("\n".join(paragraph), binds_next=short))
            paragraph.clear()

    blank_before = True
    for line in lines:
        if not line.strip():
            close_paragraph()
            blank_before = True
            continue
        level = _heading_level(line, blank_before, width)
        if level:
            close_paragraph()
            units.append(_Unit(line.strip(), _size(line), heading=level, binds_next=True))
        else:
            if _LIST_ITEM.match(line):
                close_paragraph()
            paragraph.append(line.rstrip())
            if len(line.rstrip()) < 0.75 * width and (
                line.rstrip().endswith(_ENDS_SENTENCE) or len(line) < 0.4 * width
            ):
                close_paragraph()
        blank_before = False
    close_paragraph()
    return units


def _sentences(paragraph: str, binds_next: bool) -> list[_Unit]:
    units = []
    for sentence in _SENTENCE_END.split(paragraph):
        if sentence and sentence.strip():
            units.extend(_Unit(part, _size(part), binds_next=binds_next) for part in _hard_cut(sentence.strip("\n")))
    return units


def _hard_cut(sentence: str) -> list[str]:
    """Cuts what has no sentence end for too long: between lines if it can, else between words, else anywhere."""
    if _size(sentence) <= MOST_WORDS:
        return [sentence]
    parts: list[list[str]] = [[]]
    total = 0.0
    for word in _BLANK_ENDED.findall(sentence):
        for start in range(0, len(word), LONGEST_WORD):
            piece = word[start : start + LONGEST_WORD]
            full = total + _size(piece) > TARGET_WORDS
            if parts[-1] and (full or (total > TARGET_WORDS / 2 and parts[-1][-1].endswith("\n"))):
                parts.append([])
                total = 0.0
            parts[-1].append(piece)
            total += _size(piece)
    return ["".join(part).rstrip() for part in parts if part]


def _page_passages(page: int, units: Sequence[_Unit], section: dict[int, str]) -> list[Passage]:
    """Packs the units of one page; `section` (level -> title) carries the open headings on to the next page."""
    passages: list[Passage] = []
    current: list[_Unit] = []
    heading = _title(section)

    def emit(units: Sequence[_Unit]) -> None:
        text = "\n".join(unit.text for unit in units).strip()
        if text:
            passages.append(Passage(page, heading, text, character_pairs(f"{heading}\n{text}")))

    for unit in units:
        size = sum(part.words for part in current)
        starts_section = bool(unit.heading) and size >= LEAST_WORDS
        if current and (starts_section or size + unit.words > MOST_WORDS or size >= TARGET_WORDS):
            head = list(current)
            tail: list[_Unit] = []
            while len(head) > 1 and head[-1].binds_next and sum(part.words for part in tail) < LEAST_WORDS:
                tail.insert(0, head.pop())
            if all(part.binds_next for part in head):  # a table: cut it where it is
                head, tail = list(current), []
            emit(head)
            if not tail and not starts_section and head[-1].words <= OVERLAP_WORDS and not head[-1].binds_next:
                tail = [head[-1]]
            current = tail
            heading = _title(section)
        if unit.heading:
            for level in [level for level in section if level >= unit.heading]:
                del section[level]
            section[unit.heading] = unit.text.lstrip("# ")
            if all(part.heading for part in current):
                heading = _title(section)
        current.append(unit)
    emit(current)
    return passages


def _title(section: dict[int, str]) -> str:
    return " > ".join(section[level] for level in sorted(section))
