"""Words that OCR saw, with their places on the page, as one string that is kept beside the page's text.

A word is a line "left top right bottom text", the numbers ten-thousandths of the page as it is seen, from its upper
left corner; an empty line stands between two lines of text. 600 words take about 15 KB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SCALE = 10_000


@dataclass(frozen=True, slots=True)
class PlacedWord:
    """box: left, top, right, bottom in shares of the page's width and height, 0 to 1."""

    text: str
    box: tuple[float, float, float, float]


def written(lines: Iterable[Sequence[PlacedWord]]) -> str:
    return "\n\n".join(
        "\n".join(f"{' '.join(str(round(side * SCALE)) for side in word.box)} {word.text}" for word in line)
        for line in lines
    )


def lines_of(words: str) -> Iterator[list[PlacedWord]]:
    """The lines of text that `written` wrote."""
    for line in words.split("\n\n") if words else ():
        placed = (word.split(" ", 4) for word in line.split("\n"))
        yield [
            PlacedWord(text, (int(left) / SCALE, int(top) / SCALE, int(right) / SCALE, int(bottom) / SCALE))
            for left, top, right, bottom, text in placed
        ]
