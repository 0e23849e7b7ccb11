"""Time per output token over a context of a given length, as a conversation would have it: host and device together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from app.bench.context import filled, make_cache
from engine.attention import AttentionPlan
from engine.cuda.graph_decode import GraphDecoder
from engine.kv_memory import SCORERS
from engine.model import Decoder
from engine.patterns import AttentionPolicy, Sparsity
from engine.steps import AheadSteps

STEPS = 64
_WARM_UP = 4


@dataclass(frozen=True, slots=True)
class TpotRow:
    """tpot_ms: wall clock per token, all steps of a run, page completions among them; step_ms: the device's part of one
    step, by its own clock; read_share: KV pages listed of those held; kernels: launched by one step."""

    mode: str
    kv_format: str
    length: int
    tpot_ms: float
    step_ms: float
    read_share: float
    selected_share: float
    kernels: int


def measure_tpot(
    decoder: Decoder, kv_format: str, length: int, modes: list[str], sparsity: Sparsity | None = None
) -> list[TpotRow]:
    """One cache, all `modes` over it."""
    sparsity = sparsity or Sparsity()
    device, layers = decoder.embed.device, decoder.config.layers
    room = length + (STEPS + _WARM_UP + 4) * (len(modes) + 1)
    cache = make_cache(decoder.config, kv_format, room, device)
    graphs = GraphDecoder(decoder, cache, SCORERS[0], room)
    graphs.capture()
    sequence = filled(cache, length)
    rows = []
    for mode in modes:
        plan = AttentionPlan(answering=AttentionPolicy(mode, sparsity, layers))
        cache.prepare(sequence, sequence.length + STEPS + _WARM_UP + 4)

        def nothing(length: int = 0) -> None:
            pass

        steps = AheadSteps(graphs, sequence, plan, nothing, nothing, STEPS + _WARM_UP + 1)
        steps.feed(1)
        for _ in range(_WARM_UP):
            steps.feed(steps.next())
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(STEPS):
            steps.feed(steps.next())
        torch.cuda.synchronize()
        spent = time.perf_counter() - started
        steps.next()
        kernels, device_ms = _one_step(partial(graphs.step, sequence, 1, plan))
        rows.append(
            TpotRow(
                mode,
                kv_format,
                length,
                1000 * spent / STEPS,
                device_ms,
                plan.counts.answering.share,
                plan.counts.selecting.share,
                kernels,
            )
        )
    return rows


def _one_step(step: Callable[[], object]) -> tuple[int, float]:
    """(kernels, milliseconds on the device) of one step, by the profiler."""
    from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    events = [event for event in profiled.events() or () if event.device_type == DeviceType.CUDA]
    kernels = [event for event in events if not event.name.startswith(("Memcpy", "Memset"))]
    return len(kernels), sum(event.device_time_total for event in kernels) / 1000
