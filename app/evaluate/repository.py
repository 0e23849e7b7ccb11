"""A small code repository as one text: a function is defined somewhere, and its call is to be written at the end."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from app.evaluate.retrieval import keys
from app.evaluate.sample import Count, Fact, Question, Sample, hide, lines, pick_different, question_tokens
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


def repository(rng: Random, tokens: int, count: Count, depth: float) -> Sample:
    """Only the docstring ties what is asked for to the function's name and parameters."""
    (purpose,) = keys(rng, 1)
    code = Code(rng)
    name, parameters = code.name(), pick_different(rng, _PARAMETERS, 2)
    call = f"{name}({', '.join(parameters)})"
    definition = "\n".join(
        (
            f"def {call}:",
            f'    """Entry point of the {purpose} import."""',
            f"    return {parameters[0]} * {parameters[1]}",
            "",
        )
    )
    question = Question(
        f"Complete the last line of app/main.py. It calls the entry point of the {purpose} import, with its "
        "parameters by the names and in the order of its definition.",
        "The completed line is:\nresult =",
        (f"result = {call}",),
        f" {call}\n",
        "line",
    )
    end = "\n".join(("# File: app/main.py", f"# Calls the entry point of the {purpose} import.", "result ="))
    facts = [Fact(definition, depth), Fact(end, 1.0)]
    document = hide(rng, tokens - question_tokens([question], count), count, facts, code, lines)
    return Sample(document, (question,), (definition,), depth)


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
