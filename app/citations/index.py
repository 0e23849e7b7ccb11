"""The pages that an answer may rest on, indexed by their words, labels and lines."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache

from app.citations.citation import line_label
from app.citations.stream import Stream, stream
from app.page_labels import FilePage, file_page
from app.words import fold, is_dense, sentences, term_set

CANDIDATE_PAGES = 8
PASSAGE_CHARACTERS = 500
LEAST_STEM = 4  # a file's name without its ending is a name from so many characters on
STREAMS = 200  # pages whose tokens are kept; of all others only the letters are


@dataclass(frozen=True, slots=True)
class PageSource:
    """One page that the answer may rest on; page counts from 1 within its document."""

    document_id: str
    document: str
    page: int
    label: str
    text: str


class PageIndex:
    """Pages with an inverted index from terms to pages, and each page's passages and tokens when they are needed."""

    def __init__(self, pages: tuple[PageSource, ...]) -> None:
        self.pages = pages
        self.documents = list(dict.fromkeys(page.document_id for page in pages))
        self._files = [file_page(page.label) for page in pages]
        self.names = _names(pages, self._files)
        self._by_label: dict[str, list[int]] = defaultdict(list)
        for place, page in enumerate(pages):
            self._by_label[page.label.casefold()].append(place)
        self.postings: dict[str, list[int]] = defaultdict(list)
        for place, page in enumerate(pages):
            for term in term_set(page.text):
                self.postings[term].append(place)
        self._passages: dict[int, list[SentenceSpan]] = {}
        self._letters: dict[int, str] = {}
        self._streams: dict[int, Stream] = {}

    def weight(self, term: str) -> float:
        """How telling a term is: rare ones and numbers more."""
        rarity = math.log(1 + len(self.pages) / (len(self.postings.get(term, ())) or 0.5)) + 0.5
        return rarity * (2.0 if term[:1].isdigit() else 0.5 if is_dense(term) else 1.0)

    def best_pages(self, weights: dict[str, float], count: int = CANDIDATE_PAGES) -> list[int]:
        scores: Counter[int] = Counter()
        for term, weight in weights.items():
            for place in self.postings.get(term, ()):
                scores[place] += weight  # type: ignore[assignment]
        return [place for place, _ in sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:count]]

    def passages(self, place: int) -> list[SentenceSpan]:
        if place not in self._passages:
            self._passages[place] = _sentence_spans(self.pages[place].text)
        return self._passages[place]

    def stream(self, place: int) -> Stream:
        """The page's tokens and letters."""
        kept = self._streams.get(place)
        if kept is None:
            if len(self._streams) >= STREAMS:
                self._streams.clear()
            kept = self._streams[place] = stream(self.pages[place].text)
            self._letters[place] = kept.text
        return kept

    def letters(self, place: int) -> str:
        """The text of the page's stream, kept for every page that was asked for."""
        return self._letters[place] if place in self._letters else self.stream(place).text

    def goes_on(self, place: int) -> bool:
        """Whether the next page of the list is the next one of the same document, and of the same file in a folder."""
        if not 0 <= place < len(self.pages) - 1:
            return False
        one, other = self.pages[place], self.pages[place + 1]
        if one.document_id != other.document_id or other.page != one.page + 1:
            return False
        return file_of(one.label) == file_of(other.label)

    def names_of(self, place: int) -> set[str]:
        """What the page may print as its number."""
        page, file = self.pages[place], self._files[place]
        names = {fold(str(page.page)), fold(page.label)}
        return names | {fold(file.number), fold(file.printed)} - {""} if file else names

    def named(self, scope: Scope | None, page: str) -> list[int]:
        """Places of the pages that are called so: by what is printed on them first, then by number.

        Of a file in a folder its own numbers count. Without a scope they do where only one file has numbered pages.
        """
        if scope is not None and scope.path:
            return self._in_files(page, scope)
        inside = [place for place, source in enumerate(self.pages) if scope is None or scope.id == source.document_id]
        by_label = [place for place in inside if self.pages[place].label.casefold() == page.casefold()]
        by_number = [place for place in inside if str(self.pages[place].page) == page and place not in by_label]
        files = {(self.pages[place].document_id, file.path) for place in inside if (file := self._files[place])}
        by_file = self._in_files(page, Scope(*files.pop())) if len(files) == 1 else []
        return list(dict.fromkeys([*by_label, *by_number, *by_file]))

    def _in_files(self, page: str, scope: Scope) -> list[int]:
        inside = [
            (place, file)
            for place, file in enumerate(self._files)
            if file and file.path == scope.path and self.pages[place].document_id == scope.id
        ]
        printed = [place for place, file in inside if file.printed.casefold() == page.casefold()]
        return list(dict.fromkeys([*printed, *(place for place, file in inside if str(file.page) == page)]))

    def labelled(self, label: str) -> list[int]:
        """Places of the pages with exactly this label, but for capitals."""
        return self._by_label.get(label.casefold(), [])

    def with_lines(self, path: str, first: int, last: int) -> list[int]:
        """Places of the pages whose label ("src/a.py:L1-80", or "L1-80" of the document a.py) covers these lines."""
        found: list[int] = []
        for place, source in enumerate(self.pages):
            lines = line_label(source.label)
            if lines and lines.first <= last and first <= lines.last and same_file(path, lines.path or source.document):
                found.append(place)
        return found

    def has_file(self, path: str) -> bool:
        """Whether some page is of a file that may be called so."""
        return any(
            (lines := line_label(page.label)) and same_file(path, lines.path or page.document) for page in self.pages
        )


