"""rms_norm, rope, swiglu and append_kv against float64 formulas."""

import torch

from kernels.append_kv import append_kv
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu


def test_rms_norm(random):
    x, weight = torch.randn(5, 3, 96, generator=random), torch.randn(96, generator=random)
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, rtol=1e-5, atol=1e-6)
    assert rms_norm(x.bfloat16(), weight, 1e-5).dtype == torch.float32


def test_rope_turns_pairs_of_halves(random):
    x, angles = torch.randn(7, 3, 16, generator=random), torch.randn(7, 8, generator=random)
    pairs = torch.complex(x[..., :8].double(), x[..., 8:].double())
    turned = pairs * torch.polar(torch.ones(7, 1, 8, dtype=torch.float64), angles[:, None].double())
    expected = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(
        rope(x, torch.cat((angles.cos(), angles.cos()), -1), torch.cat((-angles.sin(), angles.sin()), -1)).double(),
        expected,
        rtol=1e-5,
        atol=1e-6,
    )


def test_swiglu(random):
    x = torch.randn(4, 20, generator=random)
    gate, up = x[:, :10].double(), x[:, 10:].double()
    torch.testing.assert_close(swiglu(x).double(), gate / (1 + (-gate).exp()) * up, rtol=1e-5, atol=1e-6)


def test_append_kv_fills_the_named_slots_and_no_other(random):
    keys, values = torch.zeros(2, 256, 8), torch.zeros(2, 256, 8)
    k, v = torch.randn(70, 2, 8, generator=random), torch.randn(70, 2, 8, generator=random)
    append_kv(keys, values, [(190, 2), (0, 64), (128, 4)], k, v)
    where = torch.cat((torch.arange(190, 192), torch.arange(64), torch.arange(128, 132)))
    for store, new in ((keys, k), (values, v)):
        assert torch.equal(store[:, where], new.transpose(0, 1))
        rest = torch.ones(256, dtype=torch.bool)
        rest[where] = False
        assert not store[:, rest].any()
