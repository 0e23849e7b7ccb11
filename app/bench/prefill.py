"""Time to the first token: a whole prompt through the engine's own chunks, then one decode step."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from app.bench.context import make_cache
from engine.attention import AttentionPlan
from engine.cache import Sequence
from engine.cuda.counters import counting
from engine.cuda.graph_decode import GraphDecoder
from engine.kv_memory import SCORERS
from engine.model import Decoder
from engine.patterns import AttentionPolicy, Sparsity, tail_start
from engine.prefill import chunk_ends, prefill_chunk


@dataclass(frozen=True, slots=True)
class TtftRow:
    """read_share: of the KV pages that the prompt's query blocks could have read; compiles: kernels compiled or loaded
    and graphs recorded meanwhile, which should be none."""

    mode: str
    kv_format: str
    length: int
    ttft_s: float
    read_share: float
    peak_gib: float
    compiles: int


def measure_ttft(
    decoder: Decoder,
    kv_format: str,
    length: int,
    mode: str,
    chunk: int,
    sparsity: Sparsity | None = None,
    wide: tuple[int, ...] = (),
) -> TtftRow:
    """After a short prompt that warms up; the cache is made beforehand, as it is when an app has loaded its model."""
    sparsity = sparsity or Sparsity()
    device, config = decoder.embed.device, decoder.config
    cache = make_cache(config, kv_format, length + chunk, device, chunk, wide)
    graphs = GraphDecoder(decoder, cache, SCORERS[0], length + chunk)
    graphs.capture()
    ids = torch.randint(0, config.vocab_size, (length,), generator=torch.Generator().manual_seed(2)).tolist()
    policy = AttentionPolicy(mode, sparsity, config.layers)
    seconds, plan, compiles = 0.0, AttentionPlan(), 0
    for tokens in (min(length, 2 * chunk + 129), length):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        plan = AttentionPlan(policy, policy, tail_start(tokens))
        started, sequence = time.perf_counter(), Sequence()
        with counting() as counts:
            cache.prepare(sequence, tokens if not cache.packs else 0, tokens)
            for end in chunk_ends(0, tokens - 1, chunk):
                cache.prepare(sequence, end)
                prefill_chunk(decoder, cache, sequence, ids[sequence.length : end], lambda: None, plan)
            cache.prepare(sequence, tokens)
            int(graphs.step(sequence, ids[tokens - 1], plan).argmax())
        seconds = time.perf_counter() - started
        cache.free(sequence)
        compiles = counts.any
    peak = torch.cuda.max_memory_allocated() / 2**30
    return TtftRow(mode, kv_format, length, seconds, plan.counts.reading.share, peak, compiles)
