"""Recorded decode steps on a card: as launched one by one, and the same bits each time."""

import pytest
import torch

from engine.attention import AttentionPlan
from engine.cache import KvCache, Sequence
from engine.config import ModelConfig, RopeScaling
from engine.kv_memory import SCORERS
from engine.patterns import AttentionPolicy, Sparsity
from engine.prefill import prefill_chunk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]

SPARSE = Sparsity(budget=1024, ratio=0.0, reading_budget=1024, crossover=0)
MODEL = ModelConfig(
    family="llama",
    hidden_size=512,
    layers=4,
    heads=8,
    kv_heads=2,
    head_dim=64,
    ffn_size=1024,
    vocab_size=1024,
    norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=RopeScaling(),
    native_context=8192,
    tied_embeddings=False,
    qkv_bias=False,
    qk_norm=False,
    eos_ids=(),
    bos_id=None,
)
TOKENS, CHUNK, STEPS = 3000, 512, 70  # so many steps that a KV page becomes full


def read(decoder, kv_format: str, plan: AttentionPlan, ids: list[int]) -> tuple[KvCache, Sequence]:
    cache, sequence = KvCache(MODEL, kv_format, 80, 80, "cuda"), Sequence()
    cache.prepare(sequence, len(ids) + STEPS)
    for first in range(0, len(ids), CHUNK):
        prefill_chunk(decoder, cache, sequence, ids[first : first + CHUNK], lambda: None, plan)
    return cache, sequence


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
@pytest.mark.parametrize("kv_format", ["bf16", "fp8", "k4v4", "k3v3"])
@pytest.mark.parametrize("mode", ["exact", "balanced"])
def test_recorded_as_launched_one_by_one(weights: str, kv_format: str, mode: str) -> None:
    from engine.cuda.graph_decode import GraphDecoder
    from engine.random_weights import random_decoder

    decoder = random_decoder(MODEL, weights, torch.device("cuda"))
    ids = torch.randint(0, 1024, (TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    runs, shares = [], []
    for recorded in (False, True, True):
        plan = AttentionPlan(AttentionPolicy(mode, SPARSE, 4), AttentionPolicy(mode, SPARSE, 4), TOKENS - 100)
        cache, sequence = read(decoder, kv_format, plan, ids)
        steps = GraphDecoder(decoder, cache, SCORERS[0], 8192)
        if recorded:
            steps.capture()
        plan = AttentionPlan(answering=AttentionPolicy(mode, SPARSE, 4))
        logits = [steps.step(sequence, token, plan).clone() for token in ids[:STEPS]]
        runs.append(torch.stack(logits))
        shares.append(plan.counts.selecting.share)
    assert torch.equal(runs[1], runs[2])
    assert torch.equal(runs[0], runs[1])
    assert shares[0] == shares[1]
    assert shares[0] == 1 if mode == "exact" else shares[0] < 0.5


@pytest.mark.parametrize("kv_format", ["bf16", "k8v4"])
@pytest.mark.parametrize("mode", ["exact", "balanced"])
def test_masses_are_those_of_single_launches_and_whole(kv_format: str, mode: str) -> None:
    """What pages draw, weighed by KV head and summed by the merging kernel over all but the first layers."""
    from engine.cuda.graph_decode import GraphDecoder
    from engine.random_weights import random_decoder

    decoder = random_decoder(MODEL, "bf16", torch.device("cuda"))
    ids = torch.randint(0, 1024, (TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    weights = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.5, 0.0], [0.25, 1.0]], device="cuda")
    runs = []
    for recorded in (False, True):
        cache, sequence = read(decoder, kv_format, AttentionPlan(), ids)
        steps = GraphDecoder(decoder, cache, SCORERS[0], 8192, weights)
        if recorded:
            steps.capture()
        plan = AttentionPlan(answering=AttentionPolicy(mode, SPARSE, 4))
        looked = []
        for token in ids[:8]:
            step = steps.launch(sequence, token, plan, sequence.length)
            looked.append(torch.from_numpy(step.looked()))
            steps.commit(sequence, step, plan)
        runs.append(torch.stack(looked))
    assert torch.equal(*runs)
    whole = torch.full((8,), float(weights.sum()) * MODEL.heads / MODEL.kv_heads)
    assert torch.allclose(runs[1].sum(1), whole, rtol=2e-3)
    read_pages = (runs[1] > 0).sum(1)
    assert bool((read_pages == runs[1].shape[1]).all()) == (mode == "exact")


@pytest.mark.parametrize("weights", ["bf16", "fp8", "int4"])
@pytest.mark.parametrize("kv_format", ["bf16", "k4v4"])
def test_kernels_that_overlap_compute_what_they_do_apart(weights: str, kv_format: str) -> None:
    from engine.cuda.graph_decode import GraphDecoder
    from engine.random_weights import random_decoder
    from kernels import card

    decoder = random_decoder(MODEL, weights, torch.device("cuda"))
    ids = torch.randint(0, 1024, (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    runs, before = [], card.overlap_is_wanted()
    try:
        for overlap in (False, True, True):
            card.let_kernels_overlap(overlap)
            plan = AttentionPlan(answering=AttentionPolicy("balanced", SPARSE, 4))
            cache, sequence = read(decoder, kv_format, AttentionPlan(), ids)
            steps = GraphDecoder(decoder, cache, SCORERS[0], 8192)
            steps.capture()
            runs.append(torch.stack([steps.step(sequence, token, plan).clone() for token in ids[:STEPS]]))
    finally:
        card.let_kernels_overlap(before)
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[1], runs[2])
