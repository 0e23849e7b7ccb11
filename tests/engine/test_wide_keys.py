"""Layers that keep 8-bit keys where the KV format has fewer: what they take, what comes back, who may read it."""

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine import EngineConfig, profiles
from engine.attention import AttentionPlan
from engine.cache import PAGE, PREFILL, KvCache, Sequence
from engine.config import check_layers
from engine.decode import decode_token
from engine.kv_memory import SCORERS, bytes_per_token, demoted_formats, format_key, kv_formats, layer_formats
from engine.patterns import AttentionPolicy
from engine.prefill import prefill_chunk
from engine.profile_rules import choose_profile
from kernels.kv_codec import FORMATS, PackedFormat, hadamard, pack_pages, unpack_page_keys, unpack_page_values
from tests.engine.test_cache import MODEL as TWO_LAYERS
from tests.engine.test_cache import read
from tests.engine.test_profiles import H200, LLAMA_3_8B
from tests.engine.tiny_models import make_model
from tests.engine.tools import Store, error_ratio, random_ids, tiny_engine, turn

LAYERS, WIDE = 7, (3, 4)
MODEL = replace(TWO_LAYERS, layers=LAYERS)
LOW = ("k4v4", "k3v3", "k3v2", "k2v2")


@pytest.mark.parametrize("kv_format", LOW)
def test_wide_layers_cost_the_bits_of_their_keys_and_nothing_else(kv_format):
    cache = KvCache(MODEL, kv_format, 10, 1, wide=WIDE)
    kept = [store.tensor for store in cache.memory.stores if store.packed]
    took = bytes_per_token(MODEL, kv_format, wide=WIDE)
    assert took == -(-sum(tensor.nbytes for tensor in kept) // 640)
    more = len(WIDE) * MODEL.kv_heads * MODEL.head_dim * (8 - FORMATS[kv_format].key_bits) / 8
    assert took - bytes_per_token(MODEL, kv_format) == pytest.approx(more, abs=1)
    values = FORMATS[kv_format].value_bits
    assert [fmt.value_bits for fmt in cache.memory.formats] == [8, 8, values, values, values, 8, 8]
    assert cache.memory.formats[3] == PackedFormat(8, values)


@pytest.mark.parametrize("kv_format", [name for name in kv_formats() if name not in LOW])
def test_formats_with_8_bit_keys_and_exact_ones_know_no_wide_layers(kv_format):
    assert layer_formats(MODEL, kv_format, WIDE) == layer_formats(MODEL, kv_format)
    assert bytes_per_token(MODEL, kv_format, wide=WIDE) == bytes_per_token(MODEL, kv_format)
    assert format_key(MODEL, kv_format, WIDE) == kv_format


def test_what_pages_hold_is_named_by_the_layers_that_differ():
    assert format_key(MODEL, "k3v3", (0, 3, 4, 6)) == "k3v3 with 8-bit keys in 3,4"
    assert format_key(MODEL, "k3v3", (0, 6)) == format_key(MODEL, "k3v3") == "k3v3"


@pytest.mark.parametrize("kv_format", ["k4v4", "k3v3", "k2v2"])
def test_each_layer_comes_back_from_its_own_format(kv_format):
    cache, sequence = KvCache(MODEL, kv_format, 20, 20, wide=WIDE), Sequence()
    generator = torch.Generator().manual_seed(1)
    k, v = (torch.randn(LAYERS, 512, 2, 32, generator=generator) for _ in range(2))
    cache.prepare(sequence, 512)
    for layer in range(LAYERS):
        cache.memory.write(layer, cache.new_slots(sequence, 512), k[layer], v[layer])
    cache.commit(sequence, range(512), PREFILL)
    assert [page < 0 for page in sequence.table] == [False, *[True] * 5, False, False]
    old_k, old_v = (x.bfloat16()[:, PAGE : 6 * PAGE].transpose(1, 2).unflatten(2, (-1, PAGE)) for x in (k, hadamard(v)))
    for layer, bits in ((2, FORMATS[kv_format].key_bits), (3, 8), (4, 8)):
        fmt = PackedFormat(bits, FORMATS[kv_format].value_bits)
        old, (keys, values) = pack_pages(old_k[layer], old_v[layer], fmt), read(cache, sequence, layer)
        packed = slice(PAGE, 6 * PAGE)
        assert torch.equal(keys[packed], unpack_page_keys(old, fmt).flatten(1, 2).transpose(0, 1))
        expected = hadamard(unpack_page_values(old, fmt).flatten(1, 2).transpose(0, 1))
        torch.testing.assert_close(values[packed], expected, rtol=1e-4, atol=1e-4)


def test_demoted_pages_keep_their_wide_keys():
    assert [fmt.key_bits for fmt in demoted_formats(MODEL, "k4v4", WIDE)] == [8, 8, 4, 8, 8, 8, 8]
    assert {fmt.value_bits for fmt in demoted_formats(MODEL, "k4v4", WIDE)} == {2}
    cache, sequence = KvCache(MODEL, "k4v4", 20, 20, cold_pages=8, wide=WIDE), Sequence()
    cache.prepare(sequence, 640)
    for layer in range(LAYERS):
        k, v = (torch.randn(640, 2, 32, generator=torch.Generator().manual_seed(seed)) for seed in (layer, 50 + layer))
        cache.memory.write(layer, cache.new_slots(sequence, 640), k, v)
    cache.commit(sequence, range(640), PREFILL)
    before = [read(cache, sequence, layer)[0] for layer in range(LAYERS)]
    cache.demote([~sequence.table[page] for page in (2, 3)], [sequence])
    assert sum(cache.is_demoted(place) for place in sequence.table) == 2
    for layer in range(LAYERS):
        assert torch.equal(read(cache, sequence, layer)[0], before[layer])


def test_less_fits_into_the_memory(monkeypatch):
    model = replace(LLAMA_3_8B, native_context=2**20)
    profile = choose_profile(H200, "ada")
    config = EngineConfig(Path("m"), device="cuda:0", kv_format="k3v3")
    wide = replace(config, wide_key_layers=tuple(range(model.layers)))
    for context in (None, 2**20):  # with demoted pages
        fits = [
            profiles.estimated_context(replace(each, context=context), profile, model, SCORERS)
            for each in (config, wide)
        ]
        assert fits[1] < 0.75 * fits[0]
    held = [bytes_per_token(model, "k3v3", demoted=True, wide=each.wide_key_layers) for each in (config, wide)]
    assert held[1] - held[0] == 28 * model.kv_heads * model.head_dim * 5 // 8
    monkeypatch.setattr(profiles, "free_memory", lambda device: 4 << 30)
    fits = [profiles.capacity_tokens(replace(each, device="cpu"), model, 10**9, "cpu") for each in (config, wide)]
    assert fits[1] < 0.85 * fits[0]  # with exact pages beside, one for four


@pytest.mark.parametrize("layers", [(1, 1), (2, 1), [3], (-1,), (True,), ("3",), None])
def test_what_is_no_list_of_layers_is_refused(layers):
    with pytest.raises(ValueError, match="wide_key_layers: got "):
        EngineConfig(Path("m"), wide_key_layers=layers)


def test_a_layer_that_the_model_lacks_is_refused(tmp_path):
    check_layers("wide_key_layers", (0, 6), 7)
    with pytest.raises(ValueError, match=r"wide_key_layers: got \(7,\), need layers in ascending order, from 0 to 6"):
        KvCache(MODEL, "k4v4", 4, 4, wide=(7,))
    with pytest.raises(ValueError, match=r"wide_key_layers: got \(2,\)"):
        tiny_engine(tmp_path, kv_format="bf16", wide_key_layers=(2,))


def test_rows_of_another_set_of_layers_are_recomputed(tmp_path, monkeypatch, caplog):
    """They have another root; should one come under this root all the same, it does not fit."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    model, sets = make_model("llama", layers=6, max_position=2048), {"none": (), "these": (3,), "as many": (2,)}
    engines = {
        name: tiny_engine(tmp_path, model=model, prefill_chunk=128, kv_format="k4v4", wide_key_layers=each)
        for name, each in sets.items()
    }
    ids, store, prints = random_ids(520), Store(), {name: engine.fingerprint for name, engine in engines.items()}
    assert len(set(prints.values())) == 3
    answers = {}
    for name, engine in engines.items():
        answers[name] = turn(engine, ids, conversation="a", save_to=store if name == "these" else None, tokens=8).ids
        engine.unload("a")
    same = turn(engines["these"], ids, conversation="b", snapshots=store, tokens=8)
    assert (same.ids, same.stats.restored_tokens >= 256) == (answers["these"], True)
    for name in ("none", "as many"):
        other = turn(engines[name], ids, conversation="b", snapshots=store, tokens=8)
        assert (other.ids, other.stats.reused_tokens, caplog.text) == (answers[name], 0, "")
        engines[name].unload("b")
        monkeypatch.setattr(engines[name], "fingerprint", prints["these"])
        with caplog.at_level(logging.WARNING):
            other = turn(engines[name], ids, conversation="b", snapshots=store, tokens=8)
        assert (other.ids, other.stats.reused_tokens) == (answers[name], 0)
        assert "does not fit, its format is another" in caplog.text
        caplog.clear()


@pytest.mark.skipif(not os.environ.get("UNABRIDGED_ALL_FORMATS"), reason="interpreted: 50 s")
def test_steps_made_for_graphs_read_them_as_torch_does(tmp_path):
    pytest.importorskip("triton")
    from engine.cuda.graph_decode import GraphDecoder

    engine = tiny_engine(tmp_path, model=make_model("llama", layers=5, max_position=2048))
    ids, rows = random_ids(270), []
    plan = AttentionPlan(answering=AttentionPolicy("exact"))
    for graphs in (False, True):
        cache, sequence = KvCache(engine.model, "k3v3", 12, 12, wide=(2,)), Sequence()
        assert cache.memory.formats[2] == PackedFormat(8, 3)
        cache.prepare(sequence, len(ids))
        prefill_chunk(engine.decoder, cache, sequence, ids[:-1], lambda: None)
        assert [page < 0 for page in sequence.table] == [False, True, False, False, False]
        if graphs:
            steps = GraphDecoder(engine.decoder, cache, SCORERS[0], 2048)
            rows.append(steps.step(sequence, ids[-1], plan))
        else:
            rows.append(decode_token(engine.decoder, cache, sequence, ids[-1], lambda: None, plan))
    assert error_ratio(rows[1], rows[0]) < 0.01
