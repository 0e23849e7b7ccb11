"""The two-pool cache: streaming heads keep a window, answers stay those of heads that read a window of everything."""

import logging
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import Engine, EngineError, SnapshotCheckpoint, profiles
from engine.attention import AttentionPlan
from engine.cache import PAGE, KvCache, Sequence
from engine.decode import decode_token
from engine.kv_memory import EXACT_DTYPES, bytes_per_token
from engine.patterns import AttentionPolicy, PerHead, Sparsity, Streaming
from engine.patterns.policy import RECENT, SINK, streaming_heads
from engine.prefill import prefill_chunk
from engine.two_pools import HeadSplit, TwoPoolCache
from tests.engine.tiny_models import make_model
from tests.engine.tools import Store, error_ratio, random_ids, tiny_engine, turn

FORMATS = ["f32", "bf16", "fp8", "k8v4", "k3v3", "k2v2"]
GATES = ((0.9, 0.1, 0.8, 0.2), (0.1, 0.2, 0.1, 0.0), (0.9, 0.9, 0.8, 0.7))  # mixed, all streaming, none
LOCAL = 256
SPARSE = Sparsity(budget=640, ratio=0.0, reading_budget=640, crossover=0, streaming_ratio=0.5, streaming_local=LOCAL)
HOW = {"mode": "balanced", "reading": "balanced"}
DOCUMENT = 1500


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes engines of one model with blocks of two pages."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    model = make_model("llama", layers=3, hidden_size=128, heads=8, kv_heads=4, max_position=4096)

    def engine(kv_format: str = "f32", **options) -> Engine:
        options = {"sparsity": SPARSE, "gates": GATES, "prefill_chunk": 128} | options
        return tiny_engine(tmp_path / "model", model=model, kv_format=kv_format, **options)

    return engine


def two_pools(engine: Engine) -> TwoPoolCache:
    assert isinstance(engine.cache, TwoPoolCache)
    return engine.cache


def all_free(engine: Engine) -> bool:
    cache = two_pools(engine)
    pools = (cache.exact, cache.packed, cache.cold, cache.window.exact)
    return all(pool.free == pool.size for pool in pools)


