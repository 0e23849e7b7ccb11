"""Steps for CUDA graphs see where an answer looks as the torch path does.

The graphs themselves are recorded and replayed in tests/gpu.
"""

from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from engine.attention import AttentionPlan
from engine.config import Sampling
from engine.cuda.graph_decode import GraphDecoder
from engine.decode import decode_token
from engine.evidence import PageMass
from engine.patterns import AttentionPolicy
from engine.sampling import Sampler
from engine.steps import AheadSteps, SampledSteps
from tests.engine.graph_steps import DECODED, SPARSE, TOKENS, read, step_with
from tests.engine.tools import random_ids


@pytest.mark.parametrize("mode", ["exact", "balanced"])
@pytest.mark.parametrize("ahead", [False, True])
def test_where_steps_look(sparse_engine, mode: str, ahead: bool) -> None:
    """Summed by the kernels as by torch, with one head left out, also one step ahead and over the end of a KV page."""
    ids, policy, decoded = random_ids(TOKENS), AttentionPolicy(mode, SPARSE, 3), 6
    weights = torch.ones(3, sparse_engine.model.kv_heads)
    weights[2, 0] = 0
    looked = []
    for graphs in (False, True):
        cache, sequence = read(sparse_engine, "k4v4", ids)
        cache.prepare(sequence, TOKENS + 12)
        plan = AttentionPlan(answering=policy, evidence=PageMass(weights))
        by_torch = partial(decode_token, sparse_engine.decoder, cache, sequence, poll=lambda: None, plan=plan)
        steps = SampledSteps(by_torch, Sampler(Sampling()))
        if graphs:
            decoder = GraphDecoder(sparse_engine.decoder, cache, SPARSE.scorer, 4096, weights)
            steps = SampledSteps(partial(step_with, decoder, sequence, plan), Sampler(Sampling()))
            if ahead:
                steps = AheadSteps(decoder, sequence, plan, lambda length: None, lambda: None, decoded)
        decode_token(sparse_engine.decoder, cache, sequence, ids[-DECODED], lambda: None)
        steps.feed(ids[-1])
        rows = []
        for number in range(decoded):
            token = steps.next()
            rows.append(plan.evidence.take())
            if number < decoded - 1:
                steps.feed(token)
        looked.append(rows)
    assert len({len(row) for row in looked[0]}) == 2
    for torch_row, graph_row in zip(*looked, strict=True):
        assert torch_row.shape == graph_row.shape
        np.testing.assert_allclose(graph_row, torch_row, rtol=0.02, atol=0.01)
