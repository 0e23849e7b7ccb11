"""Linear layers: y = x W^T (+ bias), W as it is, packed for torch's own int8 and int4 CPU kernels, or for a GPU.

Torch's packed kernels take bfloat16 activations (with float32 ones they are ten times slower). They are private, so
each is tried once on a small matrix, and packing is refused where it is missing or wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn import functional

from kernels import cpu_jit, triton_jit
from kernels.linear.fp8 import Fp8Weight, fp8_linear
from kernels.linear.int4 import Int4GroupWeight, int4_group_linear
from kernels.linear.nibbles import GROUP, NibbleWeight, nibble_linear, pack_nibbles

_FEW_ROWS = 8
DENSE_MATVEC = True  # few rows of bfloat16 weights on a GPU through our own kernel, not through cuBLAS
INT4_GROUPS = (32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """weight [out, in]; x is cast to its type."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """codes int8 [out, in], symmetric; scales bfloat16 [out]."""

    codes: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """codes in torch's packed layout; scales_and_zeros bfloat16 [in / group, out, 2]: (code - 8) * scale + zero."""

    codes: torch.Tensor
    scales_and_zeros: torch.Tensor
    group: int
    bias: torch.Tensor | None = None


Weight = DenseWeight | Int8Weight | Int4Weight | NibbleWeight | Fp8Weight | Int4GroupWeight


def activation_dtype(w: Weight) -> torch.dtype:
    """The type in which `linear` takes few rows without converting them."""
    match w:
        case DenseWeight():
            return w.weight.dtype
        case Int8Weight():
            return torch.float32 if _compiled(w.codes) else torch.bfloat16
        case NibbleWeight():
            return torch.float32
        case Int4Weight() | Fp8Weight() | Int4GroupWeight():
            return torch.bfloat16


def _compiled(codes: torch.Tensor) -> bool:
    return codes.device.type == "cpu" and cpu_jit.available()


def _few_on_card(x: torch.Tensor, weight: torch.Tensor) -> bool:
    few = x.shape[0] <= _FEW_ROWS and weight.dtype == torch.bfloat16 and weight.shape[1] % 4 == 0
    return few and weight.is_contiguous() and triton_jit.available(x.device)


def linear(x: torch.Tensor, w: Weight) -> torch.Tensor:
    """x [t, in] -> [t, out]: of the weight's type if dense, bfloat16 from fp8 or 4-bit groups; from weights packed for
    the CPU bfloat16 or float32, float32 where there is a bias."""
    match w:
        case Fp8Weight():
            return fp8_linear(x, w)
        case Int4GroupWeight():
            return int4_group_linear(x, w)
        case DenseWeight() if DENSE_MATVEC and _few_on_card(x, w.weight):
            from kernels.linear import triton

            return triton.matvec(x.to(torch.bfloat16), w.weight, None, w.bias)
        case DenseWeight():
            return functional.linear(x.to(w.weight.dtype), w.weight, w.bias)
        case Int8Weight() if x.shape[0] <= _FEW_ROWS and _compiled(w.codes):
            from kernels.linear import cpu

            y = cpu.int8_linear(x.float(), w.codes, w.scales)
        case Int8Weight():
            y = torch.ops.aten._weight_int8pack_mm(x.to(torch.bfloat16), w.codes, w.scales)
        case NibbleWeight():
            y = nibble_linear(x.float(), w)
        case Int4Weight():
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(x.to(torch.bfloat16), w.codes, w.group, w.scales_and_zeros)
    return y if w.bias is None else y + w.bias


def pack_int8(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Int8Weight:
    """weight [out, in] of any float type; one scale for each output row, chosen after rounding it to bfloat16."""
    weight = weight.float()
    scales = (weight.abs().amax(1) / 127).clamp_min(1e-20).to(torch.bfloat16)
    codes = (weight / scales.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    return Int8Weight(codes, scales, bias)


def pack_int4(
    codes: torch.Tensor, scales: torch.Tensor, minimums: torch.Tensor, group: int, bias: torch.Tensor | None = None
) -> Int4Weight | NibbleWeight:
    """codes [out, in] from 0 to 15; scales and minimums [out, in / group]: weight = code * scale + minimum. For our own
    kernel where numba compiles, else for torch's."""
    if group not in INT4_GROUPS:
        raise ValueError(f"group: got {group}, need one of {INT4_GROUPS}")
    if cpu_jit.available() and codes.shape[1] % GROUP == 0:
        return pack_nibbles(codes, scales, minimums, group, bias)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32).contiguous(), 1)
    rounded = scales.to(torch.bfloat16)
    # The kernel centres codes at 8; the zero takes that back, from the scale as rounded.
    zeros = (minimums.float() + 8 * rounded.float()).to(torch.bfloat16)
    return Int4Weight(packed, torch.stack((rounded, zeros), -1).transpose(0, 1).contiguous(), group, bias)


@lru_cache
def int8_is_available() -> bool:
    """Whether torch's packed int8 product exists here and computes what we think it does."""
    weight = torch.linspace(-1, 1, 32 * 64).view(32, 64).sin()
    return _agrees(lambda: pack_int8(weight), weight)


@lru_cache
def int4_is_available() -> bool:
    """Whether torch's packed int4 product exists here and computes what we think it does."""
    codes = (torch.arange(32 * 64) * 7 % 16).view(32, 64)
    scales = torch.linspace(0.5, 1.5, 32 * 2).view(32, 2).to(torch.bfloat16).float()
    minimums = -8 * scales
    weight = codes * scales.repeat_interleave(32, 1) + minimums.repeat_interleave(32, 1)
    return _agrees(lambda: pack_int4(codes, scales, minimums, 32), weight)


def _agrees(pack: Callable[[], Weight], weight: torch.Tensor) -> bool:
    x = torch.linspace(-1, 1, 64).cos()[None].to(torch.bfloat16)
    expected = x.float() @ weight.T
    try:
        got = linear(x, pack()).float()
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    return bool((got - expected).norm() <= 0.02 * expected.norm())
