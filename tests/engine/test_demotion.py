"""Demotion: when memory is short and nothing idle is left, values of packed pages give up bits; nothing is lost."""

from pathlib import Path

import pytest
import torch

from engine import Engine, profiles
from engine.attention import EXACT
from engine.cache import PAGE, KvCache, Sequence
from engine.config import EngineConfig
from engine.demotion import demote, victims
from engine.errors import EngineError
from engine.kv_memory import bytes_per_token
from engine.patterns import AttentionPolicy, TopPages, register, unregister
from engine.profiles import SPARE_PAGES, kv_sizes
from kernels.block_index import BlockIndex
from kernels.decode_attention import decode_attention, reference
from kernels.kv_codec import PackedPages, hadamard, requantize_values, unpack_page_keys, unpack_page_values
from tests.engine.test_cache import MODEL, fill, read
from tests.engine.tiny_models import make_model
from tests.engine.tools import Store, error_ratio, random_ids, tiny_engine, turn

DEMOTABLE = ["k8v8", "k8v4", "k4v4", "k3v3"]
CONTEXT = 4096


def filled(kv_format: str, pages: int = 12) -> tuple[KvCache, Sequence]:
    """A sequence whose packed pages are 1 to pages - 3."""
    cache, sequence = KvCache(MODEL, kv_format, 20, 20, cold_pages=8), Sequence()
    fill(cache, sequence, PAGE * pages, 0)
    cache.trim(sequence)
    return cache, sequence


def kept(cache: KvCache, sequence: Sequence, layer: int, page: int) -> PackedPages:
    """A packed page as it lies in memory, [kv_heads, 1, ...] each."""
    place = ~sequence.table[page]
    return PackedPages(*(part[:, place : place + 1].clone() for part in cache.memory.packed[layer]))


@pytest.mark.parametrize("kv_format", DEMOTABLE)
def test_keys_stay_and_values_keep_two_bits(kv_format):
    cache, sequence = filled(kv_format)
    before, summaries = [kept(cache, sequence, layer, 4) for layer in range(2)], cache.memory.summaries["coarse_keys"]
    rows = cache.memory.summary_rows(cache.table(sequence, sequence.length))
    means = summaries[0][:, :, rows].clone()
    others = read(cache, sequence, 1)
    cache.demote([~sequence.table[page] for page in (4, 5, 9)], [sequence])
    assert [cache.is_demoted(place) for place in sequence.table] == [page in (4, 5, 9) for page in range(12)]
    assert (cache.packed.free, cache.cold.free) == (20 - 9 + 3, 8 - 3)
    rows = cache.memory.summary_rows(cache.table(sequence, sequence.length))
    assert torch.equal(summaries[0][:, :, rows], means)
    here = slice(4 * PAGE, 5 * PAGE)
    for layer, page in enumerate(before):
        fmt = cache.memory.formats[layer]
        keys, values = read(cache, sequence, layer)
        fewer = requantize_values(page, fmt, 2)
        assert torch.equal(keys[here].transpose(0, 1), unpack_page_keys(page, fmt)[:, 0])
        expected = hadamard(unpack_page_values(*fewer)[:, 0])
        torch.testing.assert_close(values[here].transpose(0, 1), expected, rtol=1e-5, atol=1e-5)
    untouched = torch.ones(sequence.length, dtype=torch.bool)
    untouched[[at for page in (4, 5, 9) for at in range(page * PAGE, page * PAGE + PAGE)]] = False
    for now, then in zip(read(cache, sequence, 1), others):
        assert torch.equal(now[untouched], then[untouched])


@pytest.mark.parametrize("kv_format", DEMOTABLE)
def test_decode_reads_demoted_pages_like_prefill_does(kv_format):
    cache, sequence = filled(kv_format)
    cache.demote([~sequence.table[page] for page in (3, 4, 8)], [sequence])
    q = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
    keys, values = (x.transpose(0, 1).double() for x in read(cache, sequence, 1))
    scores = torch.einsum("hgd,hnd->hgn", q.double().view(2, 2, 32), keys) * 0.2
    expected = (scores.softmax(-1) @ values).flatten(0, 1)
    index = BlockIndex(torch.tensor([0, 12, 24]).int(), torch.arange(12).repeat(2).int())
    table = cache.table(sequence, sequence.length)
    for attend in (decode_attention, reference.decode_attention):
        out, mass = attend(q, cache.memory.layers[1], table, index, sequence.length, 0.2)
        assert error_ratio(hadamard(out), expected) < 1e-5
        masses = scores.softmax(-1).unflatten(-1, (12, PAGE)).sum((1, 3)).flatten()
        torch.testing.assert_close(mass.double(), masses, rtol=1e-5, atol=1e-6)


