"""A small code repository as one text: a function is defined somewhere, and its call is to be written at the end."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from app.evaluate.retrieval import keys
from app.evaluate.sample import Count, Fact, Question, Sample, hide, lines, pick_different, question_tokens, spread
from app.evaluate.words import ADJECTIVES, OBJECTS, words_of

_VERBS = [
    "collect",
    "count",
    "drop",
    "fetch",
    "fold",
    "gather",
    "join",
    "keep",
    "load",
    "mark",
    "merge",
    "pack",
    "parse",
    "scan",
    "send",
    "sort",
    "split",
    "sum",
    "trim",
    "weigh",
]
_UNITS = ("rows", "items", "records", "entries", "parts", "lines", "pairs", "blocks")
_PARAMETERS = words_of(
    """
    bound depth factor first floor gap grain height index limit margin offset phase rate scale share span start step
    width
    """
)


ENTRY_POINTS = 4


def repository(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """app/main.py calls one import after the other; only a comment ties each to its function's name and parameters."""
    code = Code(rng)
    purposes = [f"# {key} import" for key in keys(rng, ENTRY_POINTS)]
    calls = [f"{code.name()}({', '.join(pick_different(rng, _PARAMETERS, 2))})" for _ in purposes]
    definitions = [
        f"{purpose}\ndef {call}:\n    return {rng.randint(2, 99)}\n" for purpose, call in zip(purposes, calls)
    ]
    question = Question(
        f"Write the last line of app/main.py, under {purposes[0]!r}. Its function is defined above under the same "
        "comment; the call has the parameters of the definition, by their names.",
        f"```python\n{purposes[0]}\nresult =",
        (f"result = {calls[0]}",),
        f" {calls[0]}\n",
        "line",
    )
    main = ["# File: app/main.py"]
    for purpose, call in zip(purposes[1:], calls[1:]):
        main += [purpose, f"result = {call}"]
    facts = [Fact(definitions[0], depth)]
    facts += [Fact(text, at) for text, at in zip(definitions[1:], spread(rng, ENTRY_POINTS - 1))]
    facts.append(Fact("\n".join([*main, purposes[0]]), 1.0))
    document = hide(rng, tokens - question_tokens([question], count), count, facts, code, lines)
    return Sample(document, (question,), (definitions[0],), depth)


class Code:
    """Functions without end, with a file's head line before some. No function name comes twice."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._used: set[str] = set()
        self._pieces = self._write()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def name(self) -> str:
        pick = self._rng.choice
        while True:
            name = f"{pick(_VERBS)}_{pick(ADJECTIVES)}_{pick(OBJECTS)}"
            if name not in self._used:
                self._used.add(name)
                return name

    def _write(self) -> Iterator[str]:
        pick, rng = self._rng.choice, self._rng
        left = 0
        while True:
            head = ""
            if left == 0:
                left = rng.randint(3, 6)
                head = f"# File: {pick(ADJECTIVES)}/{pick(OBJECTS)}.py\n"
            left -= 1
            unit, parameter = pick(_UNITS), pick(_PARAMETERS)
            thing, number = f"{pick(ADJECTIVES)} {pick(OBJECTS)}", rng.randint(2, 99)
            name = self.name()
            body = pick(
                (
                    f"    return [x for x in {unit} if x > {number}]",
                    f"    return sum({unit}) // {number}",
                    f"    total = 0\n    for x in {unit}:\n        total += x * {number}\n    return total",
                    f"    return sorted({unit})[:{number}]",
                    f"    return {{x: x + {number} for x in {unit}}}",
                    f"    if not {unit}:\n        return {number}\n    return max({unit})",
                )
            )
            arguments = pick((unit, f"{unit}, {parameter}", f"{unit}, {parameter}={number}"))
            docstring = pick((f'    """Work on the {unit} of the {thing}."""\n', f'    """The {thing}."""\n', ""))
            yield f"{head}def {name}({arguments}):\n{docstring}{body}\n"
