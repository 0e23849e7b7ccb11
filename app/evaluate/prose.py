"""Filler text: endless prose about invented places and people, one sentence at a time. It states no number of seven
digits, no registry entry and no date of birth, so that it never answers a question of the suite by accident."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from app.evaluate.words import (
    ADJECTIVES,
    FIRST_NAMES,
    GOODS,
    MONTHS,
    OBJECTS,
    PLACES,
    PROFESSIONS,
    SURNAMES,
    words_of,
)


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(phrase.strip() for phrase in " ".join(text.split()).split("|"))


_ACTIONS = words_of(
    """
    admired borrowed bought carried cleaned copied counted described drew emptied examined forgot found hung
    inspected kept lent lost measured mended moved noticed ordered packed painted placed polished praised raised
    repaired returned saved shared showed sketched sold stored studied swept tested tied touched traded unpacked
    visited washed weighed wrapped
    """
)
_TIMES = _phrases(
    """after supper|before dawn|at noon|in the evening|on market day|during the harvest|on the first warm day|
    late at night|early in the week|between two showers|as soon as the bell rang|when the ferry came in|
    without much hurry|as every year|on the way home|while the bread was baking|long before the others|
    at the end of the month|in the middle of winter|once the road was dry"""
)
_PLACES_INSIDE = _phrases(
    """behind the chapel|in the back room|beside the stairs|under the old roof|near the harbour wall|
    at the edge of the wood|in the long hall|next to the well|above the bakery|by the river|on the upper floor|
    in front of the school|inside the barn|along the canal|across from the inn|at the foot of the hill|
    between two lime trees|in the narrow yard|by the east gate|under the arcade"""
)
_WEATHER = _phrases(
    """The rain went on.|A thin fog lay over the fields.|The wind turned to the north.|It was a mild day.|
    Snow fell in the hills.|The sky cleared slowly.|Nobody minded the heat.|The frost came early.|
    Clouds gathered over the bay.|The air smelled of hay.|The river was high.|All was quiet again.|
    The evening was long and bright.|A storm was expected.|The ice broke at last.|Then the sun came out.|
    Everyone went home.|Little else happened.|The streets were empty.|So the day ended."""
)
_OPINIONS = _phrases(
    """worth the trouble|far too expensive|better than before|a matter of taste|hard to explain|no reason to worry|
    much talked about|good for the town|a great surprise|older than it looked|less simple than it seemed|
    a fine piece of work|soon forgotten|only a beginning|a sign of better times|nobody's business|
    the work of many hands|quite enough"""
)
_SHAPES = (
    "{who} {did} the {a} {o} {inside}.",
    "{who} {did} the {o} and the {o2} {when}.",
    "{when_} the {p} {did} a {a} {o} {inside}.",
    "The people of {town} said that the {a} {o} was {opinion}.",
    "In {month} the {p} of {town} {did} the {o} {inside}.",
    "There was a {a} {o} {inside}, and {who} {did} it {when}.",
    "Most of the {goods} came from {town}, a town known for {goods2}.",
    "{who}, a {p} by trade, {did} {goods} {when}.",
    "The road from {town} to {town2} ran past a {a} {o}.",
    "Nobody in {town} knew why the {o} {inside} was so {a}.",
    "{who} wrote to the {p} about the {goods}, but no answer came.",
    "The {a} {o} was {opinion}, and the {a2} one was {opinion2}.",
    "{when_} {who} spoke with the {p} about {goods} and {goods2}.",
    "A {p} from {town} {did} it first, and a {p2} from {town2} {did2} it later.",
    "The shop {inside} sold {goods}, {goods2} and now and then a {a} {o}.",
    "For the {p} it was {opinion}; for {who} it was {opinion2}.",
    "Children carried the {goods} to the {o} {inside}.",
    "{who} had never seen such a {a} {o} before.",
    "The {o} of {town} is {a}, the {o2} is {a2}, and both are {opinion}.",
    "Some said the trade in {goods} was {opinion}, others asked the {p}.",
    "{weather} {who} {did} the {o} all the same.",
    "{weather}",
)


class Prose:
    """Sentences without end. A few sentences in a row keep their town, person and trade, as a paragraph would."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._sentences = self._write()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._sentences)

    def _write(self) -> Iterator[str]:
        pick = self._rng.choice
        while True:
            town, town2 = pick(PLACES), pick(PLACES)
            who, trade = f"{pick(FIRST_NAMES)} {pick(SURNAMES)}", pick(PROFESSIONS)
            for _ in range(self._rng.randint(3, 7)):
                when = pick(_TIMES)
                sentence = pick(_SHAPES).format(
                    who=who, town=town, town2=town2, p=trade, p2=pick(PROFESSIONS), month=pick(MONTHS),
                    a=pick(ADJECTIVES), a2=pick(ADJECTIVES), o=pick(OBJECTS), o2=pick(OBJECTS),
                    goods=pick(GOODS), goods2=pick(GOODS), did=pick(_ACTIONS), did2=pick(_ACTIONS),
                    when=when, when_=when[0].upper() + when[1:], inside=pick(_PLACES_INSIDE),
                    opinion=pick(_OPINIONS), opinion2=pick(_OPINIONS), weather=pick(_WEATHER),
                )  # fmt: skip
                yield _article(sentence[0].upper() + sentence[1:])


def _article(sentence: str) -> str:
    """ "a amber" -> "an amber"."""
    words = sentence.split(" ")
    for i, word in enumerate(words[:-1]):
        if word in ("a", "A") and words[i + 1][0].lower() in "aeiou":
            words[i] = word + "n"
    return " ".join(words)
