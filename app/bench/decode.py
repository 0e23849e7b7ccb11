"""Time per output token over a context of a given length, as a conversation would have it: host and device together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from app.bench.context import filled, make_cache
from app.bench.limits import milliseconds
from engine.attention import AttentionPlan
from engine.cache import Sequence
from engine.cuda.counters import counting
from engine.cuda.graph_decode import GraphDecoder, Reads
from engine.kv_memory import SCORERS
from engine.model import Decoder
from engine.patterns import AttentionPolicy, Sparsity
from engine.patterns.policy import SHARED_FROM
from engine.steps import AheadSteps

STEPS = 64
_WARM_UP = 4


@dataclass(frozen=True, slots=True)
class TpotRow:
    """tpot_ms: wall clock per token, all steps of a run, page completions among them; step_ms: one recorded step by the
    card's clock, where lists are shared the mean of one that makes them and those that use them; read_share: KV pages
    listed of those held; kernels: launched by one step; compiles: kernels compiled or loaded and graphs recorded while
    `STEPS` steps were measured, which should be none."""

    mode: str
    kv_format: str
    length: int
    tpot_ms: float
    step_ms: float
    read_share: float
    selected_share: float
    kernels: int
    compiles: int


def measure_tpot(
    decoder: Decoder,
    kv_format: str,
    length: int,
    modes: list[str],
    sparsity: Sparsity | None = None,
    wide: tuple[int, ...] = (),
) -> list[TpotRow]:
    """One cache, all `modes` over it."""
    room = length + (STEPS + _WARM_UP + 4) * (len(modes) + 1)
    cache = make_cache(decoder.config, kv_format, room, decoder.embed.device, wide=wide)
    graphs = GraphDecoder(decoder, cache, SCORERS[0], room)
    graphs.capture()
    sequence = filled(cache, length)
    rows = []
    for mode in modes:
        cache.prepare(sequence, sequence.length + STEPS + _WARM_UP + 4)
        policy = AttentionPolicy(mode, sparsity or Sparsity(), decoder.config.layers)
        rows.append(timed_steps(graphs, sequence, policy, kv_format))
    return rows


def timed_steps(graphs: GraphDecoder, sequence: Sequence, policy: AttentionPolicy, kv_format: str) -> TpotRow:
    """`STEPS` greedy steps one ahead of the host, of a sequence prepared for `STEPS` + 8 more tokens."""
    plan, length = AttentionPlan(answering=policy), sequence.length

    def nothing(length: int = 0) -> None:
        pass

    steps = AheadSteps(graphs, sequence, plan, nothing, nothing, STEPS + _WARM_UP + 1)
    steps.feed(1)
    for _ in range(_WARM_UP):
        steps.feed(steps.next())
    torch.cuda.synchronize()
    with counting() as counts:
        started = time.perf_counter()
        for _ in range(STEPS):
            steps.feed(steps.next())
        torch.cuda.synchronize()
        spent = time.perf_counter() - started
    steps.next()
    step = partial(graphs.step, sequence, 1, plan)
    return TpotRow(
        policy.mode,
        kv_format,
        length,
        1000 * spent / STEPS,
        step_milliseconds(graphs, sequence, plan),
        plan.counts.answering.share,
        plan.counts.selecting.share,
        _kernels(step),
        counts.any,
    )


def step_milliseconds(graphs: GraphDecoder, sequence: Sequence, plan: AttentionPlan) -> float:
    """One recorded step on the device, replayed: kernels overlap, so their own times add up to more than this."""
    variant = graphs.launch(sequence, 1, plan, sequence.length).variant  # sets the inputs; never committed
    making, using = _with(variant, "reuse", "select"), _with(variant, "select", "reuse")
    made = milliseconds(graphs.recorded[making].replay)
    if making == using or sequence.length < SHARED_FROM:
        return made
    shared = plan.answering.sharing(sequence.length)
    return (made + (shared - 1) * milliseconds(graphs.recorded[using].replay)) / shared


def _with(variant: tuple[Reads, Reads], old: Reads, new: Reads) -> tuple[Reads, Reads]:
    first, rest = variant
    return new if first == old else first, new if rest == old else rest


def _kernels(step: Callable[[], object]) -> int:
    """Kernels that one step launches, by the profiler."""
    from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    events = [event for event in profiled.events() or () if event.device_type == DeviceType.CUDA]
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in events)