def test_forks_share_demoted_pages_and_every_reference_is_given_back():
    cache, first = filled("k8v4")
    second = cache.fork(first, 8 * PAGE)
    page = ~first.table[3]
    with pytest.raises(ValueError, match="holders"):
        cache.demote([page], [first])
    cache.demote([page], [first, second])
    assert first.table[3] == second.table[3]
    assert cache.demoted(first) == cache.demoted(second) == 1
    third = cache.fork(second, 6 * PAGE)
    content = read(cache, third, 0)
    cache.free(second)
    cache.free(first)
    assert cache.cold.free == 7
    assert all(torch.equal(now, then) for now, then in zip(read(cache, third, 0), content))
    cache.free(third)
    assert (cache.exact.free, cache.packed.free, cache.cold.free) == (20, 20, 8)


def test_too_few_cold_pages_change_nothing():
    cache, sequence = filled("k4v4", 13)
    before = list(sequence.table)
    with pytest.raises(EngineError):
        cache.demote([~place for place in before if place < 0], [sequence])
    assert sequence.table == before
    assert (cache.packed.free, cache.cold.free) == (10, 8)


@pytest.mark.parametrize("kv_format", ["bf16", "fp8", "k3v2", "k2v2"])
def test_formats_without_bits_to_give_have_no_cold_pages(kv_format):
    with pytest.raises(ValueError, match="cold_pages"):
        KvCache(MODEL, kv_format, 20, 20, cold_pages=1)


def test_least_attended_pages_go_first_and_those_of_others_last():
    cache, live = filled("k8v4")
    assert victims(cache, live, [live]) == [~place for place in live.table[1:10]]  # nothing drawn yet: oldest first
    cache.drawn(live, 12)[:12] = torch.tensor([0, 5, 1, 4, 2, 2, 9, 3, 0.5, 7, 0, 0.0])
    assert victims(cache, live, [live]) == [~live.table[page] for page in (8, 2, 4, 5, 7, 3, 1, 9, 6)]
    mark, other = cache.fork(live, 9 * PAGE), cache.fork(live, 3 * PAGE)
    expected = [~live.table[page] for page in (8, 4, 5, 7, 3, 9, 6, 2, 1)]
    assert victims(cache, live, [live, mark]) == expected
    assert demote(cache, live, [live, mark], [other], 8) == 8
    assert [page for page, place in enumerate(live.table) if cache.is_demoted(place)] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert cache.demoted(mark) == 7
    assert cache.demoted(other) == 1
    assert demote(cache, live, [live, mark], [other], 8) == 0  # no cold page is left
    for sequence in (live, mark, other):
        cache.free(sequence)
    assert (cache.exact.free, cache.packed.free, cache.cold.free) == (20, 20, 8)


# In the engine


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Makes engines whose memory holds half of the context in full format, with blocks of two pages."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    model = make_model("llama", layers=3, max_position=CONTEXT)

    def make(kv_format: str = "k8v4", capacity: int | None = 1024) -> Engine:
        options = {"kv_format": kv_format, "prefill_chunk": 128, "kv_capacity_tokens": capacity}
        return tiny_engine(tmp_path / "model", model=model, **options)

    return make


def all_free(engine: Engine) -> bool:
    cache = engine.cache
    return all(pool.free == pool.size for pool in (cache.exact, cache.packed, cache.cold))


