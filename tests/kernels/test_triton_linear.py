"""Products with fp8 and 4-bit weights against float64, and that a row's result does not depend on its neighbours."""

import pytest
import torch

from kernels.linear import (
    DenseWeight,
    Fp8Weight,
    Int4GroupWeight,
    activation_dtype,
    fp8_product_is_available,
    gate_up_swiglu,
    linear,
    pack_fp8,
    pack_int4_groups,
    reference,
)
from kernels.linear.int4 import quantize_groups, unpack_int4_groups

pytest.importorskip("triton")
from kernels.linear import triton as fused
from kernels.linear import triton_convert

CARD = torch.cuda.is_available()
DEVICE = "cuda" if CARD else "cpu"
SLACK = 2 if CARD else 6  # the interpreter cuts bfloat16 off where cards round it: thrice the error


def big(*values):
    """Only on a card: interpreted, it would take too long."""
    mark = pytest.mark.skipif(not CARD, reason="too large for Triton's interpreter; needs a CUDA card")
    return pytest.param(*values, marks=[mark, pytest.mark.gpu])


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm())


def allowed(exact: torch.Tensor) -> float:
    """Twice the error of rounding the exact result; few numbers may happen to round well."""
    return SLACK * max(error(exact.bfloat16(), exact), 0.0012)


def weight_of(w: Fp8Weight) -> torch.Tensor:
    return w.codes.double() * w.scales.double()[:, None]


def draw(rows, outs, inner, random, bias=False):
    """x bfloat16, an fp8 weight with rows of very different size, and their exact product."""
    x = torch.randn(rows, inner, generator=random).to(DEVICE, torch.bfloat16)
    weight = torch.randn(outs, inner, generator=random) * torch.logspace(-3, 1, outs)[:, None]
    w = pack_fp8(weight.to(DEVICE), torch.randn(outs, generator=random).to(DEVICE) if bias else None)
    return x, w, exact_product(x, w)


def exact_product(x, w):
    y = x.double() @ weight_of(w).T
    return y if w.bias is None else y + w.bias.double()


SHAPES = [
    (5, 576),
    (9, 132),
    (3, 2048),
    (2, 2500),
    *(big(*shape) for shape in [(960, 576), (576, 1536), (49152, 576), (6144, 4096), (4096, 14336), (28672, 4096)]),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(("outs", "inner"), SHAPES)
def test_fp8_matvec(outs, inner, rows, bias, random):
    x, w, exact = draw(rows, outs, inner, random, bias)
    got = fused.matvec(x, w.codes, w.scales, w.bias)
    assert got.dtype == torch.bfloat16
    assert error(got, exact) <= allowed(exact)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tile", [fused.Tile(2, 2, 1), fused.Tile(4, 1, 1, rows=2), fused.Tile(2, 1, 4, rows=8)])
def test_rows_do_not_depend_on_their_neighbours(tile, gated, random):
    x, w, _ = draw(8, 4, 1024, random)
    every = fused.matvec(x, w.codes, w.scales, None, gated, tile)
    for rows in (slice(0, 1), slice(7, 8), slice(2, 4), slice(1, 8)):
        assert torch.equal(fused.matvec(x[rows], w.codes, w.scales, None, gated, tile), every[rows])


@pytest.mark.gpu
@pytest.mark.skipif(not CARD, reason="too large for Triton's interpreter; needs a CUDA card")
@pytest.mark.parametrize(("outs", "inner"), [(6144, 4096), (4096, 14336), (576, 1536)])
def test_every_row_is_the_same_alone_and_on_every_repeat(outs, inner, random):
    x, w, _ = draw(8, outs, inner, random)
    every = fused.matvec(x, w.codes, w.scales, None)
    assert all(torch.equal(fused.matvec(x, w.codes, w.scales, None), every) for _ in range(20))
    for rows in range(1, 8):
        for first in range(9 - rows):
            got = fused.matvec(x[first : first + rows], w.codes, w.scales, None)
            assert torch.equal(got, every[first : first + rows])


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("outs", "inner"), [(10, 132), (4, 576), big(28672, 4096), big(3072, 576)])
def test_gated_matvec(outs, inner, rows, random):
    x, w, exact = draw(rows, outs, inner, random, bias=True)
    gate, up = exact.chunk(2, 1)
    exact = gate / (1 + (-gate).exp()) * up
    got = fused.matvec(x, w.codes, w.scales, w.bias, gated=True)
    assert got.shape == (rows, outs // 2)
    assert error(got, exact) <= allowed(exact)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(("outs", "inner"), [(3, 132), (2, 1024), big(6144, 4096)])
def test_bfloat16_matvec(outs, inner, rows, random):
    x = torch.randn(rows, inner, generator=random).to(DEVICE, torch.bfloat16)
    weight = torch.randn(outs, inner, generator=random).to(DEVICE, torch.bfloat16)
    exact = x.double() @ weight.double().T
    assert error(fused.matvec(x, weight, None, None), exact) <= allowed(exact)


def test_every_fp8_code_is_decoded_exactly():
    codes = torch.tensor([c for c in range(256) if c & 127 != 127] + [0, 0], dtype=torch.uint8).view(32, 8)
    weight = codes.view(torch.float8_e4m3fn)
    x = torch.eye(8, dtype=torch.bfloat16, device=DEVICE)
    got = fused.matvec(x, weight.to(DEVICE), torch.ones(32, device=DEVICE), None, tile=fused.Tile(2, 1, 1, rows=8))
    assert torch.equal(got.float().cpu(), weight.float().T)


def test_pack_fp8_fills_the_range_of_each_row(random):
    weight = torch.randn(6, 64, generator=random) * torch.tensor([1e-4, 1, 100, 1e5, 1, 1])[:, None]
    weight[4] = 0
    w = pack_fp8(weight)
    assert (w.codes.float().abs().amax(1) == torch.tensor([448, 448, 448, 448, 0, 448])).all()
    for row in (0, 1, 2, 3, 5):
        assert error(weight_of(w)[row], weight[row].double()) < 0.04
    assert not weight_of(w)[4].any()


def test_pack_fp8_in_parts_is_the_same(random, monkeypatch):
    weight = torch.randn(10, 64, generator=random)
    whole = pack_fp8(weight)
    monkeypatch.setattr("kernels.linear.fp8._PACKED_AT_ONCE", 3 * 64)
    parts = pack_fp8(weight)
    assert torch.equal(whole.codes.view(torch.uint8), parts.codes.view(torch.uint8))
    assert torch.equal(whole.scales, parts.scales)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "outs", "inner"), [(1, 33, 70), (40, 33, 70), (20, 48, 64)])
