"""Reading prose: facts about people, facts in two hops, sums of stated numbers, planted key points, three turns."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from app.evaluate.prose import Prose
from app.evaluate.retrieval import distractors, keys
from app.evaluate.sample import (
    Count,
    Fact,
    Question,
    Sample,
    hide,
    listing,
    pick_different,
    question_tokens,
    spread,
)
from app.evaluate.words import FIRST_NAMES, GOODS, MONTHS, PLACES, PROFESSIONS, SURNAMES

POINTS = 5
TURNS = 3
HELD_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Person:
    """An invented life. `facts`: what the text says, as (sentence, question about it)."""

    name: str
    town: str
    trade: str
    date: str
    school: str

    def facts(self) -> list[tuple[str, Question]]:
        name = self.name
        return [
            (
                f"{name} was born in the town of {self.town}.",
                Question(
                    f"In which town was {name} born?", f"{name} was born in the town of", (self.town,), f" {self.town}."
                ),
            ),
            (
                f"{name} earned a living as a {self.trade}.",
                Question(
                    f"How did {name} earn a living?", f"{name} earned a living as a", (self.trade,), f" {self.trade}."
                ),
            ),
            (
                f"{name} was married on {self.date}.",
                Question(f"When was {name} married?", f"{name} was married on", (self.date,), f" {self.date}."),
            ),
            (
                f"{name} went to school in {self.school}.",
                Question(
                    f"Where did {name} go to school?", f"{name} went to school in", (self.school,), f" {self.school}."
                ),
            ),
        ]


def people(rng: Random, number: int) -> list[Person]:
    """Different people who share no name, town or school."""
    first, last = pick_different(rng, FIRST_NAMES, number), pick_different(rng, SURNAMES, number)
    towns = pick_different(rng, PLACES, 2 * number)
    return [
        Person(
            f"{first[i]} {last[i]}",
            towns[i],
            rng.choice([trade for trade in PROFESSIONS if trade[0] not in "aeiou"]),
            f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(1780, 1920)}",
            towns[number + i],
        )
        for i in range(number)
    ]


def facts_qa(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """One of four kinds of fact about one of many people."""
    asked, *others = people(rng, 1 + distractors(tokens))
    kind = rng.randrange(4)
    sentence, question = asked.facts()[kind]
    texts = [other.facts()[kind if rng.random() < 0.5 else rng.randrange(4)][0] for other in others]
    facts = [Fact(sentence, depth), *(Fact(text, at) for text, at in zip(texts, spread(rng, len(texts))))]
    document = hide(rng, tokens - question_tokens([question], count), count, facts, Prose(rng))
    return Sample(document, (question,), (sentence,), depth)


def two_hop(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """Who keeps a thing, and where that person lives, stand far apart; the question names the thing only."""
    number = 1 + max(2, distractors(tokens) // 2)
    persons, things = people(rng, number), keys(rng, number)
    texts = [
        (f"The keeper of the {thing} is {person.name}.", f"{person.name} lives in the town of {person.town}.")
        for person, thing in zip(persons, things)
    ]
    first, second = spread(rng, 2)
    facts = [Fact(texts[0][0], first), Fact(texts[0][1], second)]
    rest = [text for pair in texts[1:] for text in pair]
    rng.shuffle(rest)
    facts += [Fact(text, at) for text, at in zip(rest, spread(rng, len(rest)))]
    town = persons[0].town
    question = Question(
        f"In which town does the keeper of the {things[0]} live?",
        f"The keeper of the {things[0]} lives in the town of",
        (town,),
        f" {town}.",
    )
    document = hide(rng, tokens - question_tokens([question], count), count, facts, Prose(rng))
    return Sample(document, (question,), texts[0])


def arithmetic(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """Two stated amounts, far apart, are to be added."""
    number = 2 + distractors(tokens) // 2
    towns, goods = pick_different(rng, PLACES, number), rng.choice(GOODS)
    amounts = rng.sample(range(11, 99), number)
    texts = [f"The mill of {town} sold {amount} sacks of {goods}." for town, amount in zip(towns, amounts)]
    facts = [Fact(text, at) for text, at in zip(texts[:2], spread(rng, 2))]
    facts += [Fact(text, at) for text, at in zip(texts[2:], spread(rng, max(1, number - 2)))]
    total = amounts[0] + amounts[1]
    pair = f"the mill of {towns[0]} and the mill of {towns[1]}"
    question = Question(
        f"How many sacks of {goods} did {pair} sell together?",
        f"The mill of {towns[0]} sold",
        (f"{total}",),
        f" {amounts[0]} sacks and the mill of {towns[1]} sold {amounts[1]} sacks, together {total} sacks.",
    )
    document = hide(rng, tokens - question_tokens([question], count), count, facts, Prose(rng))
    return Sample(document, (question,), tuple(texts[:2]))


def summary(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """Decisions of a council stand all over the text; a summary of them must name each one's goods and town."""
    goods, towns = pick_different(rng, GOODS, POINTS), pick_different(rng, PLACES, POINTS)
    verbs = pick_different(rng, ("buy", "sell", "store", "tax", "ban", "order", "ship"), POINTS)
    decisions = [f"to {verb} the {thing} of {town}" for verb, thing, town in zip(verbs, goods, towns)]
    texts = [f"The council decided {decision}." for decision in decisions]
    facts = [Fact(text, at) for text, at in zip(texts, spread(rng, POINTS))]
    question = Question(
        f"Summarize what the council decided. There are {POINTS} decisions in the text; name all of them.",
        "The council decided",
        tuple(f"{thing} {town}" for thing, town in zip(goods, towns)),
        f" {listing(decisions)}.",
        "points",
    )
    document = hide(rng, tokens - question_tokens([question], count), count, facts, Prose(rng))
    return Sample(document, (question,), tuple(texts))


def multi_turn(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """Three questions about three people, one after the other; the last one is about the fact at `depth`."""
    asked, others = people(rng, TURNS), people(rng, distractors(tokens))
    chosen = [person.facts()[rng.randrange(4)] for person in asked]
    questions = [question for _, question in chosen]
    texts = [text for text, _ in chosen]
    depths = [*spread(rng, TURNS - 1), depth]
    names = {person.name for person in asked}
    rest = [rng.choice(person.facts())[0] for person in others if person.name not in names]
    facts = [Fact(text, at) for text, at in zip(texts, depths)]
    facts += [Fact(text, at) for text, at in zip(rest, spread(rng, max(1, len(rest))))]
    document = hide(rng, tokens - question_tokens(questions, count), count, facts, Prose(rng))
    return Sample(document, tuple(questions), (texts[-1], *texts[:-1]), depth)


def held_text(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """Prose to read, and how it goes on: the perplexity of the rest is measured, nothing is asked."""
    prose = Prose(rng)
    rest = ""
    while count(rest) < HELD_TOKENS:
        rest += f" {next(prose)}"
    question = Question("How does the text go on?", "", (), rest)
    document = hide(rng, tokens - question_tokens([question], count), count, [], prose)
    return Sample(document, (question,))


def free_answer(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """Facts about people in prose, and a request for a long answer: how far does it agree with dense attention?"""
    persons = people(rng, distractors(tokens))
    texts = [text for person in persons for text, _ in rng.sample(person.facts(), 1)]
    facts = [Fact(text, at) for text, at in zip(texts, spread(rng, len(texts)))]
    question = Question("Write a long summary of the text. Name the people in it.", "", (), "")
    document = hide(rng, tokens - question_tokens([question], count), count, facts, Prose(rng))
    return Sample(document, (question,), tuple(texts))
