"""Steps made for CUDA graphs compute what the torch path does: their kernels are interpreted here, on a card they run.

The graphs themselves are recorded and replayed in tests/gpu.
"""

from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from engine.attention import AttentionPlan
from engine.cache import SPARSE_DECODE, KvCache, Sequence
from engine.config import Sampling
from engine.cuda.graph_decode import GraphDecoder
from engine.decode import decode_token
from engine.evidence import PageMass
from engine.patterns import AttentionPolicy, MinMax, Sparsity, TopPages, register, unregister
from engine.patterns import policy as rules
from engine.prefill import prefill_chunk
from engine.sampling import Sampler
from engine.steps import AheadSteps, SampledSteps
from tests.engine.tiny_models import make_model
from tests.engine.tools import error_ratio, random_ids, tiny_engine

SPARSE = Sparsity(budget=512, ratio=0.0, reading_budget=1024, crossover=0)
TOKENS, DECODED = 700, 2  # a KV page ends at 704


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    model = make_model("qwen3", layers=3, max_position=4096)
    return tiny_engine(tmp_path_factory.mktemp("tiny"), model=model, sparsity=SPARSE, prefill_chunk=256)


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


@pytest.mark.parametrize("kv_format", ["f32", "bf16", "fp8", "k4v4", "k3v3"])
def test_dense_steps(engine, kv_format: str) -> None:
    expected, got, counts, _ = both(engine, kv_format, AttentionPolicy("exact", SPARSE, 3))
    assert error_ratio(got, expected) < 0.01
    assert counts[0] == counts[1]
    assert counts[1][2] == 1


@pytest.mark.parametrize("kv_format", ["f32", "k4v4"])
@pytest.mark.parametrize("streams", [False, True])
def test_selected_pages(engine, kv_format: str, streams: bool) -> None:
    heads = torch.zeros(3, engine.model.kv_heads, dtype=torch.bool)
    heads[2:, 0] = streams
    expected, got, counts, sequence = both(engine, kv_format, AttentionPolicy("balanced", SPARSE, 3, heads))
    assert error_ratio(got, expected) < 0.01
    assert counts[0] == counts[1]
    assert counts[1][2] < 0.8
    assert sequence.made_by[-1] == SPARSE_DECODE


def test_bounds_as_scores(engine) -> None:
    sparsity = Sparsity(budget=512, ratio=0.0, crossover=0, score="min_max")
    policy = AttentionPolicy("balanced", sparsity, 3)
    expected, got, counts, _ = both(engine, "f32", policy, MinMax(), (MinMax(),))
    assert error_ratio(got, expected) < 0.01
    assert counts[0] == counts[1]


def test_lists_that_positions_share(engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        rules,
        __import__("engine.attention").attention,
        __import__("engine.cuda.graph_decode").cuda.graph_decode,
    ):
        monkeypatch.setattr(module, "SHARED_FROM", 512)
    monkeypatch.setattr(rules, "FIRST_DENSE", 512)
    monkeypatch.setattr(rules, "FIRST_BUDGET", 640)
    expected, got, counts, _ = both(engine, "f32", AttentionPolicy("balanced", SPARSE, 3))
    assert error_ratio(got, expected) < 0.01
    assert counts[0] == counts[1]


def test_what_runs_outside(engine) -> None:
    register("own", TopPages(512))
    try:
        cache = KvCache(engine.model, "f32", 4, 4)
        steps = GraphDecoder(engine.decoder, cache, SPARSE.scorer, 256)
        own = AttentionPlan(answering=AttentionPolicy("own", SPARSE, 3))
        assert steps.refusal(own) == "own is a pattern of its own"
        assert steps.refusal(AttentionPlan()) is None
    finally:
        unregister("own")


def step_with(graphs: GraphDecoder, sequence: Sequence, plan: AttentionPlan, token: int) -> torch.Tensor:
    return graphs.step(sequence, token, plan)


@pytest.mark.parametrize("mode", ["exact", "balanced"])
def test_a_step_ahead_gives_the_same_answer(engine, mode: str) -> None:
    """Over the end of a KV page, whose summary the next step needs."""
    ids, policy = random_ids(TOKENS), AttentionPolicy(mode, SPARSE, 3)
    answers = []
    for ahead in (False, True):
        cache, sequence = read(engine, "f32", ids)
        cache.prepare(sequence, TOKENS + 12)
        plan, graphs = AttentionPlan(answering=policy), GraphDecoder(engine.decoder, cache, SPARSE.scorer, 4096)
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


@pytest.mark.parametrize("mode", ["exact", "balanced"])
@pytest.mark.parametrize("ahead", [False, True])
def test_where_steps_look(engine, mode: str, ahead: bool) -> None:
    """Summed by the kernels as by torch, with one head left out, also one step ahead and over the end of a KV page."""
    ids, policy, decoded = random_ids(TOKENS), AttentionPolicy(mode, SPARSE, 3), 6
    weights = torch.ones(3, engine.model.kv_heads)
    weights[2, 0] = 0
    looked = []
    for graphs in (False, True):
        cache, sequence = read(engine, "k4v4", ids)
        cache.prepare(sequence, TOKENS + 12)
        plan = AttentionPlan(answering=policy, evidence=PageMass(weights))
        by_torch = partial(decode_token, engine.decoder, cache, sequence, poll=lambda: None, plan=plan)
        steps = SampledSteps(by_torch, Sampler(Sampling()))
        if graphs:
            decoder = GraphDecoder(engine.decoder, cache, SPARSE.scorer, 4096, weights)
            steps = SampledSteps(partial(step_with, decoder, sequence, plan), Sampler(Sampling()))
            if ahead:
                steps = AheadSteps(decoder, sequence, plan, lambda length: None, lambda: None, decoded)
        decode_token(engine.decoder, cache, sequence, ids[-DECODED], lambda: None)
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
