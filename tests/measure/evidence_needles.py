"""Documents of 10 to 20 pages with a planted sentence on each of several pages, and the question that each answers."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

SETS = {"chosen": 11, "fresh": 4242}  # names of sets and their seeds; rules were chosen on the first
PLACES = (
    "Lisbon", "Helsinki", "Nairobi", "Toronto", "Hanoi", "Bergen", "Cusco", "Dakar", "Galway", "Kyoto", "Malta",
    "Odessa", "Perth", "Quito", "Riga", "Tunis", "Utrecht", "Vienna", "Windhoek", "Zagreb",
)  # fmt: skip
NAMES = ("Ada Brenner", "Tom Vasquez", "Mina Okafor", "Lars Petrov", "Rosa Lindqvist", "Hugo Tanaka")
COLOURS = ("crimson", "turquoise", "violet", "amber", "olive green", "dark grey")
WORDS = ("Marigold", "Thunder", "Pelican", "Quartz", "Lantern", "Saffron")
KINDS = (
    ("The secret number of the {place} archive is {number}.", "What is the secret number of the {place} archive?"),
    ("The password of the {place} office is {word}.", "What is the password of the {place} office?"),
    ("The ferry to {place} leaves at {hour}:{minute} every day.", "At what time does the ferry to {place} leave?"),
    ("The chief gardener of {place} is {name}.", "Who is the chief gardener of {place}?"),
    ("The old bridge of {place} is {number} metres long.", "How long is the old bridge of {place}?"),
    ("The town hall of {place} was painted {colour} last year.", "What colour was the town hall of {place} painted?"),
)
FIELDS = ("number", "word", "hour", "name", "number", "colour")


@dataclass(frozen=True, slots=True)
class Needle:
    """page counts from 1; the answer is right when it contains `expected`."""

    page: int
    sentence: str
    question: str
    expected: str


@dataclass(frozen=True, slots=True)
class Haystack:
    name: str
    pages: tuple[str, ...]
    needles: tuple[Needle, ...]


def haystacks(text: str, name: str, count: int) -> Iterator[Haystack]:
    """`count` documents cut from `text`, one after the other, each with one needle of every kind."""
    random_ = random.Random(SETS[name])
    sentences = [s for s in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if 20 < len(s) < 400]
    at = 0
    for number in range(count):
        size = random_.randint(10, 14)
        pages: list[list[str]] = []
        for _ in range(size):
            page: list[str] = []
            wanted = random_.randint(120, 165)  # words: 200 to 300 tokens
            while sum(len(s.split()) for s in page) < wanted:
                page.append(sentences[at % len(sentences)])
                at += 1
            pages.append(page)
        places = random_.sample(PLACES, len(KINDS))
        chosen = random_.sample(range(size), len(KINDS))
        needles = []
        for index, place, (sentence, question), field in zip(chosen, places, KINDS, FIELDS, strict=True):
            values = {
                "number": str(random_.randint(10000, 99999)),
                "word": random_.choice(WORDS),
                "hour": str(random_.randint(6, 12)),
                "minute": str(random_.randint(10, 59)),
                "name": random_.choice(NAMES),
                "colour": random_.choice(COLOURS),
            }
            planted = sentence.format(place=place, **values)
            pages[index].insert(random_.randint(0, len(pages[index])), planted)
            expected = f"{values['hour']}:{values['minute']}" if field == "hour" else values[field]
            needles.append(Needle(index + 1, planted, question.format(place=place), expected))
        yield Haystack(f"{name}-{number + 1}", tuple(" ".join(page) for page in pages), tuple(needles))