@pytest.mark.parametrize("kv_format", DEMOTABLE)
def test_a_prompt_that_does_not_fit_is_read_with_demoted_pages(small, kv_format):
    engine = small(kv_format)
    assert (engine.cache.packed.size, engine.cache.cold.size) == (32, 48)
    turn(engine, random_ids(500, 3), conversation="idle")
    ids = random_ids(3000)
    first = turn(engine, ids, conversation="a", checkpoints=[2500], tokens=80)
    assert engine.live_tokens("idle") == 0  # unloading comes first
    pages = (len(ids) + first.stats.output_tokens - 1 - 128) // PAGE - 1
    assert first.stats.demoted_pages == pages - 32  # no page more than is needed
    assert first.stats.computed_tokens == len(ids)
    follow = ids + first.ids + random_ids(150, 5)
    second = turn(engine, follow, conversation="a", tokens=20)
    assert second.stats.computed_tokens == 151
    assert second.stats.demoted_pages > first.stats.demoted_pages
    live = engine.conversations.use("a").live
    assert live.drawn.sum() == pytest.approx(
        3 * engine.model.heads * (first.stats.output_tokens + len(second.ids)), 1e-4
    )
    again = small(kv_format)
    assert turn(again, ids, conversation="b", checkpoints=[2500], tokens=80).ids == first.ids
    assert turn(again, follow, conversation="b", tokens=20).ids == second.ids
    engine.unload("a")
    assert all_free(engine)


def test_nothing_is_demoted_where_unloading_is_enough(small):
    engine, roomy = small(), small(capacity=None)
    assert roomy.cache.cold.size == 0
    for name in "abc":
        result = turn(engine, random_ids(1500, ord(name)), conversation=name, checkpoints=[1200])
        assert result.stats.demoted_pages == 0
        assert result.ids == turn(roomy, random_ids(1500, ord(name)), conversation=name, checkpoints=[1200]).ids


def test_marks_keep_their_pages_and_an_edit_goes_back_to_them(small):
    engine, ids = small(), random_ids(3000)
    turn(engine, ids, conversation="a", checkpoints=[2000], tokens=4)
    assert {mark.length for mark in engine.conversations.use("a").marks} >= {2000}
    edited = turn(engine, ids[:2100] + random_ids(400, 8), conversation="a", tokens=4)
    assert edited.stats.reused_tokens >= 2000 - 3 * 128
    engine.unload("a")
    assert all_free(engine)


def test_the_memory_still_has_an_end(small):
    from engine import DoesNotFitError

    engine = small()
    engine.context = 10**6
    assert engine.largest_prompt == engine.kv_capacity_tokens == CONTEXT
    with pytest.raises(DoesNotFitError):
        turn(engine, random_ids(CONTEXT), conversation="a", tokens=1)
    assert turn(engine, random_ids(CONTEXT - 40), conversation="a", tokens=40).stats.demoted_pages > 25


@pytest.mark.parametrize("kv_format", ["k8v4", "k3v3"])
def test_restored_pages_have_their_full_format(small, kv_format):
    engine, roomy, store, ids = small(kv_format), small(kv_format, None), Store(), random_ids(3000)
    first = turn(engine, ids, conversation="a", checkpoints=[1000, 2000, 2900], save_to=store, tokens=8)
    assert first.stats.demoted_pages > 0
    follow = ids + first.ids + random_ids(20, 5)
    restored = turn(roomy, follow, conversation="b", snapshots=store, tokens=8)
    assert restored.stats.demoted_pages == 0
    assert restored.stats.restored_tokens > 2900
    # The same bytes as those of an engine that never demoted, as far as nothing demoted had been read.
    never = small(kv_format, None)
    turn(never, ids, conversation="c", checkpoints=[1000, 2000, 2900], tokens=8)
    state, full = roomy.conversations.use("b").live, never.conversations.use("c").live
    for now, then in zip(read(roomy.cache, state, 1), read(never.cache, full, 1)):
        assert torch.equal(now[: 32 * PAGE], then[: 32 * PAGE])
    # What does not fit is demoted while it is restored.
    engine.unload("a")
    back = turn(engine, follow, conversation="a", snapshots=store, tokens=8)
    assert back.stats.restored_tokens == restored.stats.restored_tokens
    assert back.stats.demoted_pages > 0
    engine.unload("a")
    assert all_free(engine)


