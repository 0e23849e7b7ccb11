"""Pages: what is taken, shared and given back; views; packing."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import profiles
from engine.cache import PAGE, PREFILL, KvCache, Sequence
from engine.config import EngineConfig, ModelConfig, RopeScaling
from engine.errors import EngineError
from engine.kv_memory import bytes_per_token, kv_formats
from engine.pages import PagePool, runs
from kernels.kv_codec import (
    FORMATS,
    coarse_keys,
    hadamard,
    layer_format,
    pack_pages,
    unpack_page_keys,
    unpack_page_values,
)

MODEL = ModelConfig("llama", 64, 2, 4, 2, 32, 64, 100, 1e-5, 1e4, RopeScaling(), 4096, True, False, False, (), None)


def fill(cache: KvCache, sequence: Sequence, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Append random keys and values [layers, tokens, kv_heads, d], as one chunk."""
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(2, tokens, 2, 32, generator=generator) for _ in range(2))
    cache.prepare(sequence, sequence.length + tokens)
    slots = cache.new_slots(sequence, tokens)
    for layer in range(2):
        cache.memory.write(layer, slots, k[layer], v[layer])
    cache.commit(sequence, range(seed, seed + tokens), PREFILL)
    return k, v


def read(cache: KvCache, sequence: Sequence, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = (
        x.transpose(0, 1) for x in cache.view(sequence, sequence.length, torch.float32).read(layer, lambda: None)
    )
    return keys, hadamard(values) if cache.packs else values


def test_pool_takes_neighbours():
    pool = PagePool(20)
    assert pool.take(3) == [0, 1, 2]
    assert pool.take(4, after=2) == [3, 4, 5, 6]
    pool.release([1, 2])
    assert pool.take(2) == [1, 2]  # the smallest gap that fits
    pool.release([4])
    assert pool.take(14) == [*range(7, 20), 4]
    assert pool.free == 0
    with pytest.raises(EngineError):
        pool.take(1)


def test_pool_counts_references():
    pool = PagePool(4)
    pages = pool.take(2)
    pool.share(pages)
    pool.release(pages)
    assert pool.free == 2
    pool.release(pages)
    assert pool.free == 4
    with pytest.raises(ValueError, match="free"):
        pool.release(pages)
    with pytest.raises(ValueError, match="free"):
        pool.share([0])


@given(
    table=st.lists(st.integers(-40, 39), min_size=1, max_size=30, unique=True),
    cut=st.tuples(st.integers(0, 30 * 64), st.integers(0, 30 * 64)),
)
def test_runs_name_every_slot_in_order(table, cut):
    start, end = sorted(min(at, len(table) * 64) for at in cut)
    expected = []
    for token in range(start, end):
        page = table[token // 64]
        expected.append((page < 0, (~page if page < 0 else page) * 64 + token % 64))
    got = [(packed, slot + i) for packed, slot, count in runs(table, 64, start, end) for i in range(count)]
    assert got == expected


@settings(max_examples=60, deadline=None)
@given(table=st.permutations(range(24)), length=st.integers(1, 24 * 64), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_views_read_any_layout(table, length, dtype):
    cache = KvCache(MODEL, "f32", 24)
    cache.memory.keys.copy_((torch.arange(24 * 64) % 251.0)[:, None].expand_as(cache.memory.keys))
    cache.memory.values.copy_(-cache.memory.keys)
    sequence = Sequence(table=list(table)[: -(-length // PAGE)])
    keys, values = cache.view(sequence, length, getattr(torch, dtype)).read(1, lambda: None)
    assert keys.dtype == values.dtype == getattr(torch, dtype)
    assert keys[0, :, 0].tolist() == [(table[token // 64] * 64 + token % 64) % 251 for token in range(length)]
    assert torch.equal(values, -keys)


@pytest.mark.parametrize(("kv_format", "tolerance"), [("f32", 0.0), ("bf16", 0.01)])
def test_what_was_appended_is_read(kv_format, tolerance):
    cache, sequence = KvCache(MODEL, kv_format, 10), Sequence()
    parts = [fill(cache, sequence, tokens, seed) for seed, tokens in ((0, 70), (70, 1), (71, 200))]
    for layer in range(2):
        for got, index in zip(read(cache, sequence, layer), (0, 1)):
            expected = torch.cat([part[index][layer] for part in parts])
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_fork_shares_pages_and_then_goes_its_own_way():
    cache, first = KvCache(MODEL, "f32", 20), Sequence()
    fill(cache, first, 150, 0)
    second = cache.fork(first, 140)
    assert second.table[:2] == first.table[:2]
    assert second.table[2] != first.table[2]
    assert second.ids == first.ids[:140]
    kept = read(cache, first, 0)
    fill(cache, second, 30, 500)
    fill(cache, first, 30, 600)
    assert torch.equal(read(cache, first, 0)[0][:150], kept[0])
    assert torch.equal(read(cache, second, 0)[0][:140], kept[0][:140])
    cache.free(first)
    assert torch.equal(read(cache, second, 0)[0][:140], kept[0][:140])
    cache.free(second)
    assert cache.exact.free == 20


def test_trim_gives_back_what_was_set_aside():
    for kv_format in ("bf16", "k8v4"):
        cache, sequence = KvCache(MODEL, kv_format, 30, 30), Sequence()
        cache.prepare(sequence, 64, 1000)
        fill(cache, sequence, 300, 0)
        cache.trim(sequence)
        cache.free(sequence)
        assert cache.exact.free == 30
        assert cache.packed.free == (30 if kv_format == "k8v4" else 0)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_old_pages_are_packed_and_the_sink_and_recent_ones_stay_exact(kv_format):
    cache, sequence = KvCache(MODEL, kv_format, 20, 20), Sequence()
    k, v = fill(cache, sequence, 64 * 6 + 127, 0)
    assert [page < 0 for page in sequence.table] == [False, True, True, True, True, False, False, False]
    more = fill(cache, sequence, 1, 1000)
    assert [page < 0 for page in sequence.table] == [False, True, True, True, True, True, False, False]
    k, v = torch.cat((k[1], more[0][1])), torch.cat((v[1], more[1][1]))  # of layer 1
    keys, values = read(cache, sequence, 1)
    exact = torch.ones(len(k), dtype=torch.bool)
    exact[64:384] = False
    assert torch.equal(keys[exact], k.bfloat16().float()[exact])
    torch.testing.assert_close(values[exact], v[exact], rtol=0.02, atol=0.03)
    fmt = layer_format(kv_format, 1, MODEL.layers)
    old_k, old_v = (x.bfloat16()[64:384].transpose(0, 1).unflatten(1, (-1, 64)) for x in (k, hadamard(v)))
    old = pack_pages(old_k, old_v, fmt)
    assert torch.equal(keys[64:384], unpack_page_keys(old, fmt).flatten(1, 2).transpose(0, 1))
    expected = hadamard(unpack_page_values(old, fmt).flatten(1, 2).transpose(0, 1))
    torch.testing.assert_close(values[64:384], expected, rtol=1e-4, atol=1e-4)
    assert cache.exact.free == 20 - 3
    places = [~page for page in sequence.table[1:6]]
    for stored, part in zip(cache.memory.summaries["coarse_keys"], coarse_keys(old_k)):
        assert torch.equal(stored[1][:, [20 + place for place in places]], part)
    rows = cache.memory.summary_rows(cache.table(sequence, sequence.length // PAGE * PAGE))
    exact_keys = k.bfloat16().transpose(0, 1)[:, : sequence.length // PAGE * PAGE].unflatten(1, (-1, PAGE))
    for got, part in zip(cache.memory.read_summaries(1, "coarse_keys", rows), coarse_keys(exact_keys)):
        assert torch.equal(got, part)


@pytest.mark.parametrize("kv_format", ["f32", "bf16"])
def test_complete_pages_are_summarized(kv_format):
    cache, sequence = KvCache(MODEL, kv_format, 20), Sequence()
    k = torch.cat(
        [fill(cache, sequence, tokens, seed)[0][1] for seed, tokens in ((0, 70), (70, 57), (127, 1), (128, 64))]
    )
    pages = k.to(cache.dtype)[:192].transpose(0, 1).unflatten(1, (-1, 64))
    for stored, part in zip(cache.memory.summaries["coarse_keys"], coarse_keys(pages)):
        assert torch.equal(stored[1][:, sequence.table[:3]], part)


def test_k8v4_refuses_to_cut_a_packed_page():
    cache, sequence = KvCache(MODEL, "k8v4", 20, 20), Sequence()
    fill(cache, sequence, 400, 0)
    with pytest.raises(ValueError, match="cuts a packed page"):
        cache.fork(sequence, 100)


@pytest.mark.parametrize("kv_format", kv_formats())
def test_bytes_per_token(kv_format):
    cache = KvCache(MODEL, kv_format, 10, 1)
    kept = [store.tensor for store in cache.memory.stores if store.packed == cache.packs]
    assert bytes_per_token(MODEL, kv_format) == -(-sum(tensor.nbytes for tensor in kept) // 640)
    if kv_format == "bf16":  # keys and values; their copy in 2 bits, with a scale and a minimum for 64 tokens
        assert bytes_per_token(MODEL, kv_format) == 2 * 2 * 32 * (2 * 2 + (64 / 4 + 2 * 2) / 64)


@pytest.mark.parametrize("kv_format", ["bf16", "k8v4"])
def test_the_capacity_leaves_half_of_the_memory_free(monkeypatch, kv_format):
    free = 100 * 2**20
    monkeypatch.setattr(profiles, "free_memory", lambda device: free)
    config = EngineConfig(Path("model"), kv_format=kv_format)
    pages = -(-profiles.capacity_tokens(config, MODEL, 10**9, "cpu") // PAGE) + profiles.SPARE_PAGES
    exact = profiles.exact_pages(pages, profiles.prefill_chunk_tokens(MODEL)) if kv_format == "k8v4" else 0
    cache = KvCache(MODEL, kv_format, pages, exact)
    held = sum(store.tensor.nbytes for store in cache.memory.stores)
    assert 0.95 * free / 2 < held < 1.02 * free / 2
