"""Packing complete KV pages into a format and back, in torch, on any device, without a host synchronization.

Integer formats: x is about code * scale + minimum, with codes from 0 to L = 2**bits - 1. Keys are grouped by page and
channel, over 64 tokens; values, which come in rotated by `hadamard`, by token and head. At 8 and 4 bits the grid runs
from the smallest entry of a group to the largest; at 3 and 2 bits its points are the centres of 2**bits equal cells
between the two, which measurably lowers the error (docs/decisions/0075). Scale and minimum are rounded to float16
before codes are chosen, so that codes make up for that rounding. code * scale is exact in float32, so a kernel gets
the same number with or without a fused multiply-add.

fp8: codes are e4m3 numbers. Keys, grouped as above, are about code * scale + minimum, where `minimum` is the middle
between the smallest and the largest of a group, rounded to float16, and 448 * scale the largest distance from it: an
e4m3 number is only as exact as it is small, and what all keys of a channel have in common is no part of it. Values are
about code * scale, with one scale per page and head.

Content beyond the range of float16 (+-65504), infinities included, counts as +-65504. A NaN makes the scale and with
it the whole group NaN, other groups stay as they are: it is for the caller to keep NaN out.

Error of an entry x of a group that spans low..high, decoded in float32, rounding of float32 aside:
integer formats: scale / 2 plus the part of low..high that rounding the minimum and the scale to float16 leaves outside
the grid, which is at most the largest of 2**-11 * |low|, 2**-11 * (high - low) and L * 2**-25;
fp8: the larger of |x - minimum| / 16 and scale / 1024, with a minimum of 0 for values. No scale is below 2**-20.
"""

import torch

from kernels.kv_codec.bits import pack_codes, unpack_codes
from kernels.kv_codec.formats import PAGE, PackedFormat, PackedPages, check_head_dim

_LARGEST = 65504.0  # of float16
_LARGEST_FLOAT8 = 448.0  # of e4m3
_SMALLEST_SCALE = 2.0**-20
_CELL_CENTRES = 3  # up to so many bits


