"""Puts the candidates of a search into order.

The index finds passages by any of the question's words; here each is read again. What counts: BM25 over text and
section heading, with how rare a word is in the very documents asked about; words of the same sense at a discount; how
much of the question is covered; neighbouring question words that stand near each other. Tables of contents count less,
and so does each further passage of a page that was named already. Near copies of a better passage are left out.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from storage.analyzer import Analyzer

SATURATION = 1.2  # BM25's k1
LENGTH_NORM = 0.5  # BM25's b
HEADING = 1.0
SYNONYM = 0.4
NEARNESS = 2.0
COVERAGE = 0.4
CONTENTS = 0.4
SAME_PAGE = 0.8
NEAR_COPY = 0.8  # share of the smaller passage's word triples that also stand in the better one


@dataclass(frozen=True, slots=True)
class Concept:
    """One word of the question: the terms that stand for it, each with its weight (1 for the word itself)."""

    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    document_id: str
    page: int
    heading: str
    text: str
    pairs: str = ""


@dataclass(frozen=True, slots=True)
class Collection:
    """Of the documents asked about: how many passages they have, and in how many of them a term stands."""

    passages: int
    with_term: Mapping[str, int]

    def rarity(self, term: str) -> float:
        """BM25's inverse document frequency; 0 for a term that stands nowhere."""
        count = self.with_term.get(term, 0)
        return math.log(1 + (self.passages - count + 0.5) / (count + 0.5)) if count else 0.0


def rank(
    concepts: Sequence[Concept],
    candidates: Sequence[Candidate],
    collection: Collection,
    analyzer: Analyzer,
    limit: int,
) -> list[tuple[Candidate, float]]:
    """The best `limit` as (candidate, score), best first. Ties keep the order of `candidates`."""
    terms = {term for concept in concepts for term in concept.terms}
    texts = analyzer.places([f"{candidate.text}\n{candidate.pairs}" for candidate in candidates], terms)
    headings = analyzer.places([candidate.heading for candidate in candidates], terms)
    lengths = [len(candidate.text.split()) + len(candidate.pairs.split()) for candidate in candidates]
    usual = sum(lengths) / max(len(lengths), 1)
    scored = []
    for candidate, places, heading, length in zip(candidates, texts, headings, lengths, strict=True):
        score = _score(concepts, places, heading, length / max(usual, 1.0), collection)
        scored.append((candidate, score * (CONTENTS if _is_contents(candidate.text) else 1.0)))
    return _without_copies(_one_page_once(scored), limit)


def _score(
    concepts: Sequence[Concept],
    places: Mapping[str, Sequence[int]],
    heading: Mapping[str, Sequence[int]],
    length: float,
    collection: Collection,
) -> float:
    """`length` is relative to the other candidates'."""
    norm = SATURATION * (1 - LENGTH_NORM + LENGTH_NORM * length)
    score = 0.0
    found: list[tuple[str, float] | None] = []
    for concept in concepts:
        best, best_term = 0.0, ""
        for term, weight in concept.terms.items():
            count = len(places.get(term, ())) + HEADING * len(heading.get(term, ()))
            value = weight * collection.rarity(term) * count * (SATURATION + 1) / (count + norm)
            if value > best:
                best, best_term = value, term
        rarity = max((collection.rarity(term) * weight for term, weight in concept.terms.items()), default=0.0)
        score += best + (COVERAGE * rarity if best else 0.0)
        found.append((best_term, rarity) if best_term in places else None)
    for left, right in pairwise(found):
        if left and right and left[0] != right[0]:
            distance = _distance(places[left[0]], places[right[0]])
            score += NEARNESS * (left[1] + right[1]) / 2 / distance
    return score


def _distance(left: Sequence[int], right: Sequence[int]) -> int:
    """The least distance between two ascending lists of places, which share none."""
    i = j = 0
    least = abs(left[0] - right[0])
    while i < len(left) and j < len(right):
        least = min(least, abs(left[i] - right[j]))
        if left[i] < right[j]:
            i += 1
        else:
            j += 1
    return least


def _is_contents(text: str) -> bool:
    return text.count(". . .") > 3 or text.count("....") > 2


def _without_copies(scored: Sequence[tuple[Candidate, float]], limit: int) -> list[tuple[Candidate, float]]:
    kept: list[tuple[Candidate, float]] = []
    seen: list[frozenset[str]] = []
    for candidate, score in scored:
        if len(kept) == limit:
            break
        own = _triples(candidate.text)
        if all(len(own & other) <= NEAR_COPY * min(len(own), len(other)) for other in seen):
            kept.append((candidate, score))
            seen.append(own)
    return kept


def _triples(text: str) -> frozenset[str]:
    tokens = text.casefold().split()
    return frozenset(" ".join(tokens[start : start + 3]) for start in range(max(len(tokens) - 2, 1)))


def _one_page_once(scored: Sequence[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
    named: Counter[tuple[str, int]] = Counter()
    lowered = []
    for candidate, score in _sorted(scored):
        place = (candidate.document_id, candidate.page)
        lowered.append((candidate, score * SAME_PAGE ** named[place]))
        named[place] += 1
    return _sorted(lowered)


def _sorted(scored: Sequence[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
    return sorted(scored, key=lambda entry: -entry[1])
