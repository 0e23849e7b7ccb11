"""Goes through formats, samples, lengths, tasks and modes. Dense comes first, so that all can be compared with it.

One engine at a time: the weights of one fit where those of several might not. Samples are the outer loop of a format,
so that what has been measured when the user stops covers every task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from app.errors import WrongUse
from app.evaluate.measure import DENSE_MODE, Asker, Measured, Way
from app.evaluate.prompts import Prompts
from app.evaluate.sample import DEPTHS, Sample, Task, TooShort

if TYPE_CHECKING:
    from engine import Engine

Load = Callable[[Way], "Engine"]
"""The last of the ways that share an engine -> the engine. ValueError for what it does not know."""
Part = Literal["both", "decode", "prefill"]
"""What a sparse mode is used for; the rest is dense."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. `groups`: the ways of one engine together, dense first; `dense`: what all are compared with."""

    lengths: tuple[int, ...]
    tasks: tuple[Task, ...]
    samples: int
    groups: tuple[tuple[Way, ...], ...]
    dense: Way
    seed: int = 0

    @property
    def ways(self) -> tuple[Way, ...]:
        return tuple(chain.from_iterable(self.groups))


@dataclass(frozen=True, slots=True)
class Record:
    """One sample, measured in one way."""

    way: Way
    length: int
    task: str
    index: int
    depth: float | None
    measured: Measured


