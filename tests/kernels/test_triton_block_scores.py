"""Scores for prefill blocks agree with the reference for any shape, also where pages do not fill a program."""

import pytest
import torch

pytest.importorskip("triton")

from kernels.page_scores import reference
from kernels.page_scores.triton_blocks import largest

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("kind", ["mean_std", "min_max"])
@pytest.mark.parametrize(("group", "d", "pages", "logical"), [(4, 64, 33, 4), (3, 80, 5, 4), (1, 128, 70, 1)])
def test_agrees_with_torch(kind: str, group: int, d: int, pages: int, logical: int, random: torch.Generator) -> None:
    q = torch.randn(2, 3, 16 * group, d, generator=random)
    low, high = (torch.randn(2, pages, logical, d, generator=random).half() for _ in range(2))
    q0, q1 = (q, q.abs()) if kind == "mean_std" else (q.clamp(max=0), q.clamp(min=0))
    expected = reference.largest(q0, q1, low, high)
    got = largest(q.to(DEVICE), low.to(DEVICE), high.to(DEVICE), kind, exact=True).cpu()
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-4)
    rounded = largest(q.to(DEVICE), low.to(DEVICE), high.to(DEVICE), kind).cpu()
    assert (rounded - expected).norm() <= 2e-3 * expected.norm()


def test_what_is_no_number_is_read(random: torch.Generator) -> None:
    q = torch.randn(1, 1, 16, 64, generator=random)
    mean, std = (torch.randn(1, 20, 4, 64, generator=random).half() for _ in range(2))
    mean[0, 7, 2, 5] = float("nan")
    scores = largest(q.to(DEVICE), mean.to(DEVICE), std.to(DEVICE), "mean_std").cpu()
    assert scores[0, 0].isinf().nonzero().flatten().tolist() == [7]
