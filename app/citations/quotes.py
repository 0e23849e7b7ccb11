"""Looks a quote up: word for word, over a page break, with parts left out, or nearly so; on every page if need be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from app.citations.index import CANDIDATE_PAGES, PageIndex
from app.citations.near import nearest, words_of
from app.citations.stream import Stream, Token, joined, stream
from app.words import stem, terms, tokens

LONGEST_GAP = 150  # tokens that "..." may stand for
BREAK_SLACK = 8
FEW_TERMS = 6
ELLIPSIS = re.compile(r"\s*(?:[\[(]\s*)?(?:\.\s?\.\s?\.+|…+|⋯+)(?:\s*[\])])?\s*")
_DENIALS = frozenset({"not", "no", "never", "neither", "nor", "cannot", "without", "unless", "except"}) | frozenset(
    {"nicht", "kein", "keine", "pas", "jamais", "nunca", *"不没沒無无非未否勿莫안못않없"}
)
_SENTENCE_ENDS = re.compile(r"[.!?。！？](?:\s|$)")


@dataclass(frozen=True, slots=True)
class Found:
    """Where a quote stands: [start, end) of the page's text; over a page break it goes on to `end` of the next page."""

    place: int
    start: int
    end: int
    status: Literal["verified", "near"]
    next_place: int | None = None


def look_up(quote: str, hinted: Sequence[int], index: PageIndex) -> Found | None:
    """The place of a quote: on the hinted pages first. Word for word anywhere comes before nearly anywhere."""
    pieces = [[word for word, _, _ in tokens(piece)] for piece in ELLIPSIS.split(quote)]
    pieces = [piece for piece in pieces if piece]
    if not pieces:
        return None
    shared = _likely(quote, index)
    likely = list(dict.fromkeys([*hinted, *shared]))
    wanted = [joined(piece) for piece in pieces]
    return (
        _exact(wanted, likely, index)
        or _over_breaks(wanted, _with_breaks(likely, index), index)
        or _anywhere(wanted, set(likely), index)
        or _nearly(quote, pieces, _candidates(quote, hinted, shared), index)
    )


def pieces_in(page: Stream, wanted: Sequence[str], gap: int = LONGEST_GAP) -> list[tuple[int, int]] | None:
    """Token spans of the pieces, in order and not further apart than `gap` tokens; None if they do not stand so."""
    begin = 0
    while (head := page.find(wanted[0], begin)) is not None:
        spans = [head]
        for piece in wanted[1:]:
            span = page.find(piece, spans[-1][1])
            if span is None or span[0] - spans[-1][1] > gap:
                break
            spans.append(span)
        else:
            return spans
        begin = head[0] + 1
    return None


def _likely(quote: str, index: PageIndex) -> list[int]:
    """Pages that share most with the quote; all of them if it has only stop words."""
    weights = {term: index.weight(term) for term in terms(quote)}
    return index.best_pages(weights, 50) if weights else list(range(len(index.pages)))


def _candidates(quote: str, hinted: Sequence[int], shared: Sequence[int]) -> list[int]:
    """Some pages of the hinted ones ("page 1" may be one of each document) and some of those that share most: more of
    them where the quote has few words to tell pages by."""
    named = set(hinted)
    best = [place for place in shared if place in named]
    count = CANDIDATE_PAGES if len(terms(quote)) > FEW_TERMS else 2 * CANDIDATE_PAGES
    return list(dict.fromkeys([*[*best, *hinted][:count], *shared[:count]]))


def _exact(wanted: Sequence[str], places: Iterable[int], index: PageIndex) -> Found | None:
    for place in places:
        if wanted[0] not in index.letters(place):
            continue
        page = index.stream(place)
        spans = pieces_in(page, wanted)
        if spans:
            text = index.pages[place].text
            start, end = page.tokens[spans[0][0]][1], page.tokens[spans[-1][1] - 1][2]
            return Found(place, start, end, _status(text, page.tokens, spans))
    return None


