"""What the engine says about where a decode step looked, against attention computed in the open."""

import numpy as np
import pytest
import torch

import engine.attention as attention
from engine import EngineConfig, Sampling, Sparsity, Token
from engine.attention import AttentionPlan
from engine.cache import PAGE
from engine.evidence import PageMass, retrieval_weights
from engine.patterns import AttentionPolicy
from engine.patterns.policy import FIRST_LAYERS
from kernels.block_index import BlockIndex
from tests.engine.tiny_models import make_model
from tests.engine.tools import random_ids, tiny_engine

LAYERS, TOKENS = 4, 700


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def model():
    return make_model("qwen3", layers=LAYERS, max_position=4096)


def load(folder, model, **options):
    return tiny_engine(folder, model=model, prefill_chunk=256, evidence=True, **options)


def tokens_of(engine, ids, **options):
    events = engine.generate(ids, Sampling(max_tokens=5), **options)
    return [event for event in events if isinstance(event, Token)]


@pytest.mark.parametrize("kv_format", ["f32", "k4v4"])
def test_every_token_tells_where_its_step_looked(folder, model, kv_format) -> None:
    engine = load(folder, model, kv_format=kv_format)
    ids = random_ids(TOKENS)
    found = tokens_of(engine, ids)
    heads = engine.model.heads * (LAYERS - FIRST_LAYERS)
    assert len(found) == 5
    for number, token in enumerate(found):
        assert token.looked is not None
        assert token.looked.dtype == np.float32
        assert len(token.looked) == (TOKENS + number - 1) // PAGE + 1
        assert token.looked.sum() == pytest.approx(heads, rel=1e-3)  # each query head looks somewhere
    engine.close()


def test_nothing_without_being_asked(folder, model) -> None:
    engine = tiny_engine(folder, model=model)
    assert all(token.looked is None for token in tokens_of(engine, random_ids(80)))
    engine.close()


def test_heads_that_stream_do_not_count(folder, model, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = [[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]
    engine = load(folder, model, gates=tuple(map(tuple, gates)), kv_format="f32")
    drawn: list[torch.Tensor] = []
    real = attention.decode_attention

    def watched(q, kv, table, index, length, scale):
        out, mass = real(q, kv, table, index, length, scale)
        drawn.append(mass.view(2, -1).clone())
        return out, mass

    monkeypatch.setattr(attention, "decode_attention", watched)
    looked = tokens_of(engine, random_ids(TOKENS))[0].looked
    assert looked is not None
    expected = drawn[2][1] + drawn[3].sum(0)
    np.testing.assert_allclose(looked, expected.numpy(), rtol=1e-4, atol=1e-6)
    engine.close()


def test_lists_of_pages(folder, model) -> None:
    """Pages that no retrieval head lists draw nothing; where all are listed it is as without lists."""
    sparse = Sparsity(budget=384, ratio=0.0, crossover=0)
    engine = load(folder, model, kv_format="f32", sparsity=sparse)
    ids = random_ids(TOKENS)
    looked = tokens_of(engine, ids, mode="balanced")[0].looked
    assert looked is not None
    assert (looked == 0).any()
    assert looked.sum() == pytest.approx(engine.model.heads * (LAYERS - FIRST_LAYERS), rel=1e-3)
    engine.close()


def test_a_compact_cache_counts_its_retrieval_heads(folder, model) -> None:
    gates = tuple(tuple(float(head) for head in range(2)) for _ in range(LAYERS))
    sparse = Sparsity(streaming_ratio=0.5, streaming_local=256, crossover=0, budget=4096)
    engine = load(folder, model, gates=gates, sparsity=sparse)
    found = tokens_of(engine, random_ids(TOKENS), mode="balanced", reading="balanced")[0].looked
    assert found is not None
    assert len(found) == (TOKENS - 1) // PAGE + 1
    assert found.sum() == pytest.approx(engine.model.heads / 2 * (LAYERS - FIRST_LAYERS), rel=1e-3)
    engine.close()


def test_a_step_that_was_given_up_leaves_nothing() -> None:
    index = BlockIndex(torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32))
    seen = PageMass()
    seen.add(FIRST_LAYERS, index, torch.tensor([1.0, 2.0]))
    seen.begin()
    seen.add(FIRST_LAYERS, index, torch.tensor([3.0, 4.0]))
    seen.add(FIRST_LAYERS - 1, index, torch.tensor([9.0, 9.0]))
    np.testing.assert_array_equal(seen.take(), [3, 4])
    np.testing.assert_array_equal(seen.take(), [3, 4])
    seen.begin()
    assert seen.take().shape == (0,)


def test_weights_by_gates(tmp_path) -> None:
    def weights(gates):
        found = retrieval_weights(EngineConfig(tmp_path, gates=gates), torch.device("cpu"))
        return None if found is None else found.tolist()

    assert weights(None) is None
    assert weights(((1.0, 1.0),)) is None
    assert weights(((0.0, 0.0),)) is None  # then nothing else tells where the model looked
    assert weights(((0.0, 1.0),)) == [[0, 1]]


def test_the_keys_of_stored_kv_do_not_depend_on_it(folder, model) -> None:
    with_it, without = load(folder, model), tiny_engine(folder, model=model, prefill_chunk=256)
    assert with_it.fingerprint == without.fingerprint
    assert [t.id for t in tokens_of(with_it, random_ids(90))] == [t.id for t in tokens_of(without, random_ids(90))]
    with_it.close()
    without.close()


def test_a_plan_without_it() -> None:
    assert AttentionPlan(AttentionPolicy("exact")).evidence is None
