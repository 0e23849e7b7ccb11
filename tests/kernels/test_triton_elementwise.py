"""The fused small kernels against float64 and against the chain of torch operations that each replaces."""

import pytest
import torch

from kernels.append_kv import append_kv
from kernels.kv_codec.rotation import hadamard
from kernels.rms_norm import reference as rms_norm
from kernels.rope import reference as rope
from kernels.swiglu import reference as swiglu

pytest.importorskip("triton")
from kernels.append_kv import triton as fused_append
from kernels.append_kv.triton import rope_append
from kernels.rms_norm.triton import add_rms_norm as fused_add_rms_norm
from kernels.swiglu.triton import swiglu as fused_swiglu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [torch.float32, torch.bfloat16]
SLACK = 2 if DEVICE == "cuda" else 6  # the interpreter cuts bfloat16 off where cards round it: thrice the error


def big(*values):
    """Only on a card: interpreted, it would take too long."""
    mark = pytest.mark.skipif(DEVICE == "cpu", reason="too large for Triton's interpreter; needs a CUDA card")
    return pytest.param(*values, marks=[mark, pytest.mark.gpu])


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("with_delta", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("rows", "d"), [(1, 576), (3, 100), (2, 4096), big(16384, 8192), big(4097, 4096)])
def test_add_rms_norm(rows, d, dtype, with_delta, random):
    x, weight = torch.randn(rows, d, generator=random).to(DEVICE), torch.randn(d, generator=random).to(DEVICE)
    delta = torch.randn(rows, d, generator=random).to(DEVICE, dtype) if with_delta else None
    total, normed = fused_add_rms_norm(x, delta, weight, 1e-5, dtype)
    expected_total, plain = rms_norm.add_rms_norm(x, delta, weight, 1e-5, dtype)
    assert torch.equal(total, expected_total)
    assert (total is x) == (delta is None)
    assert normed.dtype == dtype
    exact = expected_total.double()
    exact = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert error(normed, exact) <= max(SLACK * error(plain, exact), 1e-6)


