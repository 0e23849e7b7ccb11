"""The pages that an answer may rest on, indexed by their words, labels and lines."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache

from app.words import is_dense, sentences, term_set, tokens

CANDIDATE_PAGES = 8
PASSAGE_CHARACTERS = 500


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
        self.postings: dict[str, list[int]] = defaultdict(list)
        for place, page in enumerate(pages):
            for term in term_set(page.text):
                self.postings[term].append(place)
        self._passages: dict[int, list[SentenceSpan]] = {}
        self._tokens: dict[int, list[tuple[str, int, int]]] = {}

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

    def tokens(self, place: int) -> list[tuple[str, int, int]]:
        if place not in self._tokens:
            self._tokens[place] = tokens(self.pages[place].text)
        return self._tokens[place]

    def named(self, document: int | None, page: str) -> list[int]:
        """Places of the pages that are called so: by label first (what is printed), then by number."""
        known = self.documents[document - 1 : document] if document else self.documents
        inside = [place for place, source in enumerate(self.pages) if source.document_id in known]
        by_label = [place for place in inside if self.pages[place].label.casefold() == page.casefold()]
        by_number = [place for place in inside if str(self.pages[place].page) == page and place not in by_label]
        return by_label + by_number

    def with_line(self, path: str, line: int) -> list[int]:
        """Places of the pages whose label ("src/a.py:L1-80", or "L1-80" of the document a.py) covers the line."""
        found: list[int] = []
        for place, source in enumerate(self.pages):
            match = re.fullmatch(r"(?:(.*):)?L(\d+)(?:-(\d+))?", source.label)
            if match and int(match[2]) <= line <= int(match[3] or match[2]):
                own = match[1] or source.document
                if own == path or own.endswith("/" + path) or path.endswith("/" + own):
                    found.append(place)
        return found


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
