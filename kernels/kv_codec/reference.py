"""The k8v4 codec in torch: 8-bit keys, grouped by channel over a KV page; 4-bit values, grouped by token and head.

Both are asymmetric: x is about code * scale + minimum. Scales and minima are rounded to float16 before codes are
chosen, so that codes make up for that rounding. Values come in already rotated by `hadamard`, which spreads single
large entries over the whole group and so makes 4 bits enough; the rotation is its own inverse.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

KEY_LEVELS = 255
VALUE_LEVELS = 15
_SMALLEST_SCALE = 2.0**-20


class PackedKeys(NamedTuple):
    """codes uint8 [..., pages, 64, d]; scale and minimum float16 [..., pages, d]."""

    codes: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor


class PackedValues(NamedTuple):
    """codes uint8 [..., tokens, d / 2], the first d / 2 in the low half bytes; scale, minimum fp16 [..., tokens]."""

    codes: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor


@lru_cache
def _hadamard_matrix(size: int, device: torch.device) -> torch.Tensor:
    """Orthonormal and symmetric, [size, size] float32; size is a power of two."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (matrix / size**0.5).to(device)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Rotate [..., d] in blocks of the largest power of two that divides d -> float32. Twice is the identity."""
    d = x.shape[-1]
    block = d & -d
    matrix = _hadamard_matrix(block, x.device)
    return (x.float().unflatten(-1, (d // block, block)) @ matrix).flatten(-2)


def _quantize(x: torch.Tensor, dim: int, levels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    minimum = low.half().float()
    scale = ((high - minimum) / levels).clamp_min(_SMALLEST_SCALE).half().float()
    codes = ((x - minimum) / scale).round_().clamp_(0, levels).to(torch.uint8)
    return codes, scale.squeeze(dim).half(), minimum.squeeze(dim).half()


def pack_keys(keys: torch.Tensor) -> PackedKeys:
    """keys [..., pages, 64, d]: complete KV pages."""
    return PackedKeys(*_quantize(keys.float(), -2, KEY_LEVELS))


def unpack_keys(packed: PackedKeys, out: torch.Tensor | None = None) -> torch.Tensor:
    """-> float32 [..., pages, 64, d], written to `out` if given."""
    keys = torch.mul(packed.codes, packed.scale.float().unsqueeze(-2), out=out)
    return keys.add_(packed.minimum.float().unsqueeze(-2))


def pack_values(rotated: torch.Tensor) -> PackedValues:
    """rotated [..., tokens, d], d even."""
    codes, scale, minimum = _quantize(rotated.float(), -1, VALUE_LEVELS)
    low, high = codes.chunk(2, dim=-1)
    return PackedValues(low | (high << 4), scale, minimum)


def unpack_values(packed: PackedValues, out: torch.Tensor | None = None) -> torch.Tensor:
    """-> float32 [..., tokens, d], still rotated; written to `out` if given."""
    half = packed.codes.shape[-1]
    if out is None:
        out = torch.empty(*packed.codes.shape[:-1], 2 * half, device=packed.codes.device)
    scale = packed.scale.float().unsqueeze(-1)
    torch.mul(packed.codes & 15, scale, out=out[..., :half])
    torch.mul(packed.codes >> 4, scale, out=out[..., half:])
    return out.add_(packed.minimum.float().unsqueeze(-1))
