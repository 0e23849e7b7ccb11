"""Puts the candidates of a search into order and drops near copies."""

from collections.abc import Sequence
from dataclasses import dataclass

NEAR_COPY = 0.8  # share of the smaller passage's word triples that also stand in the better one


@dataclass(frozen=True, slots=True)
class Candidate:
    document_id: str
    page: int
    heading: str
    text: str
    pairs: str
    bm25: float


def rank(terms: Sequence[str], pairs: Sequence[str], candidates: Sequence[Candidate]) -> list[tuple[Candidate, float]]:
    """(candidate, score) with the best first."""
    scored = sorted(((candidate, candidate.bm25) for candidate in candidates), key=lambda entry: -entry[1])
    kept: list[tuple[Candidate, float]] = []
    shingles: list[frozenset[str]] = []
    for candidate, score in scored:
        own = _shingles(candidate.text)
        if not any(len(own & other) > NEAR_COPY * min(len(own), len(other)) for other in shingles):
            kept.append((candidate, score))
            shingles.append(own)
    return kept


def _shingles(text: str) -> frozenset[str]:
    tokens = text.casefold().split()
    return frozenset(" ".join(tokens[start : start + 3]) for start in range(max(len(tokens) - 2, 1)))