def test_linear_takes_any_fp8_shape(rows, outs, inner, bias, random):
    """Without a card, or where the shape does not suit the fast ways, through bfloat16."""
    x, w, exact = draw(rows, outs, inner, random, bias)
    got = linear(x.float(), w)
    assert got.dtype == activation_dtype(w) == torch.bfloat16
    quantized = CARD and rows > 8 and inner % 16 == 0
    assert error(got, exact) <= (0.05 if quantized else 0.005)


def test_gate_up_swiglu_of_any_weight(random):
    x, w, exact = draw(3, 12, 64, random)
    gate, up = exact.chunk(2, 1)
    exact = gate / (1 + (-gate).exp()) * up
    assert error(gate_up_swiglu(x, w), exact) < 0.01
    dense = DenseWeight(weight_of(w).float())
    assert error(gate_up_swiglu(x.float(), dense), exact) < 1e-5


@pytest.mark.skipif(CARD and torch.cuda.get_device_capability() < (8, 9), reason="a card without fp8")
@pytest.mark.parametrize(("rows", "inner"), [(3, 100), (2, 1536), big(4096, 14336), big(9, 28672)])
def test_quantize_rows(rows, inner, random):
    x = torch.randn(rows, inner, generator=random).to(DEVICE, torch.bfloat16)
    x[0] *= 1e-3
    x[1] = 0
    codes, scales = triton_convert.quantize_rows(x)
    assert codes.dtype == torch.float8_e4m3fn
    assert scales.shape == (rows, 1)
    largest = codes.float().abs().amax(1)
    assert (largest[x.any(1)] >= (448 if CARD else 416)).all()
    plain = (x.float() / scales).clamp(-448, 448).to(codes.dtype).float() * scales
    got = codes.float() * scales
    assert not got[1].any()
    assert error(got, x.double()) <= (1.01 if CARD else 3) * error(plain, x.double())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [9, 100, 4096])
@pytest.mark.parametrize(("outs", "inner"), [(960, 576), (6144, 4096)])
@pytest.mark.gpu
@pytest.mark.skipif(not CARD, reason="torch multiplies fp8 matrices on CUDA only; needs a card")
def test_many_rows_of_fp8(outs, inner, rows, bias, random):
    if not fp8_product_is_available(torch.device("cuda")):
        pytest.skip("torch has no fp8 product with a scale for each row on this card")
    x, w, exact = draw(rows, outs, inner, random, bias)
    assert error(linear(x, w), exact) < 0.04


