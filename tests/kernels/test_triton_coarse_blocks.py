"""Shares of attention that rows of a prefill block give to listed pages agree with the reference, in any shape."""

import pytest
import torch

pytest.importorskip("triton")

from kernels.kv_codec import coarse_keys
from kernels.page_scores import reference
from kernels.page_scores.triton_coarse_blocks import coarse_shares

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Summary = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def listed(heads: int, blocks: int, pages: int, count: int, random: torch.Generator) -> torch.Tensor:
    return torch.rand(heads, blocks, pages, generator=random).topk(count).indices


def on_device(
    q: torch.Tensor, summary: Summary, pages: torch.Tensor, allowed: torch.Tensor, factor: float
) -> torch.Tensor:
    parts = (x.to(DEVICE) for x in (q, *summary, pages, allowed))
    return coarse_shares(*parts, factor).cpu()


@pytest.mark.parametrize(
    ("group", "positions", "d", "pages", "count"),
    [(3, 16, 64, 41, 37), (4, 16, 128, 9, 9), (1, 5, 80, 6, 1), (7, 4, 96, 5, 3), (2, 16, 256, 3, 2)],
)
def test_agrees_with_torch(group: int, positions: int, d: int, pages: int, count: int, random: torch.Generator) -> None:
    q = torch.randn(2, 2, positions * group, d, generator=random)
    summary = coarse_keys(torch.randn(2, pages, 64, d, generator=random) + 2 * torch.randn(d, generator=random))
    which, allowed = listed(2, 2, pages, count, random), torch.rand(2, pages, generator=random) < 0.8
    expected = reference.coarse_shares(q, *summary, which, allowed, d**-0.5)
    got = on_device(q, summary, which, allowed, d**-0.5)
    assert torch.equal(got.isinf(), expected.isinf())
    finite = expected.isfinite()
    assert finite.any()
    assert (got - expected)[finite].abs().max() < 1e-2
    assert (got.exp().sum() - expected.exp().sum()).abs() <= 2e-3 * expected.exp().sum()


def test_one_row_shares_out_all_of_its_attention(random: torch.Generator) -> None:
    q, summary = torch.randn(1, 1, 1, 64, generator=random), coarse_keys(torch.randn(1, 70, 64, 64, generator=random))
    every, allowed = torch.arange(70).expand(1, 1, 70), torch.ones(1, 70, dtype=torch.bool)
    shares = on_device(q, summary, every, allowed, 0.125).exp()
    assert float(shares.sum()) == pytest.approx(1, abs=1e-3)
    scores = reference.coarse_scores(q, *summary, 0.125)
    assert torch.allclose(shares, scores.softmax(2), atol=1e-3)


def test_what_is_no_number_gets_infinity_and_takes_nothing(random: torch.Generator) -> None:
    q, summary = torch.randn(1, 1, 16, 64, generator=random), coarse_keys(torch.randn(1, 4, 64, 64, generator=random))
    every, allowed = torch.arange(4).expand(1, 1, 4), torch.ones(1, 4, dtype=torch.bool)
    without = allowed.clone()
    without[0, 2] = False
    expected = on_device(q, summary, every, without, 0.125)
    summary[1][0, 2, 9] = float("nan")
    for compute in (on_device, lambda q, summary, *rest: reference.coarse_shares(q, *summary, *rest)):
        shares = compute(q, summary, every, allowed, 0.125)
        assert shares[0, 0, 2] == float("inf")
        assert torch.allclose(shares[0, 0, [0, 1, 3]], expected[0, 0, [0, 1, 3]], atol=1e-2)
        assert compute(q, summary, every, without, 0.125)[0, 0, 2] == float("-inf")


def test_a_block_that_sees_nothing_chooses_nothing(random: torch.Generator) -> None:
    q, summary = torch.randn(1, 1, 16, 64, generator=random), coarse_keys(torch.randn(1, 3, 64, 64, generator=random))
    every, none = torch.arange(3).expand(1, 1, 3), torch.zeros(1, 3, dtype=torch.bool)
    assert (on_device(q, summary, every, none, 0.125) == float("-inf")).all()
    assert (reference.coarse_shares(q, *summary, every, none, 0.125) == float("-inf")).all()
