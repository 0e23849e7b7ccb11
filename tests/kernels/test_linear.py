"""Packed matrix products against float64, and honest detection of what torch offers."""

import pytest
import torch

from kernels.linear import (
    DenseWeight,
    NibbleWeight,
    int4_is_available,
    int8_is_available,
    linear,
    pack_int4,
    pack_int8,
    pack_nibbles,
    reference,
)

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
@pytest.mark.parametrize(("compiled", "bound"), [(True, 1e-4), (False, 0.01)])
@pytest.mark.parametrize("group", [32, 64])
def test_int4_repeats_the_codes_it_is_given(group, compiled, bound, random, monkeypatch):
    monkeypatch.setattr(reference.cpu_jit, "available", lambda: compiled)
    codes = torch.randint(0, 16, (64, 256), generator=random)
    scales = torch.rand(64, 256 // group, generator=random) + 0.1
    minimums = -8 * scales + 0.1 * torch.randn(scales.shape, generator=random)
    weight = codes * scales.repeat_interleave(group, 1) + minimums.repeat_interleave(group, 1)
    x = torch.randn(1, 256, generator=random)
    packed = pack_int4(codes, scales, minimums, group)
    assert isinstance(packed, NibbleWeight) == compiled
    assert ratio(linear(x, packed), x.double() @ weight.double().T) < bound


@pytest.mark.parametrize(("tokens", "rows", "inner", "group"), [(1, 1, 32, 32), (3, 65, 96, 32), (8, 130, 512, 256)])
def test_nibbles_of_any_shape(tokens, rows, inner, group, random):
    codes = torch.randint(0, 16, (rows, inner), generator=random)
    scales, minimums = (torch.randn(rows, inner // group, generator=random) for _ in range(2))
    scales[0] = 0
    weight = codes * scales.repeat_interleave(group, 1) + minimums.repeat_interleave(group, 1)
    x, bias = torch.randn(tokens, inner, generator=random), torch.randn(rows, generator=random)
    x[:, :32] = 0
    x[:, 7] = 3e4  # one entry that is large does not cost the others their digits beyond its group
    got = linear(x, pack_nibbles(codes, scales, minimums, group, bias))
    expected = x.double() @ weight.double().T + bias.double()
    assert float((got.double() - expected).abs().max() / expected.abs().max()) < 1e-4
    small = x.clone()
    small[:, :32] = 0
    got = linear(small, pack_nibbles(codes, scales, minimums, group))
    expected = small.double() @ weight.double().T
    assert inner == 32 or ratio(got, expected) < 1e-4


def test_nibbles_refuse_rows_that_no_groups_fill():
    with pytest.raises(ValueError, match="group: got 48 for rows of 96, need multiples of 32"):
        pack_nibbles(torch.zeros(4, 96), torch.ones(4, 2), torch.zeros(4, 2), 48)


def test_int4_refuses_groups_torch_does_not_know():
    with pytest.raises(ValueError, match="group: got 48"):
        pack_int4(torch.zeros(16, 96, dtype=torch.int32), torch.ones(16, 2), torch.zeros(16, 2), 48)


@pytest.mark.parametrize("check", ["int4_is_available", "int8_is_available"])
def test_a_product_that_computes_something_else_is_not_used(check, monkeypatch):
    honest = reference.linear
    monkeypatch.setattr(reference, "linear", lambda x, w: 2 * honest(x, w))
    assert getattr(reference, check).__wrapped__() is False
