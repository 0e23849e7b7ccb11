"""KV heads of a layer share their budgets in a prompt: a page goes to the head that would look at it most."""

from dataclasses import replace

import pytest
import torch

from engine.patterns import BlockContext, PerHead, QueryBlocks, Streaming, TopPages, decode_queries, sample_queries
from engine.patterns.scorer import CoarseKeys
from kernels.kv_codec import coarse_keys
from kernels.kv_codec.coarse import coarse_codes

HEADS, GROUP, D, PAGES = 3, 2, 64, 24
START = PAGES * 64


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def context(random: torch.Generator, settled: bool = False) -> BlockContext:
    """One chunk of two blocks behind 24 pages. `settled`: all queries of head 0 look at its pages 3 and 9."""
    blocks = QueryBlocks.chunk(START, START + 256, 128)
    q = torch.randn(256, HEADS * GROUP, D, generator=random)
    keys = torch.randn(HEADS, PAGES, 64, D, generator=random)
    if settled:
        q[:, :GROUP] = 0.1 * q[:, :GROUP] + 2
        keys[0, [3, 9]] += 2
    return BlockContext(
        blocks, HEADS, 5, sample_queries(q, blocks, HEADS), {"coarse_keys": coarse_keys(keys)}, tail=1 << 62
    )


def test_the_budget_holds_for_all_heads_together(random: torch.Generator) -> None:
    pattern = TopPages(10 * 64, sink=64, recent=64)
    listed = pattern.listed(context(random))
    assert (listed.sum((0, 2)) == 10 * HEADS).all()
    assert listed[..., 0].all()  # the sink
    assert listed.sum(2).unique().shape[0] > 1  # not the same for each head


def test_shares_are_those_of_a_softmax_over_all_pages(random: torch.Generator) -> None:
    """Against plain torch, where every page is weighed."""
    found = context(random)
    queries, (codes, scale, minimum) = found.queries, found.summaries["coarse_keys"]
    assert queries is not None
    allowed = torch.ones(2, PAGES, dtype=torch.bool)
    none = torch.zeros_like(allowed)
    weighed = CoarseKeys().weighed(queries, (codes, scale, minimum), allowed, none, PAGES)
    assert weighed is not None
    pages, shares = weighed
    assert torch.equal(pages, torch.arange(PAGES).expand_as(pages))
    keys = coarse_codes(codes) * scale[:, :, None].float() + minimum[:, :, None].float()
    logits = torch.einsum("hbrd,hptd->hbrpt", queries, keys) * D**-0.5
    weights = logits.flatten(3).softmax(3).unflatten(3, (PAGES, 64)).sum(4)
    assert torch.allclose(shares.exp(), weights.amax(2), atol=1e-5)


def test_a_head_that_looks_at_few_pages_leaves_its_budget_to_the_others(random: torch.Generator) -> None:
    listed = TopPages(10 * 64, sink=64, recent=64).listed(context(random, settled=True))
    assert listed[0, :, [3, 9]].all()
    counts = listed.sum(2)
    assert (counts[0] < 10).all()
    assert (counts[1] > 10).all()
    assert (counts[2] > 10).all()


def test_pages_behind_a_block_have_no_influence(random: torch.Generator) -> None:
    """The first of four blocks chooses the same, whatever later pages hold."""
    blocks = QueryBlocks.chunk(12 * 64, 20 * 64, 128)
    q = torch.randn(512, HEADS * GROUP, D, generator=random)
    keys = torch.randn(HEADS, 20, 64, D, generator=random)
    pattern, chosen = TopPages(6 * 64, sink=64, recent=64), []
    for factor in (1.0, 100.0):
        keys[:, 14:] *= factor
        summaries = {"coarse_keys": coarse_keys(keys)}
        chosen.append(
            pattern.listed(BlockContext(blocks, HEADS, 5, sample_queries(q, blocks, HEADS), summaries, tail=1 << 62))
        )
    assert torch.equal(chosen[0][:, 0, :14], chosen[1][:, 0, :14])
    assert not chosen[1][:, 0, 14:].any()


def test_what_cannot_be_judged_is_read(random: torch.Generator) -> None:
    found = context(random)
    found.summaries["coarse_keys"][1][1, 7, 3] = float("nan")
    listed = TopPages(10 * 64, sink=64, recent=64).listed(found)
    assert listed[1, :, 7].all()
    assert (listed.sum((0, 2)) == 10 * HEADS).all()


def test_heads_that_stream_take_no_part(random: torch.Generator) -> None:
    """The one head whose choice is used gets its own budget, however much the others would take."""
    pattern = PerHead(TopPages(10 * 64, sink=64, recent=64), Streaming(64, 256))
    for settled in (False, True):
        found = replace(context(random, settled), streaming=torch.tensor([True, True, False]))
        listed = pattern.listed(found)
        assert (listed[2].sum(1) == 10).all()
        assert torch.equal(listed[:2], Streaming(64, 256).listed(found)[:2])


def test_a_decode_step_of_many_query_heads_gives_each_kv_head_its_budget(random: torch.Generator) -> None:
    q, keys = torch.randn(16 * HEADS, D, generator=random), torch.randn(HEADS, PAGES, 64, D, generator=random)
    step = BlockContext(
        QueryBlocks.decode(START + 5), HEADS, 5, decode_queries(q, HEADS), {"coarse_keys": coarse_keys(keys)}
    )
    assert (TopPages(10 * 64, sink=64, recent=64).listed(step).sum(2) == 10).all()
