"""The weight that rows of a prefill block give to listed pages agrees with the reference, whatever the shape."""

import pytest
import torch

pytest.importorskip("triton")

from kernels.kv_codec import coarse_keys
from kernels.page_scores import reference
from kernels.page_scores.triton_coarse_blocks import listed_logs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def listed(heads: int, blocks: int, pages: int, count: int, random: torch.Generator) -> torch.Tensor:
    return torch.rand(heads, blocks, pages, generator=random).topk(count).indices


@pytest.mark.parametrize(
    ("group", "positions", "d", "pages", "count"),
    [(3, 16, 64, 21, 17), (4, 16, 128, 9, 9), (1, 5, 80, 6, 1), (7, 4, 96, 5, 3), (2, 16, 256, 3, 2)],
)
def test_agrees_with_torch(group: int, positions: int, d: int, pages: int, count: int, random: torch.Generator) -> None:
    q = 3 * torch.randn(2, 2, positions * group, d, generator=random)
    summary = coarse_keys(torch.randn(2, pages, 64, d, generator=random) + 5 * torch.randn(d, generator=random))
    which = listed(2, 2, pages, count, random)
    expected = reference.coarse_logs(q, *summary, which, d**-0.5)
    got = listed_logs(q.to(DEVICE), *(x.to(DEVICE) for x in summary), which.to(DEVICE), d**-0.5).cpu()
    assert got.shape == (2, 2, count, positions * group)
    # What all pages of a row have in common says nothing about which to choose.
    apart = (got - got.mean(2, keepdim=True)) - (expected - expected.mean(2, keepdim=True))
    assert apart.abs().max() < 2e-2
    assert (got - expected).norm() <= 2e-3 * expected.norm()


def test_the_largest_over_rows_is_the_score(random: torch.Generator) -> None:
    q, summary = torch.randn(1, 2, 16, 64, generator=random), coarse_keys(torch.randn(1, 7, 64, 64, generator=random))
    every = torch.arange(7).expand(1, 2, 7)
    logs = listed_logs(q.to(DEVICE), *(x.to(DEVICE) for x in summary), every.to(DEVICE), 0.125).cpu()
    assert torch.allclose(logs.amax(3), reference.coarse_scores(q, *summary, 0.125), atol=1e-2)


def test_what_is_no_number_stays_where_it_is(random: torch.Generator) -> None:
    q, summary = torch.randn(1, 1, 16, 64, generator=random), coarse_keys(torch.randn(1, 4, 64, 64, generator=random))
    summary[1][0, 2, 9] = float("nan")
    every = torch.arange(4).expand(1, 1, 4)
    logs = listed_logs(q.to(DEVICE), *(x.to(DEVICE) for x in summary), every.to(DEVICE), 0.125).cpu()
    assert logs.isnan().all(3)[0, 0].tolist() == [False, False, True, False]
    assert not logs[0, 0, [0, 1, 3]].isnan().any()