@dataclass(slots=True)
class Results:
    """Grows as things are measured. `refused`: (way, reason); `notes`: what was left out and why; `bytes_per_token`:
    KV bytes of a token by format; `sparsity`: what all sparse rows have in common, by name."""

    plan: Plan
    records: list[Record] = field(default_factory=list)
    refused: list[tuple[Way, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_per_token: dict[str, int] = field(default_factory=dict)
    partial: bool = False
    sparsity: dict[str, Any] = field(default_factory=dict)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def plan_ways(
    modes: Sequence[str],
    formats: Sequence[str],
    budgets: Sequence[int] = (),
    scorers: Sequence[str] = (),
    parts: Sequence[Part] = ("both",),
    apart: bool = False,
    gates: Sequence[bool] = (True,),
) -> tuple[tuple[tuple[Way, ...], ...], Way]:
    """(groups of ways, dense). Dense is `exact` over bf16 (f32 if only that is asked for), asked for or not.

    Budget, scorer and gates belong to an engine, so each combination of them is a group, and `exact` is in the first
    one of a format, or with `apart` in one of its own.
    """
    dense = Way(DENSE_MODE, "f32" if "f32" in formats and "bf16" not in formats else "bf16")
    sparse = [mode for mode in dict.fromkeys(modes) if mode != DENSE_MODE]
    groups: list[tuple[Way, ...]] = []
    for name in dict.fromkeys((dense.format, *formats)):
        exact = [Way(DENSE_MODE, name)] if DENSE_MODE in modes or name == dense.format else []
        if exact and apart:
            groups.append((*exact,))
            exact = []
        variants = product(dict.fromkeys(budgets) or [None], dict.fromkeys(scorers) or [None], dict.fromkeys(gates))
        for budget, scorer, streams in variants:
            ways = [
                Way(
                    DENSE_MODE if part == "prefill" else mode,
                    name,
                    DENSE_MODE if part == "decode" else mode,
                    budget,
                    scorer,
                    streams,
                )
                for part in parts
                for mode in sparse
                if name in formats
            ]
            if exact or ways:
                groups.append((*exact, *ways))
            exact = []
    return tuple(groups), dense


def measure(
    plan: Plan,
    prompts: Prompts,
    load: Load,
    results: Results,
    progress: Callable[[str], None],
    done: Callable[[Record], None] = lambda record: None,
) -> None:
    """Fills `results`; `done` is called with each new record, `progress` with a line for people."""
    clock = _Clock(plan)
    dense_ids: dict[tuple[int, int], list[int]] = {}
    for ways in plan.groups:
        progress(f"Loading the model with {ways[0].format} KV")
        try:
            engine = load(ways[-1])
        except ValueError as error:
            if plan.dense in ways:
                raise WrongUse(f"Dense attention cannot be measured: {error}.", "Change what it names.") from error
            results.refused += [(way, str(error)) for way in ways]
            clock.drop(plan, len(ways))
            continue
        with engine:
            _measure_format(plan, prompts, engine, ways, results, dense_ids, clock, progress, done)


def _measure_format(
    plan: Plan,
    prompts: Prompts,
    engine: Engine,
    ways: Sequence[Way],
    results: Results,
    dense_ids: dict[tuple[int, int], list[int]],
    clock: _Clock,
    progress: Callable[[str], None],
    done: Callable[[Record], None],
) -> None:
    asker = Asker(engine, prompts)
    held = results.bytes_per_token.setdefault(ways[0].format, engine.kv_bytes_per_token)
    if held != engine.kv_bytes_per_token:
        results.note(f"{ways[-1]} keeps {engine.kv_bytes_per_token} bytes of KV per token, and not {held} as said.")
    refused = {way: reason for way in ways if (reason := asker.refusal(way)) is not None}
    results.refused += refused.items()
    clock.drop(plan, len(refused))
    ways = [way for way in ways if way not in refused]
    for sample, task, length, index in _samples(plan, prompts, results):
        for way in ways:
            progress(f"{way}, {length} tokens, {task.name} {index + 1} of {plan.samples}{clock.left()}")
            measured = _one(asker, sample, task, way, plan, dense_ids, (length, index))
            if measured is None:
                results.note(f"{task.name} at {length} tokens: dense attention answered nothing to agree with.")
                continue
            record = Record(way, length, task.name, index, sample.depth, measured)
            results.records.append(record)
            done(record)
            clock.did(length)
        asker.forget()


def _one(
    asker: Asker,
    sample: Sample,
    task: Task,
    way: Way,
    plan: Plan,
    dense_ids: dict[tuple[int, int], list[int]],
    key: tuple[int, int],
) -> Measured | None:
    if task.kind == "answer":
        return asker.questions(sample, way, task.answer_tokens)
    if task.kind == "perplexity":
        return asker.perplexity(sample, way)
    if way == plan.dense:
        dense_ids[key] = asker.greedy(sample, way, task.answer_tokens)
    return asker.agreement(sample, way, dense_ids[key]) if dense_ids[key] else None


def _samples(plan: Plan, prompts: Prompts, results: Results) -> Iterator[tuple[Sample, Task, int, int]]:
    for index in range(plan.samples):
        for length in plan.lengths:
            for task in plan.tasks:
                try:
                    yield make_sample(plan.seed, task, length, index, prompts), task, length, index
                except TooShort as error:
                    results.note(f"{task.name} at {length} tokens was left out: {error}.")


def make_sample(seed: int, task: Task, length: int, index: int, prompts: Prompts) -> Sample:
    """The same for every way. `length`: tokens of the whole prompt and its answer, which it nearly fills."""
    turns = 3 if task.name == "multi_turn" else 1
    room = length - prompts.around(turns) - task.answer_tokens
    rng = Random(f"{seed}/{task.name}/{length}/{index}")
    if room < 1:
        raise TooShort(f"the prompt around its document takes {length - room} tokens")
    return task.sample(rng, room, prompts.count, DEPTHS[index % len(DEPTHS)])


class _Clock:
    """How long the rest takes, by tokens of length."""

    def __init__(self, plan: Plan) -> None:
        self._total, self._done, self._started = 0, 0, time.monotonic()
        self.drop(plan, -len(plan.ways))

    def drop(self, plan: Plan, ways: int) -> None:
        """So many rows will not be measured."""
        self._total -= ways * sum(plan.lengths) * plan.samples * len(plan.tasks)

    def did(self, tokens: int) -> None:
        self._done += tokens

    def left(self) -> str:
        if not self._done:
            return ""
        seconds = (time.monotonic() - self._started) / self._done * max(0, self._total - self._done)
        shown = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        return f", about {shown} left" if seconds < 5400 else f", about {seconds / 3600:.1f} h left"