def quantize(x: torch.Tensor, dim: int, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x of any float type, grouped along `dim` -> codes uint8 of x's shape; scale and minimum float16 without `dim`."""
    x = x.float()
    levels = 2**bits - 1
    low = x.amin(dim, keepdim=True).clamp_(-_LARGEST, _LARGEST)
    high = x.amax(dim, keepdim=True).clamp_(-_LARGEST, _LARGEST)
    if bits <= _CELL_CENTRES:
        half_cell = (high - low) / 2 ** (bits + 1)
        low, high = low + half_cell, high - half_cell
    minimum = low.half().float()
    scale = ((high - minimum) / levels).clamp_min_(_SMALLEST_SCALE).half().float()
    codes = (x - minimum).div_(scale).round_().clamp_(0, levels).to(torch.uint8)
    return codes, scale.squeeze(dim).half(), minimum.squeeze(dim).half()


def quantize_float8_around(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x of any float type, grouped along `dim`, around the middle of each group -> e4m3 codes as uint8, of x's shape;
    scale and middle float16 without `dim`."""
    x = x.float().clamp(-_LARGEST, _LARGEST)
    middle = ((x.amin(dim, keepdim=True) + x.amax(dim, keepdim=True)) / 2 + 0.0).half()  # never -0
    codes, scale = quantize_float8(x - middle.float(), (dim,))
    return codes, scale.squeeze(dim), middle.squeeze(dim)


def quantize_float8(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """x, grouped along `dims` -> e4m3 codes as uint8, of x's shape; scale float16, `dims` kept as 1."""
    x = x.float()
    largest = x.abs().amax(dims, keepdim=True).clamp_max_(_LARGEST)
    scale = (largest / _LARGEST_FLOAT8).clamp_min_(_SMALLEST_SCALE).half()
    codes = (x / scale.float()).clamp_(-_LARGEST_FLOAT8, _LARGEST_FLOAT8).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8), scale


def pack_pages(keys: torch.Tensor, rotated_values: torch.Tensor, fmt: PackedFormat) -> PackedPages:
    """keys and rotated_values [..., pages, 64, d] of any float type: complete pages. d is a multiple of 8."""
    for name, x in (("keys", keys), ("rotated_values", rotated_values)):
        if x.ndim < 3 or x.shape[-2] != PAGE or x.shape != keys.shape:
            raise ValueError(f"{name}: got shape {list(x.shape)}, need [..., pages, {PAGE}, d], the same for both")
    check_head_dim(keys.shape[-1])
    return PackedPages(*_pack_keys(keys, fmt), *_pack_values(rotated_values, fmt))


def unpack_page_keys(packed: PackedPages, fmt: PackedFormat, out: torch.Tensor | None = None) -> torch.Tensor:
    """-> float32 [..., pages, 64, d]; with `out`, of any float type, written there and returned."""
    scale, minimum = packed.key_scale.unsqueeze(-2), packed.key_minimum.unsqueeze(-2)
    return _dequantize(packed.key_codes, scale, minimum, fmt.key_bits, fmt.float8, out)


def unpack_page_values(packed: PackedPages, fmt: PackedFormat, out: torch.Tensor | None = None) -> torch.Tensor:
    """-> float32 [..., pages, 64, d], still rotated; with `out`, of any float type, written there and returned."""
    scale, minimum = packed.value_scale.unsqueeze(-1), None if fmt.float8 else packed.value_minimum.unsqueeze(-1)
    return _dequantize(packed.value_codes, scale, minimum, fmt.value_bits, fmt.float8, out)


def requantize_values(packed: PackedPages, fmt: PackedFormat, value_bits: int) -> tuple[PackedPages, PackedFormat]:
    """The same pages with their values in fewer bits, and their format. Keys are the same tensors, not copies.

    ValueError for fp8, whose pages hold no integer codes, and for bits that are not fewer.
    """
    if fmt.float8:
        raise ValueError("fmt: got fp8, need a format with integer codes")
    if value_bits >= fmt.value_bits:
        raise ValueError(f"value_bits: got {value_bits}, need fewer than the {fmt.value_bits} of the pages")
    fewer = PackedFormat(fmt.key_bits, value_bits)
    return PackedPages(*packed[:3], *_pack_values(unpack_page_values(packed, fmt), fewer)), fewer


def _pack_keys(keys: torch.Tensor, fmt: PackedFormat) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if fmt.float8:
        return quantize_float8_around(keys, -2)
    codes, scale, minimum = quantize(keys, -2, fmt.key_bits)
    return pack_codes(codes, fmt.key_bits), scale, minimum


def _pack_values(rotated: torch.Tensor, fmt: PackedFormat) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if fmt.float8:
        codes, scale = quantize_float8(rotated, (-2, -1))
        return codes, scale.squeeze(-1), scale.new_empty(*scale.shape[:-2], 0)
    codes, scale, minimum = quantize(rotated, -1, fmt.value_bits)
    return pack_codes(codes, fmt.value_bits), scale, minimum


def _dequantize(
    packed: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor | None,
    bits: int,
    float8: bool,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """packed uint8 [..., 64, d * bits / 8] -> [..., 64, d], rounded to the type of `out` once, at the end."""
    shape = (*packed.shape[:-1], packed.shape[-1] * 8 // bits)
    if out is not None and out.shape != shape:
        raise ValueError(f"out: got shape {list(out.shape)}, need {list(shape)}")
    x = out if out is not None and out.dtype == torch.float32 else torch.empty(shape, device=packed.device)
    if float8:
        x.copy_(packed.view(torch.float8_e4m3fn)).mul_(scale)
    else:
        torch.mul(unpack_codes(packed, bits), scale.float(), out=x)
    if minimum is not None:
        x.add_(minimum)
    return x if out is None or out is x else out.copy_(x)
