"""The likeliest token, in Triton. Without a card it runs under Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from kernels.sample.triton import copy_and_choose

device = "cuda" if torch.cuda.is_available() else "cpu"


def chosen(values: torch.Tensor) -> int:
    logits, choice = torch.full(values.shape, torch.nan, device=device), torch.full((1,), -7, device=device)
    copy_and_choose(values.to(device), logits, choice)
    assert torch.equal(logits.cpu().nan_to_num(7.0), values.float().nan_to_num(7.0))
    return int(choice)


@pytest.mark.parametrize("vocab", [1, 7, 1024, 1025, 49152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_first_of_the_largest(vocab: int, dtype: torch.dtype, random: torch.Generator) -> None:
    values = torch.randn(vocab, generator=random).to(dtype)
    best = values.float().max()
    assert chosen(values) == int((values.float() == best).nonzero()[0])
    values[[vocab // 3, vocab - 1]] = 50.0
    assert chosen(values) == vocab // 3


def test_nan_and_infinities() -> None:
    values = torch.full((3000,), -torch.inf)
    values[2000] = torch.nan
    assert chosen(values) == 0
    values[2999] = -1e30
    assert chosen(values) == 2999
    values[1500] = torch.inf
    assert chosen(values) == 1500
