"""Steps made for CUDA graphs beside those of torch, with their kernels interpreted where there is no card."""

import pytest
import torch

pytest.importorskip("triton")

from engine.attention import AttentionPlan
from engine.cache import KvCache, Sequence
from engine.cuda.graph_decode import GraphDecoder
from engine.decode import decode_token
from engine.patterns import AttentionPolicy
from engine.prefill import prefill_chunk
from tests.engine.tools import SPARSE_STEPS as SPARSE
from tests.engine.tools import random_ids

TOKENS, DECODED = 700, 2  # a KV page ends at 704


def read(engine, kv_format: str, ids: list[int], scorers=None) -> tuple[KvCache, Sequence]:
    options = {} if scorers is None else {"scorers": scorers}
    cache, sequence = KvCache(engine.model, kv_format, 24, 24, **options), Sequence()
    cache.prepare(sequence, len(ids))
    for first in range(0, len(ids) - DECODED, 256):
        prefill_chunk(engine.decoder, cache, sequence, ids[first : min(first + 256, len(ids) - DECODED)], lambda: None)
    return cache, sequence


def both(engine, kv_format: str, policy: AttentionPolicy, scorer=None, scorers=None):
    """(logits by torch, logits by the step, counts of each, the step's sequence)."""
    ids = random_ids(TOKENS)
    rows, counts, sequence = [], [], Sequence()
    for graphs in (False, True):
        cache, sequence = read(engine, kv_format, ids, scorers)
        plan = AttentionPlan(answering=policy)
        steps = GraphDecoder(engine.decoder, cache, scorer or SPARSE.scorer, 4096)
        assert steps.refusal(plan) is None
        for token in ids[-DECODED:]:
            if graphs:
                rows.append(steps.step(sequence, token, plan).clone())
            else:
                rows.append(decode_token(engine.decoder, cache, sequence, token, lambda: None, plan))
        counts.append((plan.counts.answering.read, plan.counts.answering.held, plan.counts.selecting.share))
    return torch.stack(rows[:DECODED]), torch.stack(rows[DECODED:]), counts, sequence


def step_with(graphs: GraphDecoder, sequence: Sequence, plan: AttentionPlan, token: int) -> torch.Tensor:
    return graphs.step(sequence, token, plan)
