"""fp8 weights with a scale for each output row; activations stay bfloat16 for few rows, become fp8 for many."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from kernels import card, triton_jit

FEW_ROWS = 8
FAST_ACCUMULATION = True  # of the many-row product: sums inside the tensor cores at less than float32
_PACKED_AT_ONCE = 1 << 24  # elements
_ROWS_AT_ONCE = 8192
_LARGEST = 448.0  # of e4m3


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """codes float8_e4m3fn [out, in], contiguous; scales float32 [out] multiply them."""

    codes: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None = None


def pack_fp8(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Fp8Weight:
    """weight [out, in] of any float type; the largest of each row becomes 448. Needs little memory besides."""
    outs, inner = weight.shape
    codes = torch.empty(outs, inner, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(outs, dtype=torch.float32, device=weight.device)
    step = max(1, _PACKED_AT_ONCE // inner)
    for first in range(0, outs, step):
        part = weight[first : first + step].float()
        scale = (part.abs().amax(1) / _LARGEST).clamp_min(1e-30)
        scales[first : first + step] = scale
        codes[first : first + step] = (part / scale[:, None]).clamp_(-_LARGEST, _LARGEST).to(codes.dtype)
    return Fp8Weight(codes, scales, bias)


def fp8_linear(x: torch.Tensor, w: Fp8Weight) -> torch.Tensor:
    """x [t, in] -> bfloat16 [t, out].

    With Triton up to 8 rows take one pass over the weights, with bfloat16 activations (`in` a multiple of 4). More rows
    become fp8 themselves, a scale for each, where the card multiplies fp8 and `in` and `out` are multiples of 16. In
    every other case the codes, which bfloat16 holds exactly, are multiplied as bfloat16 and then scaled.
    """
    x = x.to(torch.bfloat16)
    if triton_jit.available(x.device):
        outs, inner = w.codes.shape
        if x.shape[0] <= FEW_ROWS and inner % 4 == 0:
            from kernels.linear import triton

            return triton.matvec(x, w.codes, w.scales, w.bias)
        if inner % 16 == 0 and outs % 16 == 0 and fp8_product_is_available(x.device):
            return _quantized(x, w)
    return _as_bfloat16(x, w)


def _quantized(x: torch.Tensor, w: Fp8Weight) -> torch.Tensor:
    from kernels.linear.triton_convert import quantize_rows

    codes, scales = quantize_rows(x)
    y = torch.ops.aten._scaled_mm(
        codes,
        w.codes.t(),
        scale_a=scales,
        scale_b=w.scales[None],
        out_dtype=torch.bfloat16,
        use_fast_accum=FAST_ACCUMULATION,
    )
    return y if w.bias is None else y.add_(w.bias)


def _as_bfloat16(x: torch.Tensor, w: Fp8Weight) -> torch.Tensor:
    out = torch.empty(x.shape[0], w.codes.shape[0], dtype=torch.bfloat16, device=x.device)
    for first in range(0, w.codes.shape[0], _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        y = (x @ w.codes[rows].to(torch.bfloat16).t()).float() * w.scales[rows]
        out[:, rows] = y if w.bias is None else y + w.bias[rows]
    return out


@lru_cache
def fp8_product_is_available(device: torch.device) -> bool:
    """Whether torch's private product of fp8 matrices with a scale for each row and column exists and is right here."""
    if card.capability(device) < (8, 9):
        return False
    x = torch.linspace(-1, 1, 32 * 64, device=device).view(32, 64).cos()
    w = pack_fp8(torch.linspace(-1, 1, 48 * 64, device=device).view(48, 64).sin())
    expected = x @ (w.codes.float() * w.scales[:, None]).t()
    try:
        got = _quantized(x.to(torch.bfloat16), w).float()
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False
    return bool((got - expected).norm() <= 0.05 * expected.norm())
