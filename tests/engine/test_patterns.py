"""The pattern language: what each pattern lists, against brute force, and that nothing later ever matters."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.patterns import (
    AccumulatedMass,
    BlockContext,
    CoarseKeys,
    Dense,
    DenseUpTo,
    GlobalTokens,
    MeanStd,
    MinMax,
    Pattern,
    PerHead,
    PerLayer,
    QueryBlocks,
    QuestionTail,
    Sinks,
    SlidingWindow,
    Streaming,
    TopPages,
    Union,
    decode_queries,
    kept_attention,
    sample_queries,
)
from kernels.block_index import PAGE, check_index, to_mask

KV_HEADS, GROUP, D = 2, 3, 16


def random_keys(pages: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(KV_HEADS, pages, PAGE, D, generator=torch.Generator().manual_seed(seed))


def context(
    start: int, end: int, size: int = 64, seed: int = 0, keys: torch.Tensor | None = None, **more
) -> BlockContext:
    """Query blocks of a chunk over random keys, with the summaries of all complete pages."""
    blocks = QueryBlocks.chunk(start, end, size)
    q = torch.randn(end - start, KV_HEADS * GROUP, D, generator=torch.Generator().manual_seed(seed + 1))
    keys = random_keys(end // PAGE, seed) if keys is None else keys
    summaries = {scorer.summary: scorer.summarize(keys) for scorer in (CoarseKeys(), MeanStd(), MinMax(), MeanStd(32))}
    summaries["mass"] = torch.rand(KV_HEADS, end // PAGE, generator=torch.Generator().manual_seed(seed + 2))
    return BlockContext(blocks, KV_HEADS, 2, sample_queries(q, blocks, KV_HEADS), summaries, **more)


def allowed_tokens(pattern: Pattern, query: int, context: BlockContext) -> set[int]:
    """Tokens that a static pattern promises to a query, from its definition."""
    past = range(query + 1)
    match pattern:
        case Dense():
            return set(past)
        case Sinks(tokens):
            return {token for token in past if token < tokens}
        case SlidingWindow(tokens):
            return {token for token in past if token > query - tokens}
        case Streaming(sink, local):
            return {token for token in past if token < sink or token > query - local}
        case GlobalTokens(positions):
            return {token for token in past if token in positions}
        case DenseUpTo() | QuestionTail():
            block = int((context.end > query).nonzero()[0])
            end = int(context.end[block])
            tail = context.length if context.tail is None else context.tail
            dense = end <= pattern.tokens if isinstance(pattern, DenseUpTo) else end > tail
            return set(past) if dense else set()
        case Union(parts):
            return set().union(*(allowed_tokens(part, query, context) for part in parts))
    raise AssertionError(pattern)


STATIC = st.one_of(
    st.just(Dense()),
    st.just(QuestionTail()),
    st.builds(Sinks, st.integers(1, 300)),
    st.builds(SlidingWindow, st.integers(1, 400)),
    st.builds(Streaming, st.integers(0, 200), st.integers(1, 300)),
    st.builds(GlobalTokens, st.lists(st.integers(0, 900), min_size=1, max_size=5).map(tuple)),
    st.builds(DenseUpTo, st.integers(1, 900)),
)
PATTERNS = st.lists(STATIC, min_size=1, max_size=3).map(
    lambda parts: parts[0] if len(parts) == 1 else Union(tuple(parts))
)


@settings(max_examples=60, deadline=None)
@given(PATTERNS, st.integers(0, 700), st.integers(1, 200), st.sampled_from([1, 48, 64, 128]), st.integers(0, 900))
def test_static_patterns_list_exactly_the_pages_of_their_tokens(
    pattern: Pattern, start: int, count: int, size: int, tail: int
) -> None:
    blocks = QueryBlocks.chunk(start, start + count, size)
    seen = BlockContext(blocks, KV_HEADS, tail=tail)
    index = pattern.index(seen)
    last = (blocks.end - 1) // PAGE
    check_index(index, KV_HEADS, blocks.first.shape[0], blocks.pages, last)
    expected = torch.zeros(blocks.first.shape[0], blocks.pages, dtype=torch.bool)
    for block, (first, end) in enumerate(zip(blocks.first.tolist(), blocks.end.tolist())):
        for query in {first, end - 1, *range(first, end, 13)}:
            for token in allowed_tokens(pattern, query, seen) | {query}:
                expected[block, token // PAGE] = True
    listed = to_mask(index, KV_HEADS, blocks.first.shape[0], blocks.pages)
    assert torch.equal(listed, expected.expand(KV_HEADS, -1, -1))


def test_chunks_are_cut_at_absolute_multiples() -> None:
    blocks = QueryBlocks.chunk(100, 300, 64)
    assert blocks.first.tolist() == [100, 128, 192, 256]
    assert blocks.end.tolist() == [128, 192, 256, 300]
    assert blocks.pages == 5
    assert QueryBlocks.decode(64).pages == 2


def test_sampled_queries_are_rows_of_their_own_block_and_include_the_last() -> None:
    blocks = QueryBlocks.chunk(100, 300, 64)
    positions = torch.arange(100.0, 300)[:, None, None].expand(-1, KV_HEADS * GROUP, D)
    heads = torch.arange(KV_HEADS * GROUP)[None, :, None] / 1024
    sampled = sample_queries(positions + heads, blocks, KV_HEADS, rows=16)
    assert sampled.shape == (KV_HEADS, 4, 16 * GROUP, D)
    for head in range(KV_HEADS):
        for block, (first, end) in enumerate(zip(blocks.first.tolist(), blocks.end.tolist())):
            rows = sampled[head, block, :, 0]
            found = rows.floor()
            assert found.min() >= first
            assert found.max() == end - 1
            assert len(set(found.tolist())) == 16
            group = ((rows - found) * 1024).round().unique().tolist()
            assert group == [head * GROUP + part for part in range(GROUP)]


TOP = [
    TopPages(384, sink=64, recent=128),
    TopPages(384, "min_max", sink=64, recent=128),
    TopPages(384, MeanStd(), sink=64, recent=128),
    TopPages(384, MeanStd(32), sink=64, recent=128),
    TopPages(448, AccumulatedMass(), sink=0, recent=1),
]


@pytest.mark.parametrize("pattern", TOP, ids=repr)
def test_top_pages_is_the_sorted_choice(pattern: TopPages) -> None:
    """Of each KV head, or of all together where their scores can be compared."""
    seen = replace(context(1500, 1700), tail=1 << 62)
    summary = seen.summaries[pattern.scorer.summary]
    scores = pattern.scorer.score(seen.queries, summary)
    known, listed = scores.shape[2], pattern.listed(seen)
    causal, forced = seen.blocks.causal, pattern._forced(seen)
    weighed = pattern.scorer.weighed(seen.queries, summary, causal[:, :known], forced[:, :known], pattern.count)
    assert (weighed is not None) == (pattern.scorer.name == "coarse_keys")
    if weighed is None:
        every = torch.arange(known).expand_as(scores)
        groups = [(every[head : head + 1], scores[head : head + 1], [head]) for head in range(KV_HEADS)]
    else:
        groups = [(*weighed, list(range(KV_HEADS)))]
    for pages, judged, heads in groups:
        for block, (first, end) in enumerate(zip(seen.first.tolist(), seen.end.tolist())):
            sure = set(range(-(-pattern.sink // PAGE)))
            sure |= set(range((first - pattern.recent + 1) // PAGE, (end - 1) // PAGE + 1))
            sure |= set(range(known, (end - 1) // PAGE + 1))
            rest = []
            for place, head in enumerate(heads):
                for page, score in zip(pages[place, block].tolist(), judged[place, block].tolist()):
                    if page not in sure and page <= (end - 1) // PAGE:
                        rest.append((-score, head, page))
            wanted = sorted(rest)[: max(0, (pattern.count - len(sure)) * len(heads))]
            expected = {(head, page) for head in heads for page in sure} | {(head, page) for _, head, page in wanted}
            found = {(head, page) for head in heads for page in listed[head, block].nonzero().flatten().tolist()}
            assert found == expected


@pytest.mark.parametrize("pattern", TOP, ids=repr)
def test_at_or_below_the_budget_everything_is_listed(pattern: TopPages) -> None:
    seen = context(pattern.count * PAGE - 150, pattern.count * PAGE)
    assert pattern.is_dense(seen.length)
    assert torch.equal(pattern.listed(seen), Dense().listed(seen))
    longer = context(pattern.count * PAGE - 150, pattern.count * PAGE + 65)
    assert not pattern.is_dense(longer.length)
    below = longer.end <= pattern.count * PAGE  # blocks of a longer chunk that still fit
    assert below.any()
    assert torch.equal(pattern.listed(longer)[:, below], Dense().listed(longer)[:, below])


def test_decode_reads_the_budget_and_no_more() -> None:
    keys = random_keys(40)
    seen = BlockContext(
        QueryBlocks.decode(40 * PAGE + 10),
        KV_HEADS,
        queries=decode_queries(torch.randn(KV_HEADS * GROUP, D), KV_HEADS),
        summaries={CoarseKeys().summary: CoarseKeys().summarize(keys)},
    )
    listed = TopPages(640).listed(seen)
    assert listed.sum(-1).flatten().tolist() == [10] * KV_HEADS
    assert listed[:, 0, 0].all()
    assert listed[:, 0, -5:].all()  # 256 tokens reach into five pages
    assert torch.equal(decode_queries(torch.arange(6.0)[:, None], 2)[:, 0, :, 0], torch.arange(6.0).view(2, 3))


BUILT_IN = [
    Dense(),
    Sinks(100),
    SlidingWindow(200),
    Streaming(64, 128),
    GlobalTokens((5, 700, 1400)),
    DenseUpTo(1000),
    QuestionTail(),
    *TOP,
    TOP[0] | QuestionTail(),
    PerHead(TOP[1], Streaming(64, 128)),
    PerLayer({0: Dense(), 2: TOP[0] | GlobalTokens((700,))}, rest=Sinks(64)),
]


@pytest.mark.parametrize("pattern", BUILT_IN, ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_poisoned_later_keys_change_nothing(pattern: Pattern, seed: int) -> None:
    """Blocks of one chunk, once with the keys behind each block as they are and once with NaN in their place."""
    streaming = torch.tensor([True, False])
    start, end = 1000, 1400
    keys = random_keys(end // PAGE, seed)
    clean = context(start, end, seed=seed, keys=keys, streaming=streaming, tail=1300)
    expected = pattern.listed(clean)
    for block, block_end in enumerate(clean.end.tolist()):
        poisoned = keys.flatten(1, 2).clone()
        poisoned[:, block_end:] = float("nan")
        seen = context(start, end, seed=seed, keys=poisoned.unflatten(1, (-1, PAGE)), streaming=streaming, tail=1300)
        assert torch.equal(pattern.listed(seen)[:, block], expected[:, block])


def test_a_block_lists_the_same_pages_in_any_chunk() -> None:
    """Where a chunk ends, and how much of the prompt was re-used before it, changes no block's pages."""
    keys, pattern = random_keys(1600 // PAGE), TopPages(384, sink=64, recent=128)
    q = torch.randn(1600, KV_HEADS * GROUP, D)
    summary = {CoarseKeys().summary: CoarseKeys().summarize(keys)}

    def listed(start: int, end: int) -> torch.Tensor:
        blocks = QueryBlocks.chunk(start, end, 64)
        cut = {name: tuple(part[:, : end // PAGE] for part in parts) for name, parts in summary.items()}
        return pattern.listed(
            BlockContext(blocks, KV_HEADS, queries=sample_queries(q[start:end], blocks, KV_HEADS), summaries=cut)
        )

    whole = listed(1024, 1600)
    assert torch.equal(listed(1280, 1600), whole[:, 4:])
    assert torch.equal(listed(1024, 1280), whole[:, :4, :20])


def test_union_is_or_and_flat() -> None:
    seen = context(1000, 1200)
    a, b, c = Sinks(64), SlidingWindow(128), TopPages(384, sink=64, recent=128)
    assert torch.equal((a | b | c).listed(seen), a.listed(seen) | b.listed(seen) | c.listed(seen))
    assert (a | b) | c == a | (b | c) == Union((a, b, c))
    assert a | b != b | a
    assert repr(a | b) == "Sinks(tokens=64) | SlidingWindow(tokens=128)"
    assert (Sinks(64) | TopPages(512)).scorers() == (CoarseKeys(),)
    with pytest.raises(TypeError):
        _ = a | 3  # type: ignore[operator]


def test_heads_and_layers_choose_their_own() -> None:
    seen = context(1000, 1200, streaming=torch.tensor([True, False]))
    both = PerHead(Dense(), Streaming(64, 128)).listed(seen)
    assert torch.equal(both[0], Streaming(64, 128).listed(seen)[0])
    assert torch.equal(both[1], Dense().listed(seen)[1])
    nobody = context(1000, 1200)
    assert torch.equal(PerHead(Dense(), Streaming()).listed(nobody), Dense().listed(nobody))
    layers = PerLayer({2: Sinks(64)}, rest=Dense())
    assert torch.equal(layers.listed(seen), Sinks(64).listed(seen))
    assert layers == PerLayer(((2, Sinks(64)),), Dense())
    assert layers.of(0) == Dense()
    assert hash(layers) == hash(PerLayer({2: Sinks(64)}, Dense()))


@pytest.mark.parametrize(
    ("pattern", "until"),
    [
        (Dense(), 10**6),
        (Sinks(64), 64),
        (SlidingWindow(300), 300),
        (Streaming(64, 256), 256),
        (DenseUpTo(500), 500),
        (TopPages(384), 384),
        (Sinks(64) | SlidingWindow(100), 100),
        (PerHead(SlidingWindow(300), Streaming(64, 100)), 100),
        (PerLayer({0: Dense()}, TopPages(384)), 384),
        (QuestionTail(), 0),
        (GlobalTokens((0, 64, 128)), 0),
    ],
    ids=repr,
)
def test_is_dense_is_never_wrong(pattern: Pattern, until: int) -> None:
    assert pattern.is_dense(until) or until == 0
    assert not pattern.is_dense(until + 64) or until == 10**6
    for length in range(1, min(until, 640), 63):
        seen = context(0, length, streaming=torch.tensor([True, False]))
        assert torch.equal(pattern.listed(seen), Dense().listed(seen))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sinks(0), "tokens: got 0, need a whole number of tokens, at least 1"),
        (lambda: Sinks(True), "tokens: got True, need a whole number"),
        (lambda: SlidingWindow(2.5), "tokens: got 2.5, need a whole number"),  # type: ignore[arg-type]
        (lambda: Streaming(-1, 64), "sink: got -1, need"),
        (lambda: Streaming(64, 0), "local: got 0, need"),
        (lambda: GlobalTokens(()), "positions: got (), need one or more positions"),
        (lambda: GlobalTokens((3, -1)), "positions: got (3, -1), need"),
        (lambda: DenseUpTo(0), "tokens: got 0, need"),
        (lambda: TopPages(63), "budget: got 63, need"),
        (lambda: TopPages(300), "budget: got 300, need at least 320: sink and recent tokens are part of it"),
        (
            lambda: TopPages(4096, "mean"),
            "score: got 'mean', need one of coarse_keys, mean_std, min_max, accumulated, or an object",
        ),
        (lambda: TopPages(4096, 7), "score: got 7, need one of coarse_keys, mean_std"),
        (lambda: TopPages(4096, MeanStd), "score: got <class"),
        (lambda: MeanStd(24), "logical: got 24, need a divisor of 64"),
        (lambda: PerHead(Dense(), "streaming"), "streaming: got 'streaming', need a pattern"),  # type: ignore[arg-type]
        (lambda: PerLayer({}, Dense()), "layers: got {}, need a pattern for one or more layers"),
        (lambda: PerLayer({-1: Dense()}, Dense()), "layers: got {-1: Dense()}, need"),
        (lambda: Union(()), "parts: got (), need a tuple of patterns"),
    ],
)
def test_impossible_arguments_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value).startswith(message)


