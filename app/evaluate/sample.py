"""What a task makes: a document with planted facts and questions about it, fitted to a number of tokens.

A task is a pure function of its random numbers: the same seed, length and depth give the same sample.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Literal

Count = Callable[[str], int]
"""Text -> its number of tokens, as contents."""
Scoring = Literal["all", "any", "line", "points"]
Kind = Literal["answer", "perplexity", "agreement"]
DEPTHS = (0.0, 0.1, 0.5, 0.9, 0.99)
SENTENCES_IN_PARAGRAPH = 5
_CLOSE_ENOUGH = 0.97


class TooShort(ValueError):
    """The planted facts alone are longer than the wanted length."""


@dataclass(frozen=True, slots=True)
class Question:
    """`lead`: how the answer begins, given to the model so that short answers can be compared.

    `gold`: what must be found in the answer (for "points": each entry is words that must all occur). `answer`: the
    right answer as it would stand after `lead`; its likelihood is measured.
    """

    text: str
    lead: str
    gold: tuple[str, ...]
    answer: str
    scoring: Scoring = "all"


@dataclass(frozen=True, slots=True)
class Sample:
    """`planted`: the sentences or lines that hold the answers, as they stand in `document`, the asked one first.

    `depth`: where the first one stands, from 0 (start) to 1, or None where facts are spread over the document.
    """

    document: str
    questions: tuple[Question, ...]
    planted: tuple[str, ...] = ()
    depth: float | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """`make(rng, tokens, count, depth)` -> Sample. `answer_tokens`: room for an answer.

    `has_depth`: the asked fact is planted at the depth that is asked for. `averaged`: its score counts in averages.
    """

    name: str
    meaning: str
    make: Callable[[Random, int, Count, float], Sample]
    answer_tokens: int
    has_depth: bool = False
    kind: Kind = "answer"

    @property
    def averaged(self) -> bool:
        return self.kind == "answer"

    def sample(self, rng: Random, tokens_wanted: int, count_tokens: Count, depth: float) -> Sample:
        """A sample whose texts (document, questions, leads, right answers) have at most `tokens_wanted` tokens and at
        least 95 % of them. Raises TooShort where its facts alone need more."""
        return self.make(rng, tokens_wanted, count_tokens, depth)


@dataclass(frozen=True, slots=True)
class Fact:
    """A text to plant at a depth from 0 to 1."""

    text: str
    depth: float


@dataclass(slots=True)
class _Pieces:
    """Pieces of a document with their sizes; `fillers` may be taken out again."""

    texts: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def add(self, text: str, size: int) -> None:
        self.texts.append(text)
        self.sizes.append(size)


def question_tokens(questions: Sequence[Question], count: Count) -> int:
    return sum(count(q.text) + count(q.lead) + count(q.answer) for q in questions)


def hide(
    rng: Random,
    tokens: int,
    count: Count,
    facts: Sequence[Fact],
    filler: Iterator[str],
    join: Callable[[Sequence[str]], str] | None = None,
) -> str:
    """A document of 95 to 100 % of `tokens` tokens: filler, with each fact at its depth (by tokens).

    Facts of equal depth keep their order. `join` makes text of pieces; by default paragraphs of five sentences.
    Raises TooShort.
    """
    join = join or paragraphs
    room = tokens - sum(count(" " + fact.text) + 1 for fact in facts)
    if room < 0:
        raise TooShort(f"its facts alone take {tokens - room} tokens, and {tokens} are left for the document")
    pieces = _Pieces()
    held, misses = 0, 0
    while misses < 12:  # sentences differ in length: after one that is too long a shorter one may fit
        text = next(filler)
        size = count(" " + text)
        if held + size <= room:
            pieces.add(text, size)
            held += size
        else:
            misses += 1
    text = join(_plant(pieces, facts))
    length = count(text)
    while length > tokens:  # joints cost a token here and there
        if not pieces.texts:
            raise TooShort(f"its facts alone take {length} tokens, and {tokens} are left for the document")
        at = rng.randrange(len(pieces.texts))
        del pieces.texts[at], pieces.sizes[at]
        text = join(_plant(pieces, facts))
        length = count(text)
    for _ in range(60):
        if length >= _CLOSE_ENOUGH * tokens:
            break
        more = next(filler)
        pieces.add(more, count(" " + more))
        tried = join(_plant(pieces, facts))
        longer = count(tried)
        if longer <= tokens:
            text, length = tried, longer
        else:
            pieces.texts.pop()
            pieces.sizes.pop()
    return text


def paragraphs(sentences: Sequence[str]) -> str:
    step = SENTENCES_IN_PARAGRAPH
    return "\n\n".join(" ".join(sentences[i : i + step]) for i in range(0, len(sentences), step))


def lines(pieces: Sequence[str]) -> str:
    return "\n".join(pieces)


def spread(rng: Random, number: int) -> list[float]:
    """Ascending depths, one in each of `number` equal parts of the document."""
    return [(i + rng.random()) / number for i in range(number)]


def _plant(pieces: _Pieces, facts: Sequence[Fact]) -> list[str]:
    """The pieces with each fact before the first piece that begins at or behind its depth."""
    ends = list(accumulate(pieces.sizes, initial=0))
    places = [bisect_left(ends, fact.depth * ends[-1]) for fact in facts]
    planted: list[str] = []
    at: dict[int, list[str]] = {}
    for place, fact in zip(places, facts):
        at.setdefault(min(place, len(pieces.texts)), []).append(fact.text)
    for i, text in enumerate(pieces.texts):
        planted += at.get(i, [])
        planted.append(text)
    return planted + at.get(len(pieces.texts), [])


def pick_different(rng: Random, choices: Sequence[str], number: int) -> list[str]:
    return rng.sample(list(choices), number)


def seven_digits(rng: Random, number: int) -> list[str]:
    """Different numbers of seven digits."""
    return [str(n) for n in rng.sample(range(1_000_000, 10_000_000), number)]


def listing(items: Sequence[str]) -> str:
    """ "a, b and c"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
