"""From the characters of a PDF page, as pdfium finds them, to words and runs with places.

A word is what stands without a gap, a run is words on one line without a wide gap: a line of prose, or one cell of a
table. Runs come in the order of the file. Places are points from the upper left corner of the page as it is seen.
pdfium's own spaces and line ends are hints only: where a file moves instead of writing a blank, pdfium often misses it.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import pypdfium2
import pypdfium2.raw as pdfium

from app.ingest.signs import baselines, compose_accents, font_sizes, name_symbols, raised_steps

SAME_LINE = 0.5  # centres that differ by less, in heights of the larger letter, stand on one line
WORD_GAP = 0.17  # in heights of a letter
HINTED_GAP = 0.1  # where pdfium sees a blank too
CJK_GAP = 0.6
RUN_GAP = 0.9
BACKWARDS = 0.3
TURNED_SAMPLES = 40  # lines that run backwards
TURNED_LETTERS = 4_000  # and letters that have none beside them
ASIDE_GAP = 0.15  # between turned words, in their letters' size
_IS_BLANK = np.zeros(0x3002, dtype=bool)  # by code; all codes behind the last one share its place
_IS_BLANK[[0x20, 0x09, 0xA0, 0x3000, *range(0x2000, 0x200C)]] = True
_LETTER_CODES = frozenset(range(0x41, 0x80))
# codes of the ff, fi, fl, ffi and ffl signs in TeX fonts (two encodings) that say nothing about their characters
_TEX_LIGATURES = {base + k: text for base in (0x0B, 0x1B) for k, text in enumerate(("ff", "fi", "fl", "ffi", "ffl"))}
_SIGNS: dict[int, str | None] = {**_TEX_LIGATURES, 0x0A: " ", 0x85: " ", 0x2028: " ", 0x2029: " "}

# Called for each character, so without conversions: pointers to all boxes of a block are made once.
_box_of = ctypes.PYFUNCTYPE(None)(ctypes.cast(pdfium.FPDFText_GetLooseCharBox, ctypes.c_void_p).value or 0)
_BLOCK = np.zeros((4096, 4), dtype=np.float32)
_BLOCK_POINTERS = [ctypes.c_void_p(_BLOCK.ctypes.data + 16 * place) for place in range(len(_BLOCK))]


class Word(NamedTuple):  # a page has hundreds of them: a tuple is made four times as fast as a frozen dataclass
    text: str
    x0: float
    x1: float


class Run(NamedTuple):
    """Words on one line, from left to right; made by `run_of`. turned: it stands across the page's other text. pitch:
    the width of its letters in points if all are equally wide, as in program code, else 0. order: its place in the
    file."""

    words: tuple[Word, ...]
    top: float
    foot: float
    turned: bool
    pitch: float
    order: int
    x0: float
    x1: float
    middle: float
    height: float

    @property
    def text(self) -> str:
        return " ".join([word[0] for word in self.words])


def run_of(
    words: tuple[Word, ...], top: float, foot: float, turned: bool = False, pitch: float = 0.0, order: int = 0
) -> Run:
    x0, x1, middle, height = words[0].x0, words[-1].x1, (top + foot) / 2, foot - top
    return tuple.__new__(Run, (words, top, foot, turned, pitch, order, x0, x1, middle, height))


@dataclass(frozen=True, slots=True)
class Frame:
    """How the page is seen: its box in PDF points and the quarter turns (0, 90, 180, 270) that it is turned by."""

    left: float
    low: float
    right: float
    high: float
    turn: int

    @property
    def size(self) -> tuple[float, float]:
        """(width, height) as seen, in points."""
        width, height = max(self.right - self.left, 1e-6), max(self.high - self.low, 1e-6)
        return (height, width) if self.turn in (90, 270) else (width, height)

    def seen(self, x0: Any, y0: Any, x1: Any, y1: Any) -> tuple[Any, Any, Any, Any]:
        """(left, top, right, foot) as seen, of boxes (numbers or arrays) with lower left corner (x0, y0)."""
        match self.turn:
            case 90:
                return y0 - self.low, x0 - self.left, y1 - self.low, x1 - self.left
            case 180:
                return self.right - x1, y0 - self.low, self.right - x0, y1 - self.low
            case 270:
                return self.high - y1, self.right - x1, self.high - y0, self.right - x0
            case _:
                return x0 - self.left, self.high - y1, x1 - self.left, self.high - y0


def frame_of(page: pypdfium2.PdfPage) -> Frame:
    return Frame(*page.get_bbox(), page.get_rotation() % 360)


def read_runs(textpage: pypdfium2.PdfTextPage, frame: Frame) -> tuple[list[Run], Frame] | None:
    """The page's runs, and the frame in which they stand upright (another one where most text is turned).

    None where places say too little: writing from right to left, fonts without sizes.
    """
    count = textpage.count_chars()
    if count <= 0:
        return [], frame
    codes = _codes(textpage, count)
    if np.count_nonzero((codes >= 0x590) & (codes <= 0x8FF)) * 20 > count:
        return None
    boxes = _boxes(textpage, count)
    sized = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 1] > boxes[:, 3])
    blank = _IS_BLANK[np.minimum(codes, _IS_BLANK.size - 1)]
    visible = np.flatnonzero(sized & ~blank & (codes != 0))
    flat = np.count_nonzero(~sized & ~blank & (codes > 0x20))
    if flat * 5 > visible.size:
        return None
    if not visible.size:
        return [], frame
    gone = compose_accents(codes, boxes, visible)
    unseen = np.ones(count, dtype=bool)
    unseen[visible] = False
    visible = visible[~gone]
    page = _Characters(textpage, codes, boxes, visible, blank & sized, unseen, frame)
    turned = page.turned_lines()
    if np.count_nonzero(turned) * 2 > visible.size:
        angle = page.angle_of(int(visible[np.flatnonzero(turned)[0]]))
        frame = Frame(frame.left, frame.low, frame.right, frame.high, (frame.turn + (90 if angle < 180 else 270)) % 360)
        page = _Characters(textpage, codes, boxes, visible, blank & sized, unseen, frame)
        turned = page.turned_lines()
    return page.runs(turned), frame


def _boxes(textpage: pypdfium2.PdfTextPage, count: int) -> np.ndarray:
    """float32 [count, 4]: left, top, right, bottom of each place; zeros where pdfium knows none."""
    boxes = np.empty((count, 4), dtype=np.float32)
    handle = ctypes.cast(textpage.raw, ctypes.c_void_p)
    for first in range(0, count, len(_BLOCK)):
        last = min(count, first + len(_BLOCK))
        _BLOCK.fill(0)
        deque(map(_box_of, repeat(handle), range(first, last), _BLOCK_POINTERS), maxlen=0)
        boxes[first:last] = _BLOCK[: last - first]
    return boxes


def _codes(textpage: pypdfium2.PdfTextPage, count: int) -> np.ndarray:
    """One code point for each place."""
    buffer = np.zeros(count + 1, dtype=np.uint16)
    into = ctypes.cast(buffer.ctypes.data, ctypes.POINTER(ctypes.c_ushort))
    written = pdfium.FPDFText_GetText(textpage.raw, 0, count, into)
    codes = buffer[:count].astype(np.uint32)
    if written - 1 != count:
        codes = np.array([pdfium.FPDFText_GetUnicode(textpage.raw, place) for place in range(count)], dtype=np.uint32)
    codes[codes == 0] = 0xFFFD  # a sign whose font does not say which character it is
    # a character beyond the basic plane has two places: the first one gets it, the second one nothing
    pairs = np.flatnonzero((codes[:-1] & 0xFC00 == 0xD800) & (codes[1:] & 0xFC00 == 0xDC00))
    codes[pairs] = 0x10000 + ((codes[pairs] & 0x3FF) << 10) + (codes[pairs + 1] & 0x3FF)
    codes[pairs + 1] = 0
    return codes


class _Characters:
    """The characters of a page as arrays; x0, top, x1, foot are of the visible ones, in the frame."""

    def __init__(
        self,
        textpage: pypdfium2.PdfTextPage,
        codes: np.ndarray,
        boxes: np.ndarray,
        visible: np.ndarray,
        real_blank: np.ndarray,
        unseen: np.ndarray,
        frame: Frame,
    ) -> None:
        self.textpage, self.frame, self.visible = textpage, frame, visible
        self.codes = codes[visible]
        box = boxes[visible].astype(np.float64)
        self.x0, self.top, self.x1, self.foot = frame.seen(box[:, 0], box[:, 3], box[:, 2], box[:, 1])
        before = np.concatenate(([0], np.cumsum(real_blank)))
        self.blank_after = before[visible[1:]] > before[visible[:-1] + 1]
        new_line = np.zeros(codes.size, dtype=bool)
        new_line[1:] = (codes[1:] == 0x0A) & (boxes[1:, 2] <= boxes[1:, 0])
        lines = np.cumsum(new_line)
        self.line = lines[visible]  # pdfium's line of each character
        hints = np.concatenate(([0], np.cumsum(unseen)))
        self.hint_after = hints[visible[1:]] > hints[visible[:-1] + 1]
        height = self.foot - self.top
        self.height = np.maximum(height[1:], height[:-1])
        middle = (self.foot + self.top) / 2
        self.same_line = np.abs(middle[1:] - middle[:-1]) < SAME_LINE * self.height
        self.gap = self.x0[1:] - self.x1[:-1]
        # letters of one ligature sign have the same place, accents stand over their letter
        self.onward = self.x0[1:] - self.x0[:-1] > -BACKWARDS * self.height

    def angle_of(self, place: int) -> int:
        """Direction of writing as seen, in degrees clockwise: 0, 90, 180 or 270."""
        radians = pdfium.FPDFText_GetCharAngle(self.textpage.raw, place)
        return (round(-np.degrees(radians) / 90) * 90 + self.frame.turn) % 360 if radians >= 0 else 0

    def turned_lines(self) -> np.ndarray:
        """For each visible character 0, or the angle (90, 270) if it is written up or down the page.

        Looked at: lines in which characters do not follow each other from left to right, and letters that stand alone.
        """
        turned = np.zeros(self.visible.size, dtype=np.int16)
        beside = self.same_line & self.onward
        odd = ~beside & (self.line[1:] == self.line[:-1])
        for line in np.unique(self.line[1:][odd])[:TURNED_SAMPLES]:
            members = np.flatnonzero(self.line == line)
            angle = self.angle_of(int(self.visible[members[members.size // 2]]))
            if angle in (90, 270):
                turned[members] = angle
        apart = np.concatenate(([True], ~beside)) & np.concatenate((~beside, [True])) & (turned == 0)
        for place in np.flatnonzero(apart)[:TURNED_LETTERS].tolist():
            angle = self.angle_of(int(self.visible[place]))
            if angle in (90, 270):
                turned[place] = angle
        return turned

    def _aside(self, turned: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Between neighbours: whether both are turned alike, whether a word ends there, and whether a run does."""
        both = (turned[1:] == turned[:-1]) & (turned[1:] != 0)
        size = np.maximum(np.maximum((self.x1 - self.x0)[1:], (self.x1 - self.x0)[:-1]), 1e-3)
        gap = np.where(turned[1:] == 90, self.top[:-1] - self.foot[1:], self.top[1:] - self.foot[:-1])
        middle = (self.x0 + self.x1) / 2
        run = (np.abs(middle[1:] - middle[:-1]) > SAME_LINE * size) | (gap < -0.8 * size) | (gap > RUN_GAP * size)
        word = self.blank_after | (gap > ASIDE_GAP * size)
        one_line = self.line[1:] == self.line[:-1]  # pdfium sees one line: its places are not asked
        return both, np.where(one_line, self.hint_after, word | run), ~one_line & run

    def runs(self, turned: np.ndarray) -> list[Run]:
        cjk = _is_cjk(self.codes)
        least = np.where(cjk[1:] & cjk[:-1], CJK_GAP, np.where(self.hint_after, HINTED_GAP, WORD_GAP)) * self.height
        line_break = ~(self.same_line & self.onward)
        both, aside_word, aside_run = self._aside(turned)
        word_break = line_break | self.blank_after | (self.gap > least)
        run_break = line_break | (self.gap > RUN_GAP * self.height)
        word_break = np.where(both, aside_word, word_break)
        run_break = np.where(both, aside_run, run_break | (turned[1:] != turned[:-1]))
        raised, back = self._raised(~(word_break | run_break | both))
        word_break[back] = True
        starts = np.flatnonzero(np.concatenate(([True], word_break | run_break)))
        first_words = np.flatnonzero(np.concatenate(([True], run_break))[starts])
        words = self._words(starts, raised)
        begins = starts[first_words]
        tallest = self._tallest(begins)
        tops, feet, turned_runs = self.top[tallest].tolist(), self.foot[tallest].tolist(), turned[begins].tolist()
        cuts = [*first_words.tolist(), len(words)]
        runs: list[Run] = []
        for k, (order, pitch) in enumerate(zip(begins.tolist(), self._pitches(begins).tolist(), strict=True)):
            members = words[cuts[k] : cuts[k + 1]]
            aside = bool(turned_runs[k])
            if aside:
                x0, x1 = min(word.x0 for word in members), max(word.x1 for word in members)
                members = (Word(" ".join(word.text for word in members), x0, x1),)
            runs.append(run_of(members, tops[k], feet[k], aside, pitch, order))
        return runs

    def _tallest(self, starts: np.ndarray) -> np.ndarray:
        """For each run its first character of the greatest height, so no raised or lowered sign."""
        height = self.foot - self.top
        sizes = np.diff(np.append(starts, height.size))
        tall = np.flatnonzero(height == np.repeat(np.maximum.reduceat(height, starts), sizes))
        return tall[np.searchsorted(tall, starts)]

    def _raised(self, close: np.ndarray) -> tuple[list[int], list[int]]:
        """(characters that begin a raised sign within a word, neighbours between which the line goes on behind one)."""
        tall = self.foot - self.top
        differ = (np.abs(tall[1:] - tall[:-1]) > 0.04 * self.height) | (
            np.abs(self.foot[1:] - self.foot[:-1]) > 0.04 * self.height
        )
        odd = np.flatnonzero(np.append(differ, False) | np.concatenate(([False], differ)))
        name_symbols(self.textpage, self.codes, self.visible, odd)
        pairs = np.flatnonzero(close & differ)
        if not pairs.size:
            return [], []
        firsts, seconds = self.visible[pairs].tolist(), self.visible[pairs + 1].tolist()
        ends = zip(baselines(self.textpage, firsts), baselines(self.textpage, seconds), strict=True)
        seen = self.frame.seen
        steps = [seen(*one, *one)[1] - seen(*other, *other)[1] for one, other in ends]
        sizes = list(zip(font_sizes(self.textpage, firsts), font_sizes(self.textpage, seconds), strict=True))
        pairs = pairs.tolist()
        kinds = raised_steps(self.codes, pairs, steps, tall, sizes)
        begin = [k + 1 for k, kind in zip(pairs, kinds, strict=True) if kind > 0]
        return begin, [k for k, kind in zip(pairs, kinds, strict=True) if kind < 0]

    def _words(self, starts: np.ndarray, raised: list[int]) -> tuple[Word, ...]:
        """raised: characters that stand behind a "^" in the text."""
        codes = self.codes
        text = np.where((codes & 0xFFFFF800) == 0xD800, 0xFFFD, codes).astype("<u4").tobytes().decode("utf-32-le")
        left = np.minimum.reduceat(self.x0, starts).tolist()
        right = np.maximum.reduceat(self.x1, starts).tolist()
        places = [*starts.tolist(), self.visible.size]
        odd = bool(np.any((codes < 0x20) | (codes == 0x85) | (codes == 0x2028) | (codes == 0x2029)))
        texts = [text[a:b] for a, b in pairwise(places)]
        for place in reversed(raised):
            word = bisect_right(places, place) - 1
            at = place - places[word]
            texts[word] = f"{texts[word][:at]}^{texts[word][at:]}"
        if odd:
            texts = [part.translate(_SIGNS) for part in texts]
        return tuple(
            map(tuple.__new__, repeat(Word), zip(texts, left, right, strict=True))
        )  # Word(...), without a frame

    def _pitches(self, starts: np.ndarray) -> np.ndarray:
        """For each run the width of its letters if all are equally wide, else 0."""
        width = self.x1 - self.x0
        least, most = np.minimum.reduceat(width, starts), np.maximum.reduceat(width, starts)
        sizes = np.diff(np.append(starts, self.visible.size))
        pitches = np.where((most - least < 0.05 * most) & (sizes >= 4), most, 0.0)
        codes = self.codes.tolist()
        for place in np.flatnonzero(pitches):  # figures and scripts of the east are equally wide in most fonts
            if len(_LETTER_CODES.intersection(codes[starts[place] : starts[place] + sizes[place]])) < 3:
                pitches[place] = 0.0
        return pitches


def _is_cjk(codes: np.ndarray) -> np.ndarray:
    return (codes >= 0x2E80) & ((codes <= 0x9FFF) | ((codes >= 0xAC00) & (codes <= 0xD7AF)) | (codes >= 0xF900))
