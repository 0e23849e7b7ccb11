"""Sparse reading and answering in the engine, beside dense ones: equal where they must be, sparse where they say so."""

from dataclasses import replace

import pytest
import torch

from engine import Engine, Sampling
from engine.attention import EXACT, AttentionPlan
from engine.cache import PREFILL, KvCache, Sequence
from engine.patterns import (
    AttentionPolicy,
    PatternError,
    Sinks,
    SlidingWindow,
    Sparsity,
    TopPages,
    register,
    unregister,
)
from engine.prefill import prefill_chunk
from tests.engine.tiny_models import make_model
from tests.engine.tools import Store, error_ratio, random_ids, tiny_engine, turn

SPARSE = Sparsity(budget=640, ratio=0.0, reading_budget=640, crossover=0)


def four_layers(folder, **options) -> Engine:
    model = make_model("llama", layers=4, max_position=4096)
    return tiny_engine(folder, model=model, **({"sparsity": SPARSE, "prefill_chunk": 256} | options))


@pytest.fixture
def engine(tmp_path):
    return four_layers(tmp_path)


@pytest.fixture
def everything():
    """A pattern that selects, with a budget that nothing exceeds."""
    register("everything", TopPages(1 << 20))
    yield "everything"
    unregister("everything")


def logits_of(engine: Engine, ids: list[int], reading: AttentionPolicy, answering: AttentionPolicy, decoded: int = 5):
    """Logits [decoded, vocab] after reading all but the last `decoded` tokens."""
    from engine.decode import decode_token

    cache, sequence = KvCache(engine.model, engine.kv_format, 80, 80), Sequence()
    plan = AttentionPlan(reading, answering, len(ids) - decoded - 100)
    cache.prepare(sequence, len(ids))
    with torch.inference_mode():
        for first in range(0, len(ids) - decoded, 256):
            part = ids[first : min(first + 256, len(ids) - decoded)]
            prefill_chunk(engine.decoder, cache, sequence, part, lambda: None, plan)
        rows = [decode_token(engine.decoder, cache, sequence, token, lambda: None, plan) for token in ids[-decoded:]]
    return torch.stack(rows), plan.counts


@pytest.mark.parametrize("kv_format", ["f32", "bf16", "k8v4", "k3v3"])
def test_below_the_budget_sparse_is_dense_to_the_bit(tmp_path, everything, kv_format):
    engine, ids = four_layers(tmp_path, kv_format=kv_format), random_ids(1500)
    dense, _ = logits_of(engine, ids, EXACT, EXACT)
    within, counts = logits_of(engine, ids, EXACT, AttentionPolicy(everything))
    assert torch.equal(within, dense)
    assert counts.answering.share == 1.0


def test_sparse_reading_with_everything_listed_is_dense_to_rounding(engine, everything, monkeypatch):
    ids = random_ids(1500)
    dense, _ = logits_of(engine, ids, EXACT, EXACT)
    monkeypatch.setattr(TopPages, "is_dense", lambda self, length: False)
    policy = AttentionPolicy(everything)
    assert not policy.reading(3).is_dense(2000)
    within, counts = logits_of(engine, ids, policy, EXACT)
    assert counts.reading.share == 1.0
    assert error_ratio(within, dense) < 1e-5


@pytest.mark.parametrize("kv_format", ["f32", "k4v4"])
def test_sparse_reads_less_and_says_so(tmp_path, kv_format):
    engine, ids = four_layers(tmp_path, kv_format=kv_format), random_ids(3000)
    result = turn(engine, ids, conversation="a", tokens=8, mode="balanced", reading="balanced")
    assert 0.15 < result.stats.selected_pages_read_share < 0.25  # 10 pages of 47
    assert result.stats.kv_pages_read_share == pytest.approx(0.5 + result.stats.selected_pages_read_share / 2)
    # The prompt: two layers dense, one not, and the last needs no attention there.
    assert 0.5 < 3 * result.stats.prompt_pages_read_share - 2 < 0.75
    dense = turn(engine, ids, conversation="b", tokens=8)
    assert dense.stats.reused_tokens == 0  # its pages were read in another way
    assert dense.stats.kv_pages_read_share == dense.stats.prompt_pages_read_share == 1.0


