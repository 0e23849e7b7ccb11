"""Needles: registry entries in prose. One, one among many, one key with several numbers, several keys at once."""

from __future__ import annotations

from random import Random

from app.evaluate.prose import Prose
from app.evaluate.sample import (
    Count,
    Fact,
    Question,
    Sample,
    hide,
    listing,
    pick_different,
    question_tokens,
    seven_digits,
    spread,
)
from app.evaluate.words import ADJECTIVES, OBJECTS

VALUES = 4
QUERIES = 4
TOKENS_PER_DISTRACTOR = 500
FEWEST_DISTRACTORS, MOST_DISTRACTORS = 3, 40


def entry(key: str, number: str) -> str:
    return f"The registry number of the {key} is {number}."


def keys(rng: Random, number: int) -> list[str]:
    """Things such as "amber lantern" that share no word with each other."""
    pairs = zip(pick_different(rng, ADJECTIVES, number), pick_different(rng, OBJECTS, number))
    return [f"{adjective} {thing}" for adjective, thing in pairs]


def distractors(tokens: int) -> int:
    return max(FEWEST_DISTRACTORS, min(MOST_DISTRACTORS, tokens // TOKENS_PER_DISTRACTOR))


def _one(key: str, number: str) -> Question:
    return Question(
        f"What is the registry number of the {key}?", f"The registry number of the {key} is", (number,), f" {number}."
    )


def _sample(
    rng: Random, tokens: int, count: Count, question: Question, facts: list[Fact], asked: list[str], depth: float | None
) -> Sample:
    document = hide(rng, tokens - question_tokens([question], count), count, facts, Prose(rng))
    return Sample(document, (question,), tuple(asked), depth)


def needle(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    (key,), (number,) = keys(rng, 1), seven_digits(rng, 1)
    asked = entry(key, number)
    return _sample(rng, tokens, count, _one(key, number), [Fact(asked, depth)], [asked], depth)


def multi_key(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """The asked entry at `depth`, others of the same form all over the document."""
    others = distractors(tokens)
    names, numbers = keys(rng, 1 + others), seven_digits(rng, 1 + others)
    asked, *rest = [entry(key, number) for key, number in zip(names, numbers)]
    facts = [Fact(asked, depth), *(Fact(text, at) for text, at in zip(rest, spread(rng, others)))]
    return _sample(rng, tokens, count, _one(names[0], numbers[0]), facts, [asked], depth)


def multi_value(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """One key with several numbers, spread over the document: all are wanted."""
    (key,), numbers = keys(rng, 1), seven_digits(rng, VALUES)
    question = Question(
        f"The {key} has {VALUES} registry numbers in the text. What are they, in the order of the text?",
        f"The {VALUES} registry numbers of the {key} are",
        tuple(numbers),
        f" {listing(numbers)}.",
    )
    asked = [entry(key, number) for number in numbers]
    facts = [Fact(text, at) for text, at in zip(asked, spread(rng, VALUES))]
    return _sample(rng, tokens, count, question, facts, asked, None)


def multi_query(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """Several keys asked for at once, among others that are not."""
    others = distractors(tokens)
    names, numbers = keys(rng, QUERIES + others), seven_digits(rng, QUERIES + others)
    entries = [entry(key, number) for key, number in zip(names, numbers)]
    depths = spread(rng, QUERIES + others)
    rng.shuffle(depths)
    facts = [Fact(text, at) for text, at in zip(entries, depths)]
    wanted = listing([f"the {key}" for key in names[:QUERIES]])
    question = Question(
        f"What are the registry numbers of {wanted}, in this order?",
        f"The registry numbers of {wanted} are, in this order,",
        tuple(numbers[:QUERIES]),
        f" {listing(numbers[:QUERIES])}.",
    )
    return _sample(rng, tokens, count, question, facts, entries[:QUERIES], None)
