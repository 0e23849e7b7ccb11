"""Reading in parts for models under 1B: sentences chosen by words, few enough for such a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from app.citations import Citation, PageSource
from app.parts.state import PartState
from app.turn import Passage
from app.words import sentences, term_set


def held_sentences(page: PageSource, weights: Mapping[str, float], least: float) -> Iterator[tuple[float, str]]:
    """(share of the weight, sentence) of the page's sentences that hold at least `least` of the question's weight."""
    total = sum(weights.values()) or 1.0
    for start, end in sentences(page.text):
        text = page.text[start:end].strip()
        held = sum(weights[term] for term in term_set(text) & weights.keys())
        if weights and held >= least:
            yield held / total, text


def citation_of(passage: Passage) -> Citation:
    """A sentence that the app chose, as a quote."""
    p = passage
    return Citation(p.document_id, p.document, p.page, p.label, p.text, "attributed")


def inside(passage: Passage, part: PartState) -> bool:
    return passage.document_id == part.document_id and passage.page in part.pages


def within(passages: Sequence[Passage], budget: int, count: Callable[[str], int]) -> tuple[Passage, ...]:
    """The best of the passages that take at most `budget` tokens, at least one, in the order given."""
    taken: set[int] = set()
    spent = 0
    for place in sorted(range(len(passages)), key=lambda place: -passages[place].score):
        tokens = count(passages[place].text)
        if not taken or spent + tokens <= budget:
            taken.add(place)
            spent += tokens
    return tuple(passages[place] for place in sorted(taken))
