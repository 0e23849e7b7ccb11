"""From a mode's name to the pattern of each layer: budgets, crossover, first layers, streaming heads, keys."""

import math

import pytest
import torch

from engine.patterns import (
    AttentionPolicy,
    BlockContext,
    CoarseKeys,
    Dense,
    DenseUpTo,
    MinMax,
    Pattern,
    PatternError,
    PerHead,
    QueryBlocks,
    QuestionTail,
    Sinks,
    SlidingWindow,
    Sparsity,
    Streaming,
    TopPages,
    named_pattern,
    register,
    sample_queries,
    streaming_heads,
    tail_start,
    unregister,
)
from kernels.block_index import PAGE

LAYERS, KV_HEADS, D = 4, 2, 16


def policy(mode: str, streaming: torch.Tensor | None = None, **sparsity) -> AttentionPolicy:
    return AttentionPolicy(mode, Sparsity(**sparsity), LAYERS, streaming)


@pytest.mark.parametrize(
    ("mode", "length", "budget"),
    [
        ("balanced", 20_000, 4096),
        ("balanced", 131_072, 4096),
        ("balanced", 262_144, 8192),
        ("balanced", 262_145, 8256),  # whole pages
        ("fast", 131_072, 2048),
        ("fast", 524_288, 8192),
        ("exact", 20_000, 20_000),
    ],
)
def test_decode_budgets_follow_the_context(mode: str, length: int, budget: int) -> None:
    assert policy(mode).budget(length) == budget
    expected = Dense() if mode == "exact" else TopPages(budget, CoarseKeys(), 64, 256)
    assert policy(mode).answering(2, length) == expected


def test_below_the_crossover_and_the_budget_answers_are_dense() -> None:
    balanced = policy("balanced")
    assert balanced.answering(2, 12_287) == Dense()
    assert balanced.answering(2, 12_288) != Dense()
    short = policy("balanced", budget=2048, crossover=0)
    assert short.answering(2, 2048) == Dense()
    assert short.answering(2, 2049) == TopPages(2048, CoarseKeys(), 64, 256)
    assert policy("fast", ratio=0.5).budget(100_000) == 50_048


def test_first_layers_are_dense_up_to_64k_and_read_32k_past_it() -> None:
    fast = policy("fast")
    for layer in (0, 1):
        assert fast.answering(layer, 65_536) == Dense()
        assert fast.answering(layer, 65_537) == TopPages(32_768, CoarseKeys(), 64, 256)
        reading = fast.reading(layer)
        assert reading.is_dense(65_536)
        assert not reading.is_dense(65_537)
    assert fast.answering(0, 1 << 22) == TopPages(65_536, CoarseKeys(), 64, 256)
    assert fast.answering(2, 65_536) == TopPages(2048, CoarseKeys(), 64, 256)


