"""Packed matrix products against float64, and honest detection of what torch offers."""

import pytest
import torch

from kernels.linear import DenseWeight, int4_is_available, int8_is_available, linear, pack_int4, pack_int8, reference

needs_int8 = pytest.mark.skipif(not int8_is_available(), reason="this torch has no packed int8 product")
needs_int4 = pytest.mark.skipif(not int4_is_available(), reason="this torch has no packed int4 product")


def ratio(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("tokens", [1, 7])
def test_dense(tokens, random):
    x, weight, bias = (torch.randn(*shape, generator=random) for shape in ((tokens, 64), (48, 64), (48,)))
    expected = x.double() @ weight.double().T + bias.double()
    assert ratio(linear(x, DenseWeight(weight, bias)), expected) < 1e-6


@needs_int8
@pytest.mark.parametrize("bias", [False, True])
def test_int8_is_as_close_as_its_steps_allow(bias, random):
    x, weight = torch.randn(1, 576, generator=random), torch.randn(96, 576, generator=random)
    added = torch.randn(96, generator=random) if bias else None
    expected = x.double() @ weight.double().T + (added.double() if added is not None else 0)
    assert ratio(linear(x, pack_int8(weight, added)), expected) < 0.015


@needs_int4
@pytest.mark.parametrize("group", [32, 64])
def test_int4_repeats_the_codes_it_is_given(group, random):
    codes = torch.randint(0, 16, (64, 256), generator=random)
    scales = torch.rand(64, 256 // group, generator=random) + 0.1
    minimums = -8 * scales + 0.1 * torch.randn(scales.shape, generator=random)
    weight = codes * scales.repeat_interleave(group, 1) + minimums.repeat_interleave(group, 1)
    x = torch.randn(1, 256, generator=random)
    packed = pack_int4(codes, scales, minimums, group)
    assert ratio(linear(x, packed), x.double() @ weight.double().T) < 0.01


def test_int4_refuses_groups_torch_does_not_know():
    with pytest.raises(ValueError, match="group: got 48"):
        pack_int4(torch.zeros(16, 96, dtype=torch.int32), torch.ones(16, 2), torch.zeros(16, 2), 48)


@pytest.mark.parametrize("check", ["int4_is_available", "int8_is_available"])
def test_a_product_that_computes_something_else_is_not_used(check, monkeypatch):
    honest = reference.linear
    monkeypatch.setattr(reference, "linear", lambda x, w: 2 * honest(x, w))
    assert getattr(reference, check).__wrapped__() is False
