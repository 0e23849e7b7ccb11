"""rms_norm, rope, swiglu and append_kv against float64 formulas."""

import pytest
import torch

from kernels import cpu_jit
from kernels.append_kv import append_kv
from kernels.rms_norm import add_rms_norm, rms_norm
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


needs_compiler = pytest.mark.skipif(not cpu_jit.available(), reason=cpu_jit.unavailable_reason() or "compiled")
TYPES = [torch.float32, torch.bfloat16]


@needs_compiler
@pytest.mark.parametrize("rows", [1, 5, 67])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_delta", [False, True])
def test_compiled_add_rms_norm(rows, dtype, with_delta, random):
    from kernels.rms_norm import cpu

    x, weight = torch.randn(rows, 100, generator=random), torch.randn(100, generator=random)
    delta = torch.randn(rows, 100, generator=random).to(dtype) if with_delta else None
    total, normed = cpu.add_rms_norm(x, delta, weight, 1e-5, dtype)
    expected_total = x if delta is None else x + delta.float()
    expected = (
        expected_total.double() / (expected_total.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    )
    assert torch.equal(total, expected_total)
    assert normed.dtype == dtype
    torch.testing.assert_close(normed.double(), expected, rtol=1e-5 if dtype == torch.float32 else 2**-8, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("rows", [3, 67])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_compiled_swiglu(dtype, rows, random):
    from kernels.swiglu import cpu

    x = (10 * torch.randn(rows, 94, generator=random)).to(dtype)
    x[0, 0], x[0, 1] = -120.0, 120.0
    gate, up = x[:, :47].double(), x[:, 47:].double()
    got = cpu.swiglu(x)
    assert got.dtype == dtype
    expected = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(got.double(), expected, rtol=1e-5 if dtype == torch.float32 else 2**-8, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("rows", [4, 67])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_compiled_rope_of_a_part(dtype, rows, random):
    from kernels.rope import cpu, reference

    x = torch.randn(rows, 5, 48, generator=random).to(dtype)[:, :3]
    angles = torch.randn(rows, 24, generator=random).repeat(1, 2)
    signs = torch.tensor([-1.0] * 24 + [1.0] * 24)
    got = cpu.rope(x, angles.cos(), angles.sin() * signs)
    torch.testing.assert_close(got, reference.rope(x, angles.cos(), angles.sin() * signs), rtol=1e-5, atol=1e-6)


@needs_compiler
def test_bfloat16_rounds_as_torch_does(random):
    from kernels.rms_norm import cpu

    x = torch.randn(1, 4096, generator=random)
    x[0, :4] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 1e-40])
    _, exact = cpu.add_rms_norm(x, None, torch.ones(4096), 1e-5, torch.float32)
    _, rounded = cpu.add_rms_norm(x, None, torch.ones(4096), 1e-5, torch.bfloat16)
    assert torch.equal(rounded, exact.bfloat16())


@needs_compiler
def test_exp_of_negative_numbers():
    from kernels.cpu_floats import exp_negative
    from kernels.cpu_jit import jit

    @jit()
    def all_of(x, out):
        for i in range(x.shape[0]):
            out[i] = exp_negative(x[i])

    x = -torch.cat((torch.logspace(-9, 1.939, 20001), torch.linspace(0, 87, 10001), torch.tensor([200.0, torch.inf])))
    got = torch.empty_like(x)
    all_of(x.numpy(), got.numpy())
    torch.testing.assert_close(got[:-2].double(), x[:-2].double().exp(), rtol=1e-6, atol=0)
    assert (got[-2:] < 1e-37).all()
    assert got[20001] == 1.0


@needs_compiler
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_compiled_append(dtype, random):
    from kernels.append_kv.cpu import append_one
    from kernels.cpu_jit import as_numpy

    stores = [torch.zeros(3, 128, 8, dtype=dtype) for _ in range(4)]
    k, v = (torch.randn(1, 5, 8, generator=random)[:, :3] for _ in range(2))
    append_kv(stores[0], stores[1], [(77, 1)], k, v)
    append_one(as_numpy(stores[2]), as_numpy(stores[3]), 77, k, v)
    assert torch.equal(stores[0], stores[2])
    assert torch.equal(stores[1], stores[3])


@pytest.mark.parametrize("rows", [3, 40])
def test_gradients_pass_through(rows, random):
    x = torch.randn(rows, 2, 8, generator=random, requires_grad=True)
    flat, angles = x.flatten(1), torch.randn(rows, 8, generator=random)
    total, normed = add_rms_norm(flat, flat.detach(), torch.ones(16), 1e-5, torch.float32)
    for result in (total, normed, swiglu(flat), rope(x, angles.cos(), angles.sin())):
        (gradient,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
        assert gradient.shape == x.shape
        assert gradient.any()


def test_tensors_elsewhere_never_ask_for_the_compiler(monkeypatch):
    asked = []
    monkeypatch.setattr(cpu_jit, "available", lambda: asked.append(1) or True)
    assert not cpu_jit.takes(torch.empty(2, 2, device="meta"))
    assert not asked
    assert cpu_jit.takes(torch.empty(2, 2))
    assert asked
