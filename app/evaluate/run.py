"""Goes through formats, samples, lengths, tasks and modes. Dense comes first, so that all can be compared with it.

One engine at a time: the weights of one fit where those of several might not. Samples are the outer loop of a format,
so that what has been measured when the user stops covers every task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from app.errors import AppError
from app.evaluate.measure import DENSE_MODE, Asker, Measured, Way, needs_scores
from app.evaluate.prompts import Prompts
from app.evaluate.sample import DEPTHS, Sample, Task, TooShort

if TYPE_CHECKING:
    from engine import Engine

Load = Callable[[Way], "Engine"]
"""The first of the ways that share an engine -> the engine. ValueError for what it does not know."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. `ways`: rows, those of one format together; `dense`: the way that all are compared with."""

    lengths: tuple[int, ...]
    tasks: tuple[Task, ...]
    samples: int
    ways: tuple[Way, ...]
    dense: Way
    seed: int = 0
    decode_only: bool = False

    def formats(self) -> list[str]:
        return list(dict.fromkeys(way.format for way in self.ways))


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
    KV bytes of a token by format."""

    plan: Plan
    records: list[Record] = field(default_factory=list)
    refused: list[tuple[Way, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_per_token: dict[str, int] = field(default_factory=dict)
    partial: bool = False

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def plan_ways(modes: Sequence[str], formats: Sequence[str], budgets: Sequence[int]) -> tuple[tuple[Way, ...], Way]:
    """(ways, dense). Dense is `exact` over bf16 (f32 if only that is asked for), and comes first, asked for or not."""
    dense = Way(DENSE_MODE, "f32" if "f32" in formats and "bf16" not in formats else "bf16")
    ordered = sorted(dict.fromkeys(formats), key=lambda name: name != dense.format)
    ways = [
        Way(mode, name, budget)
        for name in ordered
        for mode in sorted(dict.fromkeys(modes), key=lambda mode: mode != DENSE_MODE)
        for budget in ([None] if mode == DENSE_MODE else budgets or [None])
    ]
    return tuple(dict.fromkeys([dense, *ways])), dense


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
    for name in plan.formats():
        progress(f"Loading the model with {name} KV")
        ways = [way for way in plan.ways if way.format == name]
        try:
            engine = load(ways[0])
        except ValueError as error:
            results.refused += [(way, str(error)) for way in ways]
            clock.drop(plan, len(ways))
            if plan.dense in ways:
                raise AppError(f"Dense attention over {name} cannot be measured ({error}).") from error
            continue
        with engine:
            _measure_format(plan, prompts, engine, ways, results, dense_ids, clock, progress, done)


def _measure_format(
    plan: Plan,
    prompts: Prompts,
    engine: Engine,
    ways: list[Way],
    results: Results,
    dense_ids: dict[tuple[int, int], list[int]],
    clock: _Clock,
    progress: Callable[[str], None],
    done: Callable[[Record], None],
) -> None:
    asker = Asker(engine, prompts, plan.decode_only)
    results.bytes_per_token[ways[0].format] = engine.kv_bytes_per_token
    refused = {way: reason for way in ways if (reason := asker.refusal(way)) is not None}
    results.refused += refused.items()
    clock.drop(plan, len(refused))
    ways = [way for way in ways if way not in refused]
    for sample, task, length, index in _samples(plan, prompts, results):
        for way in ways:
            progress(f"{way}, {length} tokens, {task.name} {index + 1} of {plan.samples}{clock.left()}")
            if needs_scores(task.kind) and not asker.can_score:
                results.note(f"{task.name}: this engine cannot tell how likely a given text is, so it was left out.")
                continue
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
