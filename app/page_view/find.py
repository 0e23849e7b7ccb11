"""Where a quote stands in one page's text, as spans to be marked. What is not there gives none: nothing is guessed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from app.citations.near import nearest, words_of
from app.citations.quotes import ELLIPSIS, pieces_in
from app.citations.stream import Stream, joined, stream
from app.words import tokens

ANYWHERE = 1 << 30
FEW = 8
"""Words that are enough to be marked where most of the quote stands on another page."""

Span = tuple[int, int]


def locate(text: str, quote: str) -> list[Span]:
    """[start, end) in the text, ascending: one span, or several where the quote's lines stand apart (columns, tables).

    [] where less than half of the quote is there, and not even the end or beginning of one that runs over a page break.
    """
    pieces = [[word for word, _, _ in tokens(piece)] for piece in ELLIPSIS.split(quote)]
    pieces = [piece for piece in pieces if piece]
    if not pieces:
        return []
    page = stream(text)
    found = pieces_in(page, [joined(piece) for piece in pieces], ANYWHERE)
    if found:
        return [_span(page, found[0][0], found[-1][1])]
    here = {word for word, _, _ in page.tokens}
    near = nearest(page.tokens, text, words_of(quote, tokens(quote)), lambda word: int(word in here))
    if near:
        return [_span(page, near.first, near.last)]
    return _line_by_line(page, quote) or _over_a_break(page, [word for piece in pieces for word in piece])


def _line_by_line(page: Stream, quote: str) -> list[Span]:
    """Each line of the quote by itself: a page's text may give its columns or cells in another order."""
    spans: list[Span] = []
    wanted = got = begin = 0
    for line in quote.split("\n"):
        words = [word for word, _, _ in tokens(line)]
        wanted += len(words)
        if not words:
            continue
        letters = joined(words)
        span = page.find(letters, begin) or (page.find(letters) if len(words) >= 3 else None)
        if span:
            got += len(words)
            begin = span[1]
            spans.append(span)
    if got * 2 < wanted or not spans:
        return []
    return _merged(page, spans)


def _over_a_break(page: Stream, words: Sequence[str]) -> list[Span]:
    """The longest beginning of the quote near the page's end, or end of it near the page's beginning."""
    count = len(page.tokens)
    for size in range(len(words) - 1, FEW - 1, -1):
        head = page.find(joined(words[:size]), max(0, count - size - FEW))
        if head:
            return [_span(page, *head)]
        tail = page.find(joined(words[-size:]))
        if tail and tail[0] <= FEW:
            return [_span(page, *tail)]
    return []


def _merged(page: Stream, spans: list[Span]) -> list[Span]:
    """Token spans as spans of text, those that follow each other as one."""
    spans.sort()
    joined_up = [spans[0]]
    for one, other in pairwise(spans):
        if other[0] <= one[1]:
            joined_up[-1] = (joined_up[-1][0], max(joined_up[-1][1], other[1]))
        else:
            joined_up.append(other)
    return [_span(page, first, last) for first, last in joined_up]


def _span(page: Stream, first: int, last: int) -> Span:
    return page.tokens[first][1], page.tokens[last - 1][2]