@given(length=st.integers(0, 10**6), local=st.integers(RECENT, 20_000))
def test_a_window_keeps_what_the_next_block_reads_and_little_more(length, local):
    split = HeadSplit(torch.tensor([[True, False]]), local)
    gone = split.gone(length)
    assert gone % 128 == 0
    assert gone == 0 or PAGE + gone <= (length - local + 1) // PAGE * PAGE  # the first page in reach
    assert length - gone <= local + PAGE + 128
    assert -(-(length - gone) // PAGE) <= split.window_pages(0)


@pytest.mark.parametrize("streaming", [[[True, True]], [[False, False]]])
def test_both_kinds_of_heads_are_needed(streaming):
    with pytest.raises(ValueError, match="some heads of either kind"):
        HeadSplit(torch.tensor(streaming), 1024)


def test_below_a_quarter_nothing_changes(make):
    few = Sparsity(budget=640, streaming_ratio=0.24)
    assert type(make(sparsity=few).cache) is KvCache
    assert type(make(sparsity=Sparsity(budget=640)).cache) is KvCache
    assert few.local == 8192
    assert Sparsity(streaming_ratio=0.25).local == 1024
    assert make().cache.split.heads(True) == [2, 4, 0]
    with pytest.raises(ValueError, match="streaming_local"):
        Sparsity(streaming_local=100)


def test_memory_for_all_heads_is_not_taken_on_the_way(make, monkeypatch):
    def taken(*arguments, **more):
        raise MemoryError

    monkeypatch.setattr("engine.load.KvCache", taken)
    two_pools(make(decode_weights="f32"))
    with pytest.raises(MemoryError):
        make(sparsity=Sparsity(), gates=None)


class WindowsOverEverything:
    """What the two pools compute, for a cache that keeps all pages of all heads."""

    def __init__(self, policy: AttentionPolicy, streaming: torch.Tensor) -> None:
        self._policy, self._streaming = policy, streaming

    def reading(self, layer):
        return PerHead(self._policy.reading(layer), Streaming(SINK, LOCAL))

    def answering(self, layer, length):
        retrieval = self._policy.answering(layer, length)
        return PerHead(retrieval, Streaming(SINK, LOCAL if retrieval.is_dense(length) else RECENT))

    def selection_position(self, position):
        return position

    def streaming(self, layer):
        return self._streaming[layer]


@pytest.mark.parametrize("budget", [640, 4096])
def test_the_same_attention_as_over_a_cache_that_keeps_everything(make, budget):
    sparsity = Sparsity(
        budget=budget, ratio=0.0, reading_budget=budget, crossover=0, streaming_ratio=0.5, streaming_local=LOCAL
    )
    engine, ids, logits, counts = make(sparsity=sparsity), random_ids(2000), [], []
    compact, streaming = engine.policy("balanced"), streaming_heads(torch.tensor(GATES), 0.5)
    everything = WindowsOverEverything(AttentionPolicy("balanced", sparsity, 3), streaming)
    for cache, policy in ((engine.cache, compact), (KvCache(engine.model, "f32", 40), everything)):
        sequence, plan = Sequence(), AttentionPlan(policy, policy, 1900)
        with torch.inference_mode():
            for first in (*range(0, 1900, 128), 1900):
                part = ids[first : min(first + 128, 1900 if first < 1900 else 1960)]
                cache.prepare(sequence, first + len(part))
                prefill_chunk(engine.decoder, cache, sequence, part, lambda: None, plan)
            cache.prepare(sequence, 2000)
            logits.append(
                torch.stack([decode_token(engine.decoder, cache, sequence, t, lambda: None, plan) for t in ids[1960:]])
            )
        counts.append(plan.counts)
    assert error_ratio(*logits) < 1e-5
    assert counts[0] == counts[1]
    assert counts[0].answering.share < 0.75


def test_within_the_window_it_is_exact_attention(make):
    engine, ids = make(), random_ids(200)
    exact = turn(make(sparsity=Sparsity(), gates=None), ids, tokens=20)
    assert turn(engine, ids, tokens=20, **HOW).ids == exact.ids


@pytest.mark.parametrize("mode", [{"mode": "exact", "reading": "balanced"}, {"mode": "balanced", "reading": "exact"}])
def test_what_reads_everything_is_refused_at_once(make, mode):
    with pytest.raises(EngineError, match="exact reads everything"):
        make().generate(random_ids(20), **mode)


@pytest.fixture(params=FORMATS)
def engines(request, make):
    return [make(request.param) for _ in range(2)]


def left_behind(engine: Engine) -> tuple[Store, list[int]]:
    store, ids = Store(), random_ids(DOCUMENT) + random_ids(30, 1)
    first = turn(engine, ids, conversation="a", checkpoints=[DOCUMENT], save_to=store, tokens=40, **HOW)
    return store, ids + first.ids + random_ids(25, 2)


def test_restored_and_never_left_agree(engines):
    store, prompt = left_behind(engines[0])
    stayed = turn(engines[0], prompt, conversation="a", tokens=40, **HOW)
    restored = turn(engines[1], prompt, conversation="b", snapshots=store, tokens=40, **HOW)
    assert restored.ids == stayed.ids
    assert restored.stats.restored_tokens == stayed.stats.reused_tokens == len(prompt) - 26
    for engine in engines:
        for name in "ab":
            engine.unload(name)
        assert all_free(engine)


def test_another_question_and_an_edit_start_at_the_checkpoint(engines):
    store, _ = left_behind(engines[0])
    for prompt, reused in ((random_ids(DOCUMENT) + random_ids(30, 9), DOCUMENT), (random_ids(700), 0)):
        stayed = turn(engines[0], prompt, conversation="a", tokens=20, **HOW)
        restored = turn(engines[1], prompt, conversation="b", snapshots=store, tokens=20, **HOW)
        assert stayed.stats.reused_tokens == restored.stats.reused_tokens == reused
        assert restored.ids == stayed.ids
    read_again = turn(engines[1], random_ids(DOCUMENT) + random_ids(30, 9), conversation="b", tokens=20, **HOW)
    assert len(read_again.ids) > 0
    for engine in engines:
        for name in "ab":
            engine.unload(name)
        assert all_free(engine)


@pytest.mark.parametrize("kv_format", ["bf16", "k4v4"])
def test_what_was_read_anew_is_not_mixed_with_blocks_of_the_same_tokens(tmp_path, monkeypatch, kv_format):
    """The end of a short prompt reads everything, where a longer one with the same tokens reads less of it."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    model = make_model("llama", layers=4, hidden_size=64, heads=4, kv_heads=2, max_position=4096)
    sparse = replace(SPARSE, budget=384, reading_budget=256)
    options = {"kv_format": kv_format, "sparsity": sparse, "gates": ((0.9, 0.1),) * 4, "prefill_chunk": 256}
    stayed, again = (tiny_engine(tmp_path / "model", model=model, **options) for _ in range(2))
    store, ids = Store(), random_ids(1200)[:600] + random_ids(60, 5)
    turn(stayed, random_ids(1200), conversation="long", checkpoints=[1100], save_to=store, tokens=2, **HOW)
    first = turn(stayed, ids, conversation="short", save_to=store, tokens=2, **HOW)
    assert first.stats.reused_tokens == 0
    prompt = ids + first.ids + random_ids(5, 2)
    live = turn(stayed, prompt, conversation="short", tokens=8, **HOW)
    back = turn(again, prompt, conversation="short", snapshots=store, tokens=8, **HOW)
    assert back.ids == live.ids
    assert back.stats.restored_tokens == live.stats.reused_tokens == len(prompt) - 6
    rows = [list(engine.export("short", engine.live_tokens("short"))) for engine in (stayed, again)]
    assert len(rows[0]) > 3
    assert [(row.key, row.payload) for row in rows[0]] == [(row.key, row.payload) for row in rows[1]]


@pytest.mark.parametrize("kv_format", ["bf16", "k4v4"])
def test_what_follows_a_checkpoint_is_not_mixed_with_blocks_that_another_question_read(
    tmp_path, monkeypatch, kv_format
):
    """A text behind the documents reads everything as part of a short question, and less in front of a long one."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    model = make_model("llama", layers=4, hidden_size=64, heads=4, kv_heads=2, max_position=4096)
    sparse = replace(SPARSE, budget=384, reading_budget=256)
    options = {"kv_format": kv_format, "sparsity": sparse, "gates": ((0.9, 0.1),) * 4, "prefill_chunk": 256}
    stayed, again = (tiny_engine(tmp_path / "model", model=model, **options) for _ in range(2))
    store, shared = Store(), random_ids(1000)
    first = {}
    for name, question in (("short", random_ids(20, 5)), ("long", random_ids(600, 6))):
        prompt = shared + question
        first[name] = turn(stayed, prompt, conversation=name, checkpoints=[600], save_to=store, tokens=2, **HOW)
        first[name].ids[:0] = prompt
    assert first["short"].stats.reused_tokens == 0
    assert first["long"].stats.reused_tokens == 600
    read = {}
    for name, result in first.items():
        prompt = result.ids + random_ids(5, 2)
        live = turn(stayed, prompt, conversation=name, tokens=8, checkpoints=[600], **HOW)
        back = turn(again, prompt, conversation=name, snapshots=store, tokens=8, checkpoints=[600], **HOW)
        assert back.ids == live.ids
        assert back.stats.restored_tokens + back.stats.computed_tokens > 600
        assert back.stats.reused_tokens == live.stats.reused_tokens == len(prompt) - 6
        rows = [list(engine.export(name, engine.live_tokens(name))) for engine in (stayed, again)]
        assert [(row.key, row.payload) for row in rows[0]] == [(row.key, row.payload) for row in rows[1]]
        read[name] = [row.key for row in rows[0] if row.first_token + len(row.token_ids) <= 1000]
    same = [first == second for first, second in zip(read["short"], read["long"], strict=True)]
    assert same == [True] * 4 + [False] * 3  # the block in the middle of which the documents end is each one's own


@pytest.mark.parametrize("restart", [False, True])
def test_a_document_read_with_its_question_is_the_one_that_was_read_before(make, restart):
    """Rows that depend on the same things are one, whether reading began at the checkpoint or went on over it."""
    engine, other, store, ids = make("bf16"), make("bf16"), Store(), random_ids(900)
    turn(engine, ids[:700] + random_ids(9, 3), conversation="a", checkpoints=[300, 700], save_to=store, tokens=1, **HOW)
    if restart:
        engine.unload("a")
    keys = []
    for which, snapshots, reused in ((engine, store if restart else None, 700), (other, None, 0)):
        result = turn(which, ids, conversation="b", checkpoints=[300, 700], snapshots=snapshots, tokens=1, **HOW)
        assert result.stats.reused_tokens == reused
        keys.append([(row.key, row.payload) for row in which.export("b", which.live_tokens("b"))])
    assert keys[0] == keys[1]


def test_a_document_in_memory_is_not_restored_twice(engines):
    store, prompt = left_behind(engines[0])
    other = random_ids(DOCUMENT) + random_ids(5, 77)
    turn(engines[1], other, conversation="other", checkpoints=[DOCUMENT], tokens=4, **HOW)
    live = engines[1].conversations.use("other").live
    restored = turn(engines[1], prompt, conversation="a", snapshots=store, tokens=20, **HOW)
    assert restored.ids == turn(engines[0], prompt, conversation="a", tokens=20, **HOW).ids
    assert restored.stats.reused_tokens == len(prompt) - 26
    assert 0 < restored.stats.restored_tokens < DOCUMENT // 2
    blocks = (DOCUMENT - (128 if engines[1].cache.packs else 0)) // 128 * 2 - 2
    assert engines[1].conversations.use("a").live.table[:blocks] == live.table[:blocks]
    for name in ("a", "other"):
        engines[1].unload(name)
    assert all_free(engines[1])


def test_without_its_checkpoint_a_prefix_is_computed_anew(make, caplog):
    engines = [make("k8v4") for _ in range(2)]
    store, prompt = left_behind(engines[0])
    for row in store.rows.values():
        if isinstance(row, SnapshotCheckpoint):
            store.payloads[row.key] = row.payload[:-1]
    with caplog.at_level(logging.WARNING):
        result = turn(engines[1], prompt, conversation="a", snapshots=store, tokens=10, **HOW)
    assert "streaming heads" in caplog.text
    assert (result.stats.reused_tokens, result.stats.computed_tokens) == (0, len(prompt))
    assert result.ids == turn(make("k8v4"), prompt, conversation="a", tokens=10, **HOW).ids
    engines[1].unload("a")
    assert all_free(engines[1])


def test_conversations_share_what_they_can_and_give_everything_back(make):
    engine = make("k4v4", kv_capacity_tokens=2048)
    cache, answers = two_pools(engine), {}
    for name in "abcab":
        ids = random_ids(1700, ord(name))
        result = turn(engine, ids, conversation=name, checkpoints=[300, 1000, 1600], tokens=8, **HOW)
        assert answers.setdefault(name, result.ids) == result.ids
        live = engine.conversations.use(name).live
        assert cache.is_complete(live)
        assert live.window.length <= LOCAL + PAGE + 128
    for name in "abc":
        engine.unload(name)
    assert all_free(engine)


@pytest.mark.parametrize("kv_format", ["bf16", "k4v4"])
def test_a_failed_restore_leaves_nothing_half_done(make, monkeypatch, kv_format):
    engine, again = (make(kv_format) for _ in range(2))
    store, prompt = left_behind(engine)

    def fail(*arguments):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(TwoPoolCache, "adopt_window", fail)
        with pytest.raises(MemoryError):
            turn(again, prompt, conversation="a", snapshots=store, tokens=10, **HOW)
    assert again.live_tokens("a") == 0
    restored = turn(again, prompt, conversation="a", snapshots=store, tokens=10, **HOW)
    assert restored.stats.restored_tokens == len(prompt) - 26
    again.unload("a")
    assert all_free(again)


@pytest.mark.parametrize("kv_format", ["bf16", "k4v4"])
def test_memory_is_divided_with_the_windows_in_mind(monkeypatch, make, kv_format):
    free = 200 * 2**20
    monkeypatch.setattr(profiles, "free_memory", lambda device: free)
    engine, tokens = make(kv_format, context=4096), []
    for gates in (GATES, None):
        config = replace(engine.config, gates=gates)
        sizes = profiles.kv_sizes(config, engine.model, 10**7, "cpu")
        tokens.append(sizes.tokens)
        pools = (engine.model, kv_format, sizes.pages, sizes.exact, "cpu")
        if gates is None:
            cache = KvCache(*pools, cold_pages=sizes.cold)
            parts = [cache.memory]
        else:
            split = profiles.head_split(config)
            assert split is not None
            cache = TwoPoolCache(*pools, cold_pages=sizes.cold, split=split, window_pages=sizes.window)
            parts = [cache.memory, cache.window.memory]
        held = 0
        for memory in parts:
            packed = [part for pool in (*memory.packed, *memory.cold) for part in pool]
            summaries = [part for tensors in memory.summaries.values() for part in tensors]
            held += sum(tensor.nbytes for tensor in (memory.keys, memory.values, *packed, *summaries))
        assert 0.9 * free / 2 < held < 1.03 * free / 2
    assert tokens[0] > 1.7 * tokens[1]


def test_values_can_be_demoted_here_too(make):
    engine = make("k8v4", kv_capacity_tokens=1024)
    result = turn(engine, random_ids(3000), conversation="a", checkpoints=[2000], tokens=8, **HOW)
    assert result.stats.demoted_pages > 0
    engine.unload("a")
    assert all_free(engine)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_long_sequence_takes_half_of_the_memory(make, kv_format):
    """At 50 % streaming heads, per token: the other half of the format, and windows that do not grow."""
    engine = make(kv_format)
    cache, taken = two_pools(engine), []
    for length in (1700, 3700):
        turn(engine, random_ids(length), conversation="a", tokens=1, **HOW)
        live = engine.conversations.use("a").live
        packed = sum(place < 0 for place in live.table)
        parts = [(cache, packed, True), (cache, len(live.table) - packed, False)]
        parts.append((cache.window, len(live.window.table), False))
        taken.append(
            sum(
                pages * PAGE // store.unit * store.tensor[:, :1].nbytes
                for part, pages, kind in parts
                for store in part.memory.stores
                if store.packed == kind
            )
        )
        engine.unload("a")
    exact = kv_format if kv_format in EXACT_DTYPES else "bf16"
    all_heads = bytes_per_token(engine.model, kv_format)
    edge = 2 * PAGE * bytes_per_token(engine.model, exact) / 2000  # windows and unpacked pages at either length
    assert (taken[1] - taken[0]) / 2000 == pytest.approx(engine.kv_bytes_per_token, abs=edge)
    shares = [sum(not streams for streams in layer) / 4 for layer in streaming_heads(torch.tensor(GATES), 0.5).tolist()]
    assert shares == [0.5, 0.0, 1.0]
    assert 0.45 < engine.kv_bytes_per_token / all_heads < 0.55