def test_sparse_reading_is_what_a_masked_model_computes(tmp_path):
    """Against plain attention in float64 with everything but the listed pages masked, for one layer."""
    from engine.attention import PrefillAttention

    engine = four_layers(tmp_path)
    heads, group, d, length, chunk = 2, 2, engine.model.head_dim, 1500, 300
    assert engine.model.kv_heads == heads
    generator = torch.Generator().manual_seed(0)
    cache, sequence = KvCache(engine.model, "f32", 40), Sequence()
    cache.prepare(sequence, length)
    k, v = (torch.randn(length, heads, d, generator=generator) for _ in range(2))
    q = torch.randn(chunk, heads * group, d, generator=generator)
    start = length - chunk
    for layer in range(4):
        cache.memory.write(layer, cache.new_slots(sequence, length)[:1], k, v)
    cache.commit(sequence, random_ids(start), PREFILL)
    policy = AttentionPolicy("balanced", SPARSE, 4)
    plan = AttentionPlan(policy, EXACT, length - 40)
    attention = PrefillAttention(cache, sequence, chunk, torch.float32, lambda: None, plan)
    attention.append(3, k[start:], v[start:])
    got = attention.attend(3, q)

    mask = policy.reading(3).listed(attention._context(3, policy.reading(3), q))  # [kv_heads, blocks, pages]
    assert 0.3 < float(mask.float().mean()) < 0.9
    block = torch.tensor(
        [next(i for i, (a, b) in enumerate(attention._edges) if a <= t < b) for t in range(start, length)]
    )
    allowed = mask[:, block].repeat_interleave(64, -1)[..., :length]  # [kv_heads, t, n]
    allowed &= torch.arange(length) <= torch.arange(start, length)[:, None]
    scores = torch.einsum("thgd,nhd->htgn", q.double().unflatten(1, (heads, group)), k.double()) * d**-0.5
    weights = scores.masked_fill(~allowed[:, :, None], -torch.inf).softmax(-1)
    expected = torch.einsum("htgn,nhd->thgd", weights, v.double()).flatten(1, 2)
    assert error_ratio(got, expected) < 1e-6


def test_answers_do_not_depend_on_what_was_in_memory(tmp_path):
    """Sparse reading together with re-use: never left, restored, and read again from nothing."""
    engines = [four_layers(tmp_path) for _ in range(3)]
    store, ids = Store(), random_ids(2000)
    how = {"mode": "fast", "reading": "fast", "tokens": 12}
    first = turn(engines[0], ids, conversation="a", checkpoints=[1900], save_to=store, **how)
    follow = ids + first.ids + random_ids(20, 5)
    stayed = turn(engines[0], follow, conversation="a", **how)
    restored = turn(engines[1], follow, conversation="b", snapshots=store, **how)
    assert stayed.stats.reused_tokens == restored.stats.restored_tokens > 1900
    assert restored.ids == stayed.ids
    exact = turn(engines[2], follow, conversation="c", snapshots=store, tokens=4)
    assert exact.stats.restored_tokens <= engines[2].policy("fast").dense_until  # only what was read as exact would


def test_what_every_policy_reads_alike_is_shared(tmp_path):
    """The first tokens are dense under each policy: their KV serves all of them, from memory and from disk."""
    options = {"sparsity": Sparsity(budget=640, reading_budget=1024, crossover=0), "prefill_chunk": 128}
    engines = [four_layers(tmp_path, **options) for _ in range(2)]
    for engine in engines:
        engine.blocks = type(engine.blocks)(2, False)
    alike = engines[0].policy("balanced").dense_until
    assert alike == 1536
    store, ids = Store(), random_ids(2100)
    turn(engines[0], ids, conversation="a", reading="balanced", save_to=store, tokens=2)
    for engine, snapshots in ((engines[0], None), (engines[1], store)):
        exact = turn(engine, ids[:1900] + random_ids(50, 7), conversation="b", snapshots=snapshots, tokens=2)
        assert exact.stats.reused_tokens == 1536


def test_a_named_pattern_answers(engine):
    register("window", Sinks(64) | SlidingWindow(128))
    try:
        result = turn(engine, random_ids(2000), tokens=4, mode="window")
        assert 0.05 < result.stats.kv_pages_read_share < 0.15
    finally:
        unregister("window")