def _status(text: str, page: Sequence[Token], spans: Sequence[tuple[int, int]]) -> Literal["verified", "near"]:
    """near where "..." hides a denial within the sentence: the rest alone may say the opposite."""
    for (_, left), (right, _) in pairwise(spans):
        hidden = text[page[left - 1][2] : page[right][1]]
        ends = _SENTENCE_ENDS.search(hidden)
        within = tokens(hidden[: ends.start()] if ends else hidden)
        if any(word in _DENIALS or word.endswith("n't") for word, _, _ in within):
            return "near"
    return "verified"


def _with_breaks(places: Sequence[int], index: PageIndex) -> list[int]:
    """First pages of the breaks next to these pages."""
    return list(dict.fromkeys(first for place in places for first in (place, place - 1) if index.goes_on(first)))


def _over_breaks(wanted: Sequence[str], firsts: Iterable[int], index: PageIndex) -> Found | None:
    """A quote that begins on one page and ends on the next, with a page number between them or none."""
    size = sum(map(len, wanted))
    for first in firsts:
        if len(wanted) == 1 and not _may_break(wanted[0], index.letters(first), index.letters(first + 1)):
            continue
        for taken, border in _joins(index, first, size):
            both = stream(taken)
            spans = pieces_in(both, wanted)
            if spans and spans[0][0] < border < spans[-1][1]:
                return Found(first, taken[spans[0][0]][1], taken[spans[-1][1] - 1][2], "verified", first + 1)
    return None


def _may_break(wanted: str, left: str, right: str) -> bool:
    """Whether some beginning of `wanted` may end the left page: its first letters stand near that page's end."""
    tail, head = left[-len(wanted) - BREAK_SLACK :], right[: len(wanted) + BREAK_SLACK]
    return wanted[:4] in tail + head[:3] and wanted[-4:] in tail[-3:] + head


def _joins(index: PageIndex, first: int, size: int) -> Iterable[tuple[list[Token], int]]:
    """(end of one page and beginning of the next as one run of tokens, how many are of the first); without page
    numbers at the break too."""
    tail = list(index.stream(first).tokens[-size - BREAK_SLACK :])
    head = list(index.stream(first + 1).tokens[: size + BREAK_SLACK])
    yield tail + head, len(tail)
    numbers = {name for place in (first, first + 1) for name in index.names_of(place)}
    cut_tail = tail[:-1] if tail and tail[-1][0] in numbers else tail
    cut_head = head[1:] if head and head[0][0] in numbers else head
    if len(cut_tail) + len(cut_head) < len(tail) + len(head):
        yield cut_tail + cut_head, len(cut_tail)


def _anywhere(wanted: Sequence[str], seen: set[int], index: PageIndex) -> Found | None:
    """All pages that have not been looked at: words cut by hyphens are found by no index."""
    rest = [place for place in range(len(index.pages)) if place not in seen]
    breaks = [place for place in range(len(index.pages) - 1) if index.goes_on(place)]
    return _exact(wanted, rest, index) or _over_breaks(wanted, breaks, index)


def _nearly(quote: str, pieces: Sequence[Sequence[str]], places: Sequence[int], index: PageIndex) -> Found | None:
    if len(pieces) > 1:
        return None  # with parts left out and other words as well it is no quote any more
    said = words_of(quote, tokens(quote))

    def spread(word: str) -> int:
        return len(index.postings.get(stem(word), ()))

    best: tuple[float, Found] | None = None
    for place in places:
        page = index.stream(place).tokens
        near = nearest(page, index.pages[place].text, said, spread)
        if near and (best is None or near.cost < best[0]):
            best = (near.cost, Found(place, page[near.first][1], page[near.last - 1][2], "near"))
    for first in _with_breaks(places, index) if best is None else ():
        for taken, border in _joins(index, first, len(said)):
            left, right = index.pages[first].text, index.pages[first + 1].text
            moved = [(word, start + len(left) + 1, end + len(left) + 1) for word, start, end in taken[border:]]
            near = nearest([*taken[:border], *moved], f"{left}\n{right}", said, spread)
            if near and near.first < border < near.last:
                return Found(first, taken[near.first][1], taken[near.last - 1][2], "near", first + 1)
    return best[1] if best else None
