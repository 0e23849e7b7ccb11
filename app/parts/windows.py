"""Cuts documents into the windows that are read one after another: whole pages, in order, each page in one window.

A page that is longer than a window is cut at paragraphs, else at sentences, else where it must be; nothing is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.prompts import DocumentText, Page
from app.words import sentences

Count = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Piece:
    """A page, or where `whole` is False a stretch of one, as it enters a window."""

    index: int
    label: str
    text: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive pages of one document."""

    number: int
    document: DocumentText

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(page.index for page in self.document.pages))

    @property
    def text(self) -> str:
        return "\n\n".join(page.text for page in self.document.pages)

    @property
    def key(self) -> str:
        """The same for the same pages of the same document with the same text."""
        digest = hashlib.sha256(self.document.id.encode())
        for page in self.document.pages:
            digest.update(f"\0{page.index}\0{page.text}".encode(errors="surrogatepass"))
        return digest.hexdigest()[:24]


def make_windows(
    documents: Sequence[DocumentText], tokens_of: Callable[[DocumentText, Page], int], count: Count, budget: int
) -> list[Window]:
    """Windows of at most `budget` tokens each, in the order of the documents.

    tokens_of: of a page as it enters a prompt; count: of a text. ValueError for a budget in which nothing fits.
    """
    if budget < 16:
        raise ValueError(f"budget: got {budget}, need at least 16 tokens")
    windows: list[Window] = []
    for document in documents:
        for pages in _runs(document, tokens_of, count, budget):
            text = DocumentText(document.id, document.name, document.total_pages, tuple(pages))
            windows.append(Window(len(windows) + 1, text))
    return windows


def _runs(
    document: DocumentText, tokens_of: Callable[[DocumentText, Page], int], count: Count, budget: int
) -> Iterator[list[Page]]:
    taken: list[Page] = []
    spent = 0
    for page in document.pages:
        tokens = tokens_of(document, page)
        if taken and spent + tokens > budget:
            yield taken
            taken, spent = [], 0
        if tokens <= budget:
            taken.append(page)
            spent += tokens
            continue
        yield from ([piece] for piece in _pieces(page, count, budget))
    if taken:
        yield taken


MARKER_ROOM = 12
"""Tokens left for the page marker of a piece."""


def _pieces(page: Page, count: Count, budget: int) -> Iterator[Page]:
    """A long page as pieces of at most `budget` tokens that together are its text."""
    room = max(1, budget - MARKER_ROOM)
    start = end = spent = 0
    for stretch_end, tokens in _stretches(page.text, count, room):
        if end > start and spent + tokens > room:
            yield Piece(page.index, page.label, page.text[start:end], whole=False)
            start, spent = end, 0
        end = stretch_end
        spent += tokens
    if end > start:
        yield Piece(page.index, page.label, page.text[start:end], whole=False)


def _stretches(text: str, count: Count, room: int) -> Iterator[tuple[int, int]]:
    """(end, tokens) of consecutive stretches that cover `text`, none above `room` tokens: sentences, cut if need be."""
    place = 0
    ends = [end for _, end in sentences(text)]
    for end in [*ends[:-1], len(text)] if ends else [len(text)]:
        while place < end:
            size = end - place
            tokens = count(text[place : place + size])
            while tokens > room and size > 1:
                size = max(1, min(size - 1, int(size * room / tokens * 0.95)))
                tokens = count(text[place : place + size])
            place += size
            yield place, tokens