def test_reading_is_dense_up_to_one_and_a_half_budgets_and_at_the_question() -> None:
    def reading(budget: int, local: int) -> Pattern:
        return TopPages(budget, CoarseKeys(), 64, local) | DenseUpTo(budget * 3 // 2) | QuestionTail()

    assert policy("balanced").reading(2) == reading(8192 + 1024, 1024)
    assert policy("fast").reading(2) == reading(4096 + 1024, 1024)
    assert policy("exact").reading(2) == Dense()
    assert [policy(mode).dense_until for mode in ("exact", "balanced", "fast")] == [math.inf, 13824, 7680]
    assert policy("balanced", reading_budget=2048).reading(3) == reading(2048, 512)
    assert policy("balanced", budget=512).dense_until == 3072


def test_what_reading_lists_in_numbers() -> None:
    """A chunk past the budget: every block reads the budget, which KV heads share, the question's blocks everything."""
    blocks, balanced = QueryBlocks.chunk(6144, 6656, 64), policy("balanced", reading_budget=2048)
    keys = torch.randn(KV_HEADS, 104, PAGE, D)
    seen = BlockContext(
        blocks,
        KV_HEADS,
        2,
        sample_queries(torch.randn(512, 6, D), blocks, KV_HEADS),
        {scorer.summary: scorer.summarize(keys) for scorer in balanced.reading_scorers},
        tail=tail_start(6656, documents_end=6550),
    )
    counts = balanced.reading(2).listed(seen).sum(-1)
    assert counts.sum(0).tolist() == [32 * KV_HEADS] * 6 + [103 * KV_HEADS, 104 * KV_HEADS]
    assert counts[:, 6:].tolist() == [[103, 104]] * KV_HEADS
    assert balanced.reading(0).listed(seen).sum(-1)[0].tolist() == list(range(97, 105))


def test_a_tail_is_the_question_but_at_most_512_tokens() -> None:
    assert tail_start(10_000, documents_end=9_900) == 9_900
    assert tail_start(10_000, documents_end=100) == 9_488
    assert tail_start(10_000) == 9_488
    assert tail_start(100) == 0


def test_positions_past_64k_share_the_list_of_every_fourth() -> None:
    balanced = policy("balanced")
    assert [balanced.selection_position(at) for at in (0, 5, 65_535)] == [0, 5, 65_535]
    assert [balanced.selection_position(65_536 + at) - 65_536 for at in range(9)] == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    none = policy("fast", reuse_interval=1)
    assert [none.selection_position(at) for at in (70_001, 300_001)] == [70_001, 300_001]
    at = balanced.selection_position(70_003)
    assert at // PAGE == 70_003 // PAGE  # sharers lie in one KV page, which each of them lists as its own


def test_positions_past_256k_share_the_list_of_every_eighth() -> None:
    balanced, start = policy("balanced"), 262_144
    assert [balanced.selection_position(start + at) - start for at in range(-5, 17)] == [
        *(-8, -4, -4, -4, -4), *[0] * 8, *[8] * 8, 16,
    ]  # fmt: skip
    widest = policy("fast", reuse_interval=64)
    assert [widest.sharing(at) for at in (0, 70_000, start)] == [1, 64, 64]  # never more than a KV page


STREAMING = torch.tensor([[False, False], [True, False], [True, True], [False, True]])


def test_streaming_heads_read_sink_and_local() -> None:
    balanced = policy("balanced", STREAMING)
    retrieval = TopPages(9216, CoarseKeys(), 64, 1024) | DenseUpTo(13824) | QuestionTail()
    assert balanced.reading(2) == PerHead(retrieval, Streaming(64, 8192))
    assert balanced.answering(2, 20_000) == PerHead(TopPages(4096, CoarseKeys(), 64, 256), Streaming(64, 256))
    assert balanced.answering(2, 10_000) == Dense()
    assert torch.equal(balanced.streaming(1), STREAMING[1])  # type: ignore[arg-type]
    assert balanced.dense_until == 8192
    assert policy("exact", STREAMING).streaming(1) is None
    assert policy("balanced", torch.zeros(4, 2, dtype=torch.bool)).reading(2) == policy("balanced").reading(2)


def test_gates_decide_who_streams() -> None:
    gates = torch.tensor([[0.9, 0.1], [0.5, 0.49], [1.0, 0.1]])
    assert streaming_heads(gates).tolist() == [[False, True], [False, True], [False, True]]
    assert streaming_heads(gates, 0.5).tolist() == [[False, True], [False, True], [False, True]]
    assert streaming_heads(gates, 1 / 6).tolist() == [[False, True], [False, False], [False, False]]
    assert streaming_heads(gates, 0).sum() == 0
    assert streaming_heads(gates, 1).all()


def test_the_key_changes_with_what_reading_computes_and_with_nothing_else() -> None:
    same = [
        policy("balanced"),
        policy("balanced", crossover=0, ratio=0.5, reuse_interval=8),  # these are about answering
        policy("balanced", budget=4096),
        policy("fast", reading_budget=9216),
    ]
    assert len({each.key for each in same}) == 1
    different = [
        *same[:1],
        policy("exact"),
        policy("fast"),
        policy("balanced", reading_budget=8192),
        policy("balanced", score="min_max"),
        policy("balanced", logical_pages=32),
        policy("balanced", STREAMING),
        policy("balanced", ~STREAMING),
    ]
    assert len({each.key for each in different}) == len(different)
    assert policy("exact", STREAMING, budget=999).key == "dense"


def test_scorers_are_those_whose_summaries_are_needed() -> None:
    assert policy("exact").reading_scorers == policy("exact").answering_scorers == ()
    assert policy("balanced").reading_scorers == policy("balanced").answering_scorers == (CoarseKeys(),)
    assert policy("fast", score="min_max", logical_pages=32).answering_scorers == (MinMax(32),)


def test_a_named_pattern_is_used_as_it_is() -> None:
    register("window", Sinks(64) | SlidingWindow(512))
    try:
        window = policy("window", STREAMING)
        assert window.answering(0, 100) == window.answering(3, 10**6) == named_pattern("window")
        assert window.reading(3) == named_pattern("window") | QuestionTail()
        assert window.dense_until == 512
        assert window.key != policy("balanced").key
        assert window.answering_scorers == ()
        assert torch.equal(window.streaming(2), STREAMING[2])  # type: ignore[arg-type]
    finally:
        unregister("window")
    with pytest.raises(PatternError, match="no attention pattern or mode has this name"):
        policy("window")
    with pytest.raises(PatternError, match=r"Did you mean balanced\?"):
        policy("balanecd")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 319}, "budget: got 319, need a whole number of tokens, at least 320"),
        ({"budget": 4096.0}, "budget: got 4096.0, need"),
        ({"reading_budget": 100}, "reading_budget: got 100, need"),
        ({"ratio": 1.5}, "ratio: got 1.5, need a share from 0 to 1 or None"),
        ({"ratio": math.nan}, "ratio: got nan, need"),
        ({"streaming_ratio": -0.1}, "streaming_ratio: got -0.1, need"),
        ({"crossover": -1}, "crossover: got -1, need"),
        ({"reuse_interval": 3}, "reuse_interval: got 3, need a divisor of 64"),
        ({"logical_pages": 24}, "logical_pages: got 24, need a divisor of 64"),
        ({"score": "mean"}, "score: got 'mean', need one of coarse_keys, mean_std, min_max, accumulated"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Sparsity(**arguments)
    assert str(caught.value).startswith(message)


def test_streaming_must_fit_the_layers() -> None:
    with pytest.raises(ValueError, match=r"^streaming: got \[4, 2\], need bool \[3 layers, kv_heads\]"):
        AttentionPolicy("balanced", Sparsity(), 3, STREAMING)