def test_rows_with_demoted_pages_are_never_written(small):
    engine = small()
    turn(engine, random_ids(3000), conversation="a", checkpoints=[2900], tokens=8)
    live = engine.conversations.use("a").live
    demoted = [page for page, place in enumerate(live.table) if engine.cache.is_demoted(place)]
    rows = list(engine.export("a", live.length))
    assert len(rows) == demoted[0] // 2  # blocks of two pages before the first demoted one
    keys = [row.key for row in engine.export("a", live.length)]
    assert keys == [row.key for row in rows]


@pytest.mark.parametrize("kv_format", DEMOTABLE)
def test_below_the_budget_sparse_is_dense_to_the_bit(small, kv_format):
    from engine.attention import AttentionPlan
    from engine.decode import decode_token

    engine, logits = small(kv_format), []
    turn(engine, random_ids(2900), conversation="a", tokens=1)
    live = engine.conversations.use("a").live
    assert engine.cache.demoted(live) > 8
    register("everything", TopPages(1 << 20))
    try:
        for policy in (EXACT, AttentionPolicy("everything")):
            fork = engine.cache.fork(live, live.length)
            engine.cache.prepare(fork, live.length + 1)
            logits.append(
                decode_token(engine.decoder, engine.cache, fork, 7, lambda: None, AttentionPlan(EXACT, policy))
            )
            engine.cache.free(fork)
    finally:
        unregister("everything")
    assert torch.equal(*logits)


# How memory is divided


def held(cache: KvCache) -> int:
    memory = cache.memory
    parts = [part for pool in (*memory.packed, *memory.cold) for part in pool]
    summaries = [part for tensors in memory.summaries.values() for part in tensors]
    return sum(tensor.nbytes for tensor in (memory.keys, memory.values, *parts, *summaries))


@pytest.mark.parametrize("kv_format", DEMOTABLE)
def test_the_same_memory_holds_a_longer_context(monkeypatch, kv_format):
    free = 100 * 2**20
    monkeypatch.setattr(profiles, "free_memory", lambda device: free)
    config = EngineConfig(Path("model"), kv_format=kv_format)
    capacity = profiles.capacity_tokens(config, MODEL, 10**9, "cpu")
    assert kv_sizes(config, MODEL, capacity // PAGE * PAGE, "cpu").cold == 0  # it fits as it is
    for context in (int(capacity * 1.05), 10**9):
        sizes = kv_sizes(config, MODEL, context, "cpu")
        assert 0 < sizes.cold <= 3 * (sizes.pages - SPARE_PAGES)
        assert sizes.tokens >= min(context, 1.15 * capacity)
        cache = KvCache(MODEL, kv_format, sizes.pages, sizes.exact, cold_pages=sizes.cold)
        assert 0.95 * free / 2 < held(cache) < 1.02 * free / 2
    assert sizes.pages - SPARE_PAGES == pytest.approx(sizes.cold / 3, abs=2)


def test_a_capacity_that_was_asked_for_stays(monkeypatch):
    config = EngineConfig(Path("model"), kv_format="k8v4", kv_capacity_tokens=64_000, prefill_chunk=64)
    for free, cold in ((10**12, 1000), (10**6, 0)):
        monkeypatch.setattr(profiles, "free_memory", lambda device, free=free: free)
        sizes = kv_sizes(config, MODEL, 128_000, "cpu")
        assert (sizes.pages, sizes.cold, sizes.tokens) == (1000 + SPARE_PAGES, cold, 64_000 + cold * PAGE)
    plain = EngineConfig(Path("model"), kv_format="fp8", kv_capacity_tokens=64_000)
    assert kv_sizes(plain, MODEL, 128_000, "cpu").cold == 0


def test_bytes_of_demoted_pages():
    cache = KvCache(MODEL, "k4v4", 10, 1, cold_pages=10)
    parts = [part for pool in cache.memory.cold for part in pool]
    summaries = sum(part[:, :, :10].nbytes for tensors in cache.memory.summaries.values() for part in tensors)
    assert bytes_per_token(MODEL, "k4v4", demoted=True) == -(-(sum(part.nbytes for part in parts) + summaries) // 640)
    assert bytes_per_token(MODEL, "k4v4", demoted=True) < bytes_per_token(MODEL, "k4v4")