def test_add_rms_norm_of_strided_rows(random):
    x, delta = (torch.randn(3, 200, generator=random).to(DEVICE)[:, :96] for _ in range(2))
    weight = torch.ones(96, device=DEVICE)
    for got, expected in zip(
        fused_add_rms_norm(x, delta, weight, 1e-5, torch.float32),
        rms_norm.add_rms_norm(x, delta, weight, 1e-5, torch.float32),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("dtype", [*TYPES, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "ffn"), [(1, 1536), (3, 47), big(4096, 14336), big(16384, 14336)])
def test_swiglu(rows, ffn, dtype, random):
    x = (5 * torch.randn(rows, 2 * ffn, generator=random)).to(DEVICE, dtype)
    x[0, 0], x[0, 1] = -120.0, 120.0
    got, plain = fused_swiglu(x), swiglu.swiglu(x)
    assert got.dtype == dtype
    gate, up = x.double().chunk(2, -1)
    exact = gate / (1 + (-gate).exp()) * up
    assert error(got, exact) <= max(SLACK * error(plain, exact), 1e-6)


def chain(qkv, q_norm, k_norm, eps, cos, sin, keys, values, slots, rotate, heads):
    """What `rope_append` replaces."""
    kv_heads, dim = keys.shape[0], keys.shape[2]
    q, k, v = qkv.unflatten(1, (-1, dim)).split((heads, kv_heads, kv_heads), 1)
    if q_norm is not None:
        q, k = rms_norm.rms_norm(q, q_norm, eps), rms_norm.rms_norm(k, k_norm, eps)
    q, k = rope.rope(q, cos, sin), rope.rope(k, cos, sin)
    runs = [(slot, 1) for slot in slots.tolist()]
    append_kv(keys, values, runs, k, hadamard(v) if rotate else v.float())
    return q


def inputs(tokens, heads, kv_heads, dim, dtype, normed, random):
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, generator=random).to(DEVICE, dtype)
    norms = [1 + 0.1 * torch.randn(dim, generator=random).to(DEVICE) for _ in range(2)] if normed else [None, None]
    angles = (100 * torch.rand(tokens, dim // 2, generator=random)).to(DEVICE)
    cos, sin = angles.cos(), angles.sin()
    return qkv, *norms, torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)


def pool(kv_heads, capacity, dim, dtype):
    """Keys and values [kv_heads, capacity, dim]: views of one tensor that lies otherwise, full of NaN."""
    both = torch.full((2, capacity, kv_heads, dim + 16), float("nan"), dtype=dtype, device=DEVICE)
    return tuple(both[..., :dim].transpose(1, 2))


CASES = [
    (1, 9, 3, 64, False),
    (3, 4, 4, 80, False),
    (2, 8, 2, 96, True),
    (5, 4, 1, 128, True),
    (2, 3, 1, 256, False),
    big(4096, 32, 8, 128, True),
    big(1000, 9, 3, 64, False),
    big(300, 7, 1, 80, True),
    big(16384, 32, 8, 128, False),
]


@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "dim", "normed"), CASES)
def test_rope_append(tokens, heads, kv_heads, dim, normed, dtype, rotate, few, random, monkeypatch):
    monkeypatch.setattr(fused_append, "_FEW_TOKENS", few)
    given = inputs(tokens, heads, kv_heads, dim, dtype, normed, random)
    given = (*given[:3], 1e-6, *given[3:])
    slots = torch.randperm(tokens + 9, generator=random)[:tokens].to(DEVICE)
    keys, values = pool(kv_heads, tokens + 9, dim, dtype)
    q = rope_append(*given, keys, values, slots, rotate, heads)
    assert q.shape == (tokens, heads, dim)
    assert q.dtype == dtype

    exact_pool, plain_pool = pool(kv_heads, tokens + 9, dim, torch.float32), pool(kv_heads, tokens + 9, dim, dtype)
    exact_q = chain(*given, *exact_pool, slots, rotate, heads)
    plain_q = chain(*given, *plain_pool, slots, rotate, heads).to(dtype)
    for got, plain, exact in ((q, plain_q, exact_q), *zip((keys, values), plain_pool, exact_pool, strict=True)):
        assert torch.equal(got.isnan(), exact.isnan())  # what was not to be written was not
        written = exact.isfinite()
        close = error(got[written], exact[written].double())
        assert close <= max(SLACK * error(plain[written], exact[written].double()), 2e-6)


def test_rope_append_leaves_out_tokens_without_a_slot(random):
    given = inputs(3, 2, 1, 64, torch.float32, False, random)
    keys, values = pool(1, 8, 64, torch.float32)
    rope_append(*given[:3], 1e-6, *given[3:], keys, values, torch.tensor([5, -1, 2]).to(DEVICE), True, 2)
    assert keys[0, :, 0].isfinite().nonzero()[:, 0].tolist() == [2, 5]
    assert values[0, :, 0].isfinite().nonzero()[:, 0].tolist() == [2, 5]


def test_rope_append_repeats_to_the_bit(random):
    given = inputs(4, 4, 2, 128, torch.bfloat16, True, random)
    slots = torch.arange(4, device=DEVICE)
    results = []
    for _ in range(20 if DEVICE == "cuda" else 2):
        keys, values = pool(2, 4, 128, torch.bfloat16)
        q = rope_append(*given[:3], 1e-6, *given[3:], keys, values, slots, True, 4)
        results.append((q, keys, values))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="takes a card's memory; needs a CUDA card")
def test_rope_append_past_two_to_the_31_elements(random):
    capacity = 2**31 // 128 + 64
    given = inputs(2, 4, 1, 128, torch.bfloat16, False, random)
    keys = torch.full((1, capacity, 128), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    values = torch.full_like(keys, float("nan"))
    slots = torch.tensor([capacity - 1, 3], device=DEVICE)
    rope_append(*given[:3], 1e-6, *given[3:], keys, values, slots, True, 4)
    assert keys[0, :, 0].isfinite().nonzero()[:, 0].tolist() == [3, capacity - 1]
