"""Steps made for CUDA graphs compute what the torch path does: their kernels are interpreted here, on a card they run.

The graphs themselves are recorded and replayed in tests/gpu.
"""

import pytest
import torch

pytest.importorskip("triton")

from engine.attention import AttentionPlan
from engine.cache import SPARSE_DECODE, KvCache
from engine.cuda.graph_decode import GraphDecoder
from engine.patterns import AttentionPolicy, MinMax, Sparsity, TopPages, register, unregister
from engine.patterns import policy as rules
from tests.engine.graph_steps import SPARSE, both
from tests.engine.tools import error_ratio


@pytest.mark.parametrize("kv_format", ["f32", "bf16", "fp8", "k4v4", "k3v3"])
def test_dense_steps(sparse_engine, kv_format: str) -> None:
    expected, got, counts, _ = both(sparse_engine, kv_format, AttentionPolicy("exact", SPARSE, 3))
    assert error_ratio(got, expected) < 0.01
    assert counts[0] == counts[1]
    assert counts[1][2] == 1


@pytest.mark.parametrize("kv_format", ["f32", "k4v4"])
@pytest.mark.parametrize("streams", [False, True])
def test_selected_pages(sparse_engine, kv_format: str, streams: bool) -> None:
    heads = torch.zeros(3, sparse_engine.model.kv_heads, dtype=torch.bool)
    heads[2:, 0] = streams
    expected, got, counts, sequence = both(sparse_engine, kv_format, AttentionPolicy("balanced", SPARSE, 3, heads))
    assert error_ratio(got, expected) < 0.01
    assert counts[0] == counts[1]
    assert counts[1][2] < 0.8
    assert sequence.made_by[-1] == SPARSE_DECODE


def test_bounds_as_scores(sparse_engine) -> None:
    sparsity = Sparsity(budget=512, ratio=0.0, crossover=0, score="min_max")
    policy = AttentionPolicy("balanced", sparsity, 3)
    expected, got, counts, _ = both(sparse_engine, "f32", policy, MinMax(), (MinMax(),))
    assert error_ratio(got, expected) < 0.01
    assert counts[0] == counts[1]


def test_lists_that_positions_share(sparse_engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        rules,
        __import__("engine.attention").attention,
        __import__("engine.cuda.graph_decode").cuda.graph_decode,
    ):
        monkeypatch.setattr(module, "SHARED_FROM", 512)
    monkeypatch.setattr(rules, "FIRST_DENSE", 512)
    monkeypatch.setattr(rules, "FIRST_BUDGET", 640)
    expected, got, counts, _ = both(sparse_engine, "f32", AttentionPolicy("balanced", SPARSE, 3))
    assert error_ratio(got, expected) < 0.01
    assert counts[0] == counts[1]


def test_what_runs_outside(sparse_engine) -> None:
    register("own", TopPages(512))
    try:
        cache = KvCache(sparse_engine.model, "f32", 4, 4)
        steps = GraphDecoder(sparse_engine.decoder, cache, SPARSE.scorer, 256)
        own = AttentionPlan(answering=AttentionPolicy("own", SPARSE, 3))
        assert steps.refusal(own) == "own is a pattern of its own"
        assert steps.refusal(AttentionPlan()) is None
    finally:
        unregister("own")
