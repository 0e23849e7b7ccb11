"""Tasks over the whole document: chains of variables, and which words of a long list occur most often."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random
from string import ascii_uppercase

from app.evaluate.prose import Prose
from app.evaluate.sample import Count, Fact, Question, Sample, TooShort, hide, listing, question_tokens, spread
from app.evaluate.words import COINED, WORDS

CHAIN = 5
TOKENS_PER_CHAIN = 1500
COMMON, COMMON_TIMES = 10, 10
FREQUENT = 3
FREQUENT_EXPONENT = 2.0
COINED_WORDS = 60


def variable_tracking(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """One variable gets a number, others get it from each other, line by line; other chains get other numbers."""
    chains = 1 + max(1, min(8, tokens // TOKENS_PER_CHAIN))
    names = _names(rng, CHAIN * chains)
    values = [str(n) for n in rng.sample(range(10_000, 100_000), chains)]
    facts, asked = [], []
    for number, value in enumerate(values):
        chain = names[number * CHAIN : (number + 1) * CHAIN]
        texts = [f"VAR {chain[0]} = {value}."]
        texts += [f"VAR {new} = VAR {old}." for old, new in pairwise(chain)]
        facts += [Fact(text, at) for text, at in zip(texts, spread(rng, CHAIN))]
        asked = asked or texts
    gold = tuple(names[:CHAIN])
    question = Question(
        f"Which {CHAIN} variables have the value {values[0]}? Some get it from another variable.",
        f"The {CHAIN} variables that have the value {values[0]} are",
        gold,
        f" {listing(gold)}.",
    )
    document = hide(rng, tokens - question_tokens([question], count), count, facts, Prose(rng))
    return Sample(document, (question,), tuple(asked))


def common_words(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """A shuffled list in which ten words stand ten times as often as all others."""
    words = rng.sample(WORDS, len(WORDS))
    common, others = words[:COMMON], words[COMMON:]
    gold = tuple(common)
    question = Question(
        f"The words of the list above: which {COMMON} of them occur most often?",
        f"The {COMMON} words that occur most often are",
        gold,
        f" {listing(gold)}.",
    )

    def times(size: int) -> list[str]:
        """A list of `size` words: each other word stands `rare` times, each common one ten times as often."""
        rare = max(1, math.ceil(size / (len(others) + COMMON * COMMON_TIMES)))
        frequent = [word for word in common for _ in range(rare * COMMON_TIMES)]
        rest = [word for word in others for _ in range(rare)]
        return frequent + rest[: max(0, size - len(frequent))]

    return _list_sample(rng, tokens, count, question, COMMON * COMMON_TIMES + COMMON, times)


def frequent_words(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """Coined words, each less frequent than the one before it by a power law: which three lead?"""
    words = rng.sample(COINED, COINED_WORDS)
    gold = tuple(words[:FREQUENT])
    question = Question(
        f"The coded words of the list above: which {FREQUENT} of them occur most often?",
        f"The {FREQUENT} words that occur most often are",
        gold,
        f" {listing(gold)}.",
    )
    shares = [rank**-FREQUENT_EXPONENT for rank in range(1, COINED_WORDS + 1)]

    def times(size: int) -> list[str]:
        scale = size / sum(shares)
        found = [word for word, share in zip(words, shares) for _ in range(max(1, round(share * scale)))]
        return found[:size]

    return _list_sample(rng, tokens, count, question, COINED_WORDS, times)


def _list_sample(
    rng: Random, tokens: int, count: Count, question: Question, fewest: int, times: Callable[[int], list[str]]
) -> Sample:
    """The longest list made by `times(size)`, shuffled, that fits; at least `fewest` words."""
    room = tokens - question_tokens([question], count)
    seed = rng.random()

    def text(size: int) -> str:
        words = times(size)
        Random(seed).shuffle(words)
        return " ".join(words)

    low, high = fewest, max(fewest, 2 * room)
    if count(text(low)) > room:
        raise TooShort(f"its shortest list takes {count(text(low))} tokens, and {room} are left for the document")
    while high - low > 1:
        middle = (low + high) // 2
        if count(text(middle)) <= room:
            low = middle
        else:
            high = middle
    return Sample(text(low), (question,), question.gold)


def _names(rng: Random, number: int) -> list[str]:
    """Different names of five capital letters."""
    found: dict[str, None] = {}
    while len(found) < number:
        found["".join(rng.sample(ascii_uppercase, 5))] = None
    return list(found)
