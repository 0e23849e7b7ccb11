"""Reads a few made-up tokens, so that what prefill launches is compiled before the first question."""

import torch

from engine.attention import AttentionPlan
from engine.cache import PAGE, KvCache, Sequence
from engine.model import Decoder
from engine.patterns import AttentionPolicy, Scorer, Sparsity
from engine.patterns.policy import RECENT, SINK
from engine.prefill import prefill_chunk

_PAGES = 8
_CHUNKS = (_PAGES * PAGE - 30, 1, 2, 4, 8, 15, PAGE)  # kernels treat few tokens apart; together whole pages


def read_something(decoder: Decoder, cache: KvCache, scorer: Scorer) -> None:
    """Densely and by lists, over exact and, where the format has them, packed pages; the pages are given back."""
    sparse = Sparsity(budget=SINK + RECENT, ratio=0.0, reading_budget=2 * PAGE, crossover=0, score=scorer)
    for policy in (AttentionPolicy("exact"), AttentionPolicy("balanced", sparse, decoder.config.layers)):
        sequence, plan = Sequence(), AttentionPlan(policy, policy)
        for tokens in _CHUNKS:
            cache.prepare(sequence, sequence.length + tokens, sum(_CHUNKS))
            prefill_chunk(decoder, cache, sequence, [0] * tokens, lambda: None, plan)
        cache.free(sequence)
    if cache.device.type == "cuda":
        torch.cuda.synchronize(cache.device)
