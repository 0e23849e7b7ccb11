"""Which passage a sentence rests on, by the words that both use: for everything that an answer does not quote."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from app.citations.index import PageIndex
from app.words import stem, terms, tokens

SUPPORT = 0.5  # share of a sentence's weight that a passage must hold
ASKS = 0.1  # off for a passage that ends in a question: the sentence after it says more
QUESTION_WEIGHT = 0.5  # of the question's words, which only help to choose between passages
READ = 0.15  # for a passage that the model read word for word, beside others of the same page that it did not see
NAMED = 0.25  # by so much a passage elsewhere must fit better than one on the page that the answer names
_YES_OR_NO = frozenset({"yes", "no", "ja", "nein", "oui", "non", "sí"})


@dataclass(frozen=True, slots=True)
class Asked:
    """weights: of the question's words. read: what the model was given where it did not get whole pages."""

    weights: dict[str, float]
    read: tuple[str, ...]

    def share(self, held: frozenset[str]) -> float:
        """How much of the question a passage with these terms holds, 0 to 1."""
        total = sum(self.weights.values())
        return sum(self.weights[term] for term in self.weights.keys() & held) / total if total else 0.0

    def was_read(self, text: str) -> bool:
        return any(text in given for given in self.read)


@dataclass(frozen=True, slots=True)
class Passage:
    """[start, end) of a page's text, and how well it fits."""

    place: int
    start: int
    end: int
    score: float


def support(sentence: str, index: PageIndex, asked: Asked, named: Iterable[int]) -> Passage | None:
    """The passage that holds most of what the sentence says, or None if none holds enough.

    named: pages that the answer itself names for it; one of them is taken unless another fits much better.
    """
    weights = {term: index.weight(term) for term in terms(sentence)}
    if not weights and any(word in _YES_OR_NO for word, _, _ in tokens(sentence)):
        weights = dict(asked.weights)  # it says what the question says
    for name in _names(sentence):
        if name in weights:
            weights[name] *= 1.5
    if not weights:
        return None
    own = set(named)
    anywhere = index.best_pages(weights | _of_question(weights, asked))
    best = _best(dict.fromkeys([*own, *anywhere]), weights, index, asked)
    there = _best(own, weights, index, asked) if own else None
    return there if there and best and best.score - there.score < NAMED else best


def _best(places: Iterable[int], weights: dict[str, float], index: PageIndex, asked: Asked) -> Passage | None:
    total = sum(weights.values())
    numbers = {term for term in weights if term[:1].isdigit()}
    best: Passage | None = None
    for place in places:
        passages, text = index.passages(place), index.pages[place].text
        for number, passage in enumerate(passages):
            if weights.keys().isdisjoint(passage.terms):
                continue
            for size in (1, 2, 3):
                window = passages[number : number + size]
                held = frozenset().union(*(part.terms for part in window))
                matched = weights.keys() & held
                share = sum(weights[term] for term in matched) / total
                if numbers - held:
                    share *= 0.6  # a figure that the passage does not have is no support
                if share < SUPPORT or not _is_telling(matched, weights, index):
                    continue
                score = share - 0.06 * (size - 1) + QUESTION_WEIGHT * asked.share(held)
                score += READ * asked.was_read(text[passage.start : passage.end])
                score -= ASKS * text[passage.start : window[-1].end].endswith(("?", "？"))
                if best is None or (score, -place) > (best.score, -best.place):
                    best = Passage(place, window[0].start, window[-1].end, score)
    return best


def _of_question(weights: dict[str, float], asked: Asked) -> dict[str, float]:
    return {term: QUESTION_WEIGHT * weight for term, weight in asked.weights.items() if term not in weights}


def _is_telling(matched: Iterable[str], weights: dict[str, float], index: PageIndex) -> bool:
    """Whether the shared terms say enough: two of them, or the only one that there is and it is rare."""
    shared = list(matched)
    if len(shared) >= 2:
        return True
    if len(weights) > 1:
        return False
    return len(index.postings.get(shared[0], ())) <= max(2, len(index.pages) // 10)


def _names(sentence: str) -> set[str]:
    """Stems of words with a capital that do not begin the sentence."""
    words = re.findall(r"[^\W\d_]+", sentence)
    return {stem(word) for word in words[1:] if word[0].isupper()}