def tinygemm_layout(codes: torch.Tensor, tiles: int) -> torch.Tensor:
    """codes [out, in] from 0 to 15 as torch's CUDA product wants them, one at a time."""
    outs, inner = codes.shape
    packed = torch.zeros(outs // 8, inner // (16 * tiles), 32, tiles // 2, dtype=torch.int64)
    for n in range(outs):
        for k in range(inner):
            outer, within = divmod(k, 16 * tiles)
            word, within = divmod(within, 32)
            eight, within = divmod(within, 8)
            shift = 4 * eight + 16 * (within % 2)
            packed[n // 8, outer, n % 8 * 4 + within // 2, word] |= int(codes[n, k]) << shift
    return packed.to(torch.int32)


@pytest.mark.parametrize(("outs", "inner", "group", "tiles"), [(16, 64, 32, 2), (8, 256, 128, 8), (24, 192, 64, 4)])
def test_unpacking_4_bit_groups(outs, inner, group, tiles, random):
    weight = torch.randn(outs, inner, generator=random) + torch.randn(outs, 1, generator=random)
    codes, scales_and_zeros = quantize_groups(weight, group)
    scales, zeros = (part.T.repeat_interleave(group, 1) for part in scales_and_zeros.float().unbind(2))
    expected = (codes.float() - 8) * scales + zeros
    assert error(expected, weight.double()) < 0.12
    w = Int4GroupWeight(tinygemm_layout(codes, tiles), scales_and_zeros.contiguous(), group)
    assert torch.equal(unpack_int4_groups(w, 0, outs).cpu(), expected.bfloat16())
    for first in (0, 8) if outs > 8 else (0,):
        rows = outs - first
        got = triton_convert.unpack_int4_groups(w.codes.to(DEVICE), w.scales_and_zeros.to(DEVICE), group, first, rows)
        assert torch.allclose(got.float().cpu(), expected[first:], rtol=2**-8 if CARD else 2**-7, atol=1e-6)


def test_many_rows_of_4_bit_groups(random, monkeypatch):
    monkeypatch.setattr("kernels.linear.int4._ROWS_AT_ONCE", 8)
    codes, scales_and_zeros = quantize_groups(torch.randn(24, 64, generator=random), 32)
    w = Int4GroupWeight(tinygemm_layout(codes, 4).to(DEVICE), scales_and_zeros.contiguous().to(DEVICE), 32)
    x = torch.randn(20, 64, generator=random).to(DEVICE, torch.bfloat16)
    weight = unpack_int4_groups(w, 0, 24)
    assert error(linear(x, w), x.double() @ weight.double().T) < 0.005


@pytest.mark.parametrize(
    ("shape", "group", "message"), [((8, 96), 48, "group"), ((8, 96), 64, "weight"), ((12, 64), 32, "weight")]
)
def test_4_bit_groups_refuse_what_torch_cannot(shape, group, message):
    with pytest.raises(ValueError, match=f"{message}: got"):
        pack_int4_groups(torch.zeros(shape), group)


@pytest.mark.gpu
@pytest.mark.skipif(not CARD, reason="torch packs 4-bit groups for CUDA only; needs a card")
@pytest.mark.parametrize("group", [32, 64, 128, 256])
@pytest.mark.parametrize("rows", [1, 16, 17, 300])
@pytest.mark.parametrize(("outs", "inner"), [(960, 512), (6144, 4096), (64, 14336)])
def test_4_bit_groups_on_a_card(outs, inner, rows, group, random):
    weight = torch.randn(outs, inner, generator=random).to(DEVICE)
    w = pack_int4_groups(weight, group)
    codes, scales_and_zeros = quantize_groups(weight, group)
    scales, zeros = (part.T.repeat_interleave(group, 1) for part in scales_and_zeros.double().unbind(2))
    exact_weight = (codes.double() - 8) * scales + zeros
    assert error(unpack_int4_groups(w, 0, outs), exact_weight) < 0.004
    x = torch.randn(rows, inner, generator=random).to(DEVICE, torch.bfloat16)
    assert error(linear(x, w), x.double() @ exact_weight.T) < 0.01


def test_dense_weights_stay_with_cublas_unless_told(random, monkeypatch):
    asked = []
    monkeypatch.setattr(reference, "DENSE_MATVEC", True)
    monkeypatch.setattr(reference.triton_jit, "available", lambda device: not asked.append(device))
    x, weight = (torch.randn(rows, 64, generator=random).to(DEVICE, torch.bfloat16) for rows in (2, 6))
    exact = x.double() @ weight.double().T
    assert error(linear(x, DenseWeight(weight)), exact) < 0.01
    assert asked
