"""Keys and values of k8v4 packed apart: the same bytes as `pack_pages` makes, for callers that keep them apart."""

from typing import NamedTuple

import torch

from kernels.kv_codec.bits import pack_codes, unpack_codes
from kernels.kv_codec.reference import quantize


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


def pack_keys(keys: torch.Tensor) -> PackedKeys:
    """keys [..., pages, 64, d]: complete KV pages."""
    return PackedKeys(*quantize(keys, -2, 8))


def unpack_keys(packed: PackedKeys, out: torch.Tensor | None = None) -> torch.Tensor:
    """-> float32 [..., pages, 64, d], written to `out` if given."""
    keys = torch.mul(packed.codes, packed.scale.float().unsqueeze(-2), out=out)
    return keys.add_(packed.minimum.float().unsqueeze(-2))


def pack_values(rotated: torch.Tensor) -> PackedValues:
    """rotated [..., tokens, d], d even."""
    codes, scale, minimum = quantize(rotated, -1, 4)
    return PackedValues(pack_codes(codes, 4), scale, minimum)


def unpack_values(packed: PackedValues, out: torch.Tensor | None = None) -> torch.Tensor:
    """-> float32 [..., tokens, d], still rotated; written to `out` if given."""
    values = torch.mul(unpack_codes(packed.codes, 4), packed.scale.float().unsqueeze(-1), out=out)
    return values.add_(packed.minimum.float().unsqueeze(-1))
