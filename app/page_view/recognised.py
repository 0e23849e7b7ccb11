"""Where a quote stands on a page whose text was recognised on its picture: by the places of the recognised words."""

from __future__ import annotations

from app.ingest.recognised import lines_of
from app.page_view.find import locate

Box = tuple[float, float, float, float]  # left, top, right, bottom in shares of the page as it is seen
MOST_BOXES = 400


def marked(words: str, quote: str) -> tuple[Box, ...]:
    """One box for each line, or part of a line, of the quote; none if it is not on the page. words: as stored."""
    parts: list[str] = []
    lines: list[list[tuple[int, int, Box]]] = []  # [start, end) in the text, and the word's place
    at = 0
    for line in lines_of(words):
        lines.append([])
        for word in line:
            lines[-1].append((at, at + len(word.text), word.box))
            parts.append(word.text + " ")
            at += len(word.text) + 1
        if line:
            parts[-1] = parts[-1][:-1] + "\n"
    found: list[Box] = []
    for start, end in locate("".join(parts), quote):
        for line in lines:
            inside = [box for first, last, box in line if first < end and last > start]
            if inside:
                lefts, tops, rights, bottoms = zip(*inside, strict=True)
                found.append((min(lefts), min(tops), max(rights), max(bottoms)))
    return tuple(found[:MOST_BOXES])