def test_a_scorer_whose_summaries_are_not_kept_is_named(engine):
    register("bounded", TopPages(640, score="min_max"))
    try:
        with pytest.raises(PatternError, match="min_max"):
            turn(engine, random_ids(2000), tokens=2, mode="bounded")
    finally:
        unregister("bounded")


@pytest.mark.parametrize("score", ["min_max", "accumulated"])
def test_other_scorers_are_kept_when_asked_for(tmp_path, score):
    engine = four_layers(tmp_path, scorers=(score,))
    register("other", TopPages(640, score=score))
    try:
        result = turn(engine, random_ids(2000), tokens=6, mode="other")
        assert result.stats.kv_pages_read_share < 0.4
        if score == "accumulated":
            assert engine.cache.memory.summaries["mass"][0].sum() > 0
    finally:
        unregister("other")


def test_scores_are_the_models_own(engine):
    ids = random_ids(700)
    answer = turn(engine, ids, conversation="a", tokens=10).ids
    score = engine.score(ids, answer, conversation="a")
    assert (score.tokens, score.greedy_matches) == (len(answer), len(answer))
    logits, _ = logits_of(engine, ids + answer, EXACT, EXACT, decoded=len(answer) + 1)
    expected = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(answer), reduction="sum")
    assert score.nll_sum == pytest.approx(float(expected), rel=1e-3)
    other = engine.score(ids, random_ids(10, 3), conversation="a", mode="fast")
    assert other.nll_sum > score.nll_sum
    with pytest.raises(ValueError, match="continuation"):
        engine.score(ids, [])


def test_sampling_goes_on_after_scoring(engine):
    ids = random_ids(300)
    before = turn(engine, ids, conversation="a", tokens=6).ids
    engine.score(ids, random_ids(5, 1), conversation="a")
    assert turn(engine, ids, conversation="a", sampling=Sampling(max_tokens=6)).ids == before


def test_what_sparse_decode_made_is_told_apart(tmp_path):
    """In memory it is counted; on disk its blocks have keys of their own."""
    engines = [four_layers(tmp_path) for _ in range(2)]
    for engine in engines:
        engine.blocks = type(engine.blocks)(2, False)
    store, ids = Store(), random_ids(1900)
    first = turn(engines[0], ids, conversation="a", mode="balanced", tokens=150, save_to=store)
    follow = ids + first.ids + random_ids(20, 5)
    stayed = turn(engines[0], follow, conversation="a", tokens=4)
    restored = turn(engines[1], follow, conversation="b", snapshots=store, tokens=4)
    made = len(first.ids) - 1 + 1  # the last token of the prompt is decoded too, the last of the answer is not
    assert stayed.stats.sparse_tokens == restored.stats.sparse_tokens == made
    assert restored.ids == stayed.ids
    exact = turn(engines[0], ids, conversation="c", tokens=150)
    assert exact.stats.sparse_tokens == 0
    keys = {row.key for row in engines[0].export("c", engines[0].live_tokens("c"))}
    prompt_blocks = len(ids) // 128
    assert len(keys & store.rows.keys()) == prompt_blocks


def test_a_list_is_shared_only_from_the_position_where_all_make_it(tmp_path, monkeypatch):
    """Past the sharing length a turn that begins between two makers selects for itself until the next one."""
    monkeypatch.setattr("engine.attention.SHARED_FROM", 0)
    monkeypatch.setattr("engine.patterns.policy.SHARED_FROM", 0)
    engine, ids = four_layers(tmp_path), random_ids(2012)
    shared, alone = (AttentionPolicy("balanced", replace(SPARSE, reuse_interval=n), 4) for n in (4, 1))
    between = [logits_of(engine, ids[:2008], EXACT, policy, decoded=2)[0] for policy in (shared, alone)]
    assert torch.equal(*between)  # 2006 and 2007; the maker, 2004, was read
    across = [logits_of(engine, ids, EXACT, policy, decoded=6)[0] for policy in (shared, alone)]
    assert torch.equal(across[0][:3], across[1][:3])  # 2006, 2007 and the maker 2008
    assert not torch.equal(across[0][3:], across[1][3:])
