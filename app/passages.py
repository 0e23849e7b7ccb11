"""The best passages for a question: found at once, by words alone, with no model in memory.

A small model reads only the sentences of them that have most to do with the question (`condense`): over whole passages
it loses the thread. What a person is shown are the passages themselves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from app.turn import Passage
from app.words import sentences, term_set

if TYPE_CHECKING:
    from storage import Document, Library

BEGINNING_CHARACTERS = 1200
SHOWN = 8
"""How many passages a turn shows; how many of them the model reads is decided by its size."""


def best_passages(
    library: Library,
    question: str,
    document_ids: Sequence[str],
    limit: int = SHOWN,
    without: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> tuple[Passage, ...]:
    """Up to `limit` passages of these documents, best first, none from a page of `without`.

    Empty when no word of the question is found.
    """
    if not document_ids:
        return ()
    return tuple(
        Passage(hit.document_id, hit.document, hit.page, hit.label, hit.text, hit.score)
        for hit in library.search(question, document_ids, limit, without=without)
    )


def in_reading_order(passages: Sequence[Passage], document_ids: Sequence[str]) -> tuple[Passage, ...]:
    """The same passages in the order of the documents and their pages; passages of one page keep their order."""
    order = {document: number for number, document in enumerate(document_ids)}
    return tuple(sorted(passages, key=lambda p: (order.get(p.document_id, len(order)), p.page)))


def beginning(library: Library, documents: Sequence[Document]) -> tuple[Passage, ...]:
    """The first text of each document, for questions whose words stand nowhere in it ("what is this about?")."""
    passages = []
    for document in documents[:SHOWN]:
        row = next((row for row in library.pages(document.id) if row.text.strip()), None)
        if row is not None:
            text = row.text.strip()[:BEGINNING_CHARACTERS]
            passages.append(Passage(document.id, document.name, row.index, row.label, text, 0.0))
    return tuple(passages)


LATER_PASSAGE = 0.3
"""What a sentence loses for each place by which its passage stands behind the first one."""
OVERRUN = 64
"""Tokens by which a single sentence may exceed the budget; a longer one is cut."""
FEWEST_WORDS = 2
"""Words that say something; pieces with fewer are numbers and other crumbs."""


def rarity(question: str, texts: Iterable[str]) -> dict[str, float]:
    """How telling each word of the question is, by how few of the texts hold it. texts: the documents' pages."""
    asked = term_set(question)
    held = [asked & term_set(text) for text in texts]
    holding = Counter(chain.from_iterable(held))
    return {term: math.log(1 + len(held) / (1 + holding[term])) for term in asked}


@dataclass(frozen=True, slots=True)
class _Sentence:
    score: float
    passage: int
    place: int
    text: str


def condense(
    passages: Sequence[Passage], rarity: Mapping[str, float], budget: int, count: Callable[[str], int]
) -> tuple[Passage, ...]:
    """The sentences that share most with the question, within `budget` tokens by `count`, as shortened passages.

    rarity: the question's words with their weights. Sentences of a passage stay in its order; the passage with the best
    sentence comes first; passages without a chosen sentence are left out. At least one sentence is kept, or, where the
    best one alone is far longer than the budget, the part of it that shares most with the question.
    """
    spans = [
        _Sentence(sentence_score(held, rarity) - LATER_PASSAGE * number, number, place, passage.text[start:end].strip())
        for number, passage in enumerate(passages)
        for place, (start, end) in enumerate(sentences(passage.text))
        if len(held := term_set(passage.text[start:end])) >= FEWEST_WORDS
    ]
    if not spans:
        return tuple(passages[:1])
    chosen: list[_Sentence] = []
    spent = 0
    for span in sorted(spans, key=lambda span: (-span.score, span.passage, span.place)):
        if any(span.text == other.text for other in chosen):
            continue
        tokens = count(span.text)
        if not chosen and tokens > budget + OVERRUN:
            span = replace(span, text=_part(span.text, rarity, budget, count))
            tokens = budget
        if not chosen or spent + tokens <= budget:
            chosen.append(span)
            spent += tokens
    texts: dict[int, str] = {}
    for number in dict.fromkeys(span.passage for span in chosen):
        own = sorted((span for span in chosen if span.passage == number), key=lambda span: span.place)
        texts[number] = " ".join(span.text for span in own)
    return tuple(replace(passages[number], text=text) for number, text in texts.items())


_LOOK, _STEP = 60, 20  # characters


def _part(text: str, rarity: Mapping[str, float], budget: int, count: Callable[[str], int]) -> str:
    """What fits into `budget` tokens of a sentence that does not, around where it shares most with the question."""
    places = range(0, max(1, len(text) - _LOOK + _STEP), _STEP)
    first = max(places, key=lambda at: sentence_score(term_set(text[at : at + _LOOK]), rarity))
    size = len(text)
    while True:
        start = max(0, min(first + (_LOOK - size) // 2, len(text) - size))
        part = text[start : start + size]
        tokens = count(part)
        if tokens <= budget or size == 1:
            return part.strip()
        size = max(1, min(size - 1, size * budget // tokens))


def sentence_score(held: frozenset[str], rarity: Mapping[str, float]) -> float:
    """What a sentence with these words shares with the question; long ones must share a little more."""
    return sum(rarity[term] for term in held & rarity.keys()) / (1 + 0.15 * math.log1p(len(held)))