def same_file(path: str, other: str) -> bool:
    """Whether two paths may name one file: one ends in the other."""
    return path == other or other.endswith("/" + path) or path.endswith("/" + other)


def file_of(label: str) -> str:
    """The file within a folder that a page's label names: "src/a.py:L1-80" and "src/a.pdf:p3" are of one file each."""
    named = file_page(label) or line_label(label)
    return named.path if named else ""


@dataclass(frozen=True, slots=True)
class Scope:
    """A document by its id; path: one file in it, "" for all of it."""

    id: str
    path: str = ""


def _names(pages: tuple[PageSource, ...], files: list[FilePage | None]) -> list[tuple[str, Scope]]:
    """What a document or a file with pages may be called, longest first: its name or path, without its ending too."""
    found: set[tuple[str, Scope]] = set()
    for page, file in zip(pages, files, strict=True):
        name, scope = page.document, Scope(page.document_id)
        found |= {(name, scope), (name.rpartition(".")[0], scope)}
        if file:
            scope = Scope(page.document_id, file.path)
            for name in (file.path, file.path.rpartition("/")[2]):
                stem = name.rpartition(".")[0]
                found |= {(name, scope), *([(stem, scope)] if len(stem) >= LEAST_STEM else [])}
    return sorted(
        (name for name in found if name[0]), key=lambda name: (-len(name[0]), name[0], name[1].id, name[1].path)
    )


page_index = lru_cache(maxsize=2)(PageIndex)  # a chat asks about the same pages again and again


@dataclass(frozen=True, slots=True)
class SentenceSpan:
    """A sentence of a page, or a line of a table."""

    start: int
    end: int
    terms: frozenset[str]


_ENDED = re.compile(r"[.!?…:。！？][\"'”’»)\]」』）]*$")


def _sentence_spans(text: str) -> list[SentenceSpan]:
    spans: list[tuple[int, int]] = []
    for start, end in sentences(text):
        block = text[start:end]
        is_table = block.count("\n") >= 2 and not _ENDED.search(block)
        if len(block) <= PASSAGE_CHARACTERS and not is_table:
            spans.append((start, end))
            continue
        place = start
        for line in block.split("\n"):
            if line.strip():
                spans.append((place, place + len(line)))
            place += len(line) + 1
    return [SentenceSpan(start, end, term_set(text[start:end])) for start, end in spans]
