"""Filters against their definitions, and draws against the distribution."""

import torch

from kernels.sample import filter_logits, penalize, sample

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


def kept(**rules) -> list[int]:
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return filter_logits(LOGITS, **(defaults | rules)).isfinite().nonzero().flatten().tolist()


def test_filters():
    p = LOGITS.softmax(-1)
    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_k=99) == [0, 1, 2, 3, 4]
    assert kept(top_p=float(p[0]) - 0.01) == [0]
    assert kept(top_p=float(p[0]) + 0.01) == [0, 1]
    assert kept(min_p=float(p[2] / p[0]) - 0.001) == [0, 1, 2]
    assert kept(top_p=1e-6) == [0]


def test_temperature_divides():
    assert torch.equal(filter_logits(LOGITS, 0.5, 0, 1.0, 0.0), LOGITS * 2)


def test_penalty_pushes_both_signs_down():
    got = penalize(LOGITS, torch.tensor([0, 3]), 2.0)
    assert got.tolist() == [1.0, 1.0, 0.5, -2.0, -3.0]


def test_draws_follow_the_distribution_and_the_seed():
    draws = [sample(LOGITS, torch.Generator().manual_seed(seed)) for seed in range(2000)]
    share = torch.bincount(torch.tensor(draws), minlength=5) / 2000
    assert (share - LOGITS.softmax(-1)).abs().max() < 0.04
    assert sample(LOGITS, torch.Generator().manual_seed(3)) == draws[3]
