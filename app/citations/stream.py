"""A text as one run of folded letters, so that a quote is found in it whatever its spaces, breaks and hyphens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.words import tokens

Token = tuple[str, int, int]
"""(folded word, start, end) with places in the text that it was taken from."""


@dataclass(frozen=True, slots=True)
class Stream:
    """text: folded tokens without anything between them but a blank between two figures ("1 25" is not "125").

    starts, ends: of each token within text. tokens: where each stands in the page.
    """

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    tokens: Sequence[Token]

    def find(self, wanted: str, start: int = 0) -> tuple[int, int] | None:
        """(first token, one past the last) of the first run of whole tokens from token `start` on that reads so."""
        if not wanted or start >= len(self.starts):
            return None
        place = self.text.find(wanted, self.starts[start])
        while place >= 0:
            first = bisect_left(self.starts, place)
            last = bisect_right(self.starts, place + len(wanted) - 1) - 1
            if self.starts[first : first + 1] == (place,) and self.ends[last] == place + len(wanted):
                return first, last + 1
            place = self.text.find(wanted, place + 1)
        return None


def stream(source: str | Sequence[Token]) -> Stream:
    """Of a text, or of tokens that were taken from it."""
    taken = tokens(source) if isinstance(source, str) else source
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    length, figure = 0, False
    for word, _, _ in taken:
        if figure and word[:1].isdigit():
            parts.append(" ")
            length += 1
        starts.append(length)
        parts.append(word)
        length += len(word)
        ends.append(length)
        figure = word[-1:].isdigit()
    return Stream("".join(parts), tuple(starts), tuple(ends), taken)


def joined(words: Iterable[str]) -> str:
    """The text of a stream of these folded words."""
    return stream([(word, 0, 0) for word in words]).text
