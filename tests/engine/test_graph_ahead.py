"""Steps for CUDA graphs that are made one ahead of the token that is shown give the same answer.

The graphs themselves are recorded and replayed in tests/gpu.
"""

from functools import partial

import pytest

pytest.importorskip("triton")

from engine.attention import AttentionPlan
from engine.config import Sampling
from engine.cuda.graph_decode import GraphDecoder
from engine.patterns import AttentionPolicy
from engine.sampling import Sampler
from engine.steps import AheadSteps, SampledSteps
from tests.engine.graph_steps import DECODED, SPARSE, TOKENS, read, step_with
from tests.engine.tools import random_ids


@pytest.mark.parametrize("mode", ["exact", "balanced"])
def test_a_step_ahead_gives_the_same_answer(sparse_engine, mode: str) -> None:
    """Over the end of a KV page, whose summary the next step needs."""
    ids, policy = random_ids(TOKENS), AttentionPolicy(mode, SPARSE, 3)
    answers = []
    for ahead in (False, True):
        cache, sequence = read(sparse_engine, "f32", ids)
        cache.prepare(sequence, TOKENS + 12)
        plan, graphs = AttentionPlan(answering=policy), GraphDecoder(sparse_engine.decoder, cache, SPARSE.scorer, 4096)
        decode = partial(step_with, graphs, sequence, plan)
        steps = SampledSteps(decode, Sampler(Sampling()))
        if ahead:
            steps = AheadSteps(graphs, sequence, plan, lambda length: None, lambda: None, 10)
        for token in ids[-DECODED:-1]:
            graphs.step(sequence, token, plan)
        steps.feed(ids[-1])
        tokens = [steps.next()]
        while len(tokens) < 10:
            steps.feed(tokens[-1])
            tokens.append(steps.next())
        answers.append((tokens, sequence.ids.tolist(), plan.counts.answering.read, plan.counts.answering.held))
    assert TOKENS // 64 < (TOKENS + 10) // 64
    assert answers[0] == answers[1]