def test_positions_are_sorted_and_without_doubles() -> None:
    assert GlobalTokens((9, 3, 9)) == GlobalTokens((3, 9))
    assert repr(GlobalTokens((9, 3))) == "GlobalTokens(positions=(3, 9))"
    assert repr(TopPages(4096)) == "TopPages(4096, score='coarse_keys', sink=64, recent=256)"
    assert TopPages(4096) == TopPages(4096)
    assert TopPages(4096) != TopPages(4096, "min_max")


def test_keys_tell_patterns_apart_and_stay_as_they_are() -> None:
    keys = [pattern.key for pattern in BUILT_IN]
    assert len(set(keys)) == len(keys)
    assert (
        TopPages(4096) | Sinks(64)
    ).key == "Union@1(parts=[TopPages@2(4096, coarse_keys/16@2, 64, 256), Sinks@1(tokens=64)])"


def test_kept_attention_is_the_share_of_softmax_on_listed_pages() -> None:
    generator = torch.Generator().manual_seed(1)
    keys = torch.randn(KV_HEADS, 300, D, generator=generator)
    q = torch.randn(3, KV_HEADS * GROUP, D, generator=generator)
    kept = kept_attention(Streaming(64, 60), q, keys)
    masses = []
    for row, position in enumerate((297, 298, 299)):
        pages = {0, *range((position - 59) // PAGE, position // PAGE + 1)}
        for head in range(KV_HEADS * GROUP):
            weights = (keys[head // GROUP, : position + 1].double() @ q[row, head].double() * D**-0.5).softmax(0)
            masses.append(sum(float(weights[token]) for token in range(position + 1) if token // PAGE in pages))
    assert kept.mass == pytest.approx(sum(masses) / len(masses), abs=1e-5)
    assert kept.pages == pytest.approx(3 / 5)
    assert str(kept).endswith("of the attention in 60.0% of the pages")
    assert kept_attention(Dense(), q, keys).mass == pytest.approx(1)
