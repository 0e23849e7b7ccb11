"""KV formats, and how the pages of each lie in memory.

A format name stands for a `PackedFormat` per layer: where keys have fewer than 8 bits, the first and last two layers,
where errors cost most, stay at 8 bits, and layers that a model is known to need them in keep 8-bit keys.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import NamedTuple

import torch

from kernels.kv_codec.bits import BITS

PAGE = 64  # tokens of a KV page
_OUTER_LAYERS = 2  # at each end of the model


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """Bits of a key code and of a value code, each 8, 4, 3 or 2. `float8`: the codes are e4m3 numbers, 8 bits both."""

    key_bits: int
    value_bits: int
    float8: bool = False

    def __post_init__(self) -> None:
        for field in ("key_bits", "value_bits"):
            bits = getattr(self, field)
            if bits not in BITS:
                raise ValueError(f"{field}: got {bits}, need 8, 4, 3 or 2")
            if self.float8 and bits != 8:
                raise ValueError(f"{field}: got {bits} in a float8 format, need 8")


FORMATS: Mapping[str, PackedFormat] = MappingProxyType(
    {
        "fp8": PackedFormat(8, 8, float8=True),
        "k8v8": PackedFormat(8, 8),
        "k8v4": PackedFormat(8, 4),
        "k4v4": PackedFormat(4, 4),
        "k3v3": PackedFormat(3, 3),
        "k3v2": PackedFormat(3, 2),
        "k2v2": PackedFormat(2, 2),
    }
)


def layer_format(name: str, layer: int, layers: int, wide: Collection[int] = ()) -> PackedFormat:
    """What `layer` (from 0) of a model with `layers` layers is packed as under the format `name`.

    `wide`: layers that keep 8-bit keys beside values of the format, where its keys have fewer bits.
    """
    if name not in FORMATS:
        raise ValueError(f"name: got {name!r}, need one of {', '.join(FORMATS)}")
    if not 0 <= layer < layers:
        raise ValueError(f"layer: got {layer}, need 0 to {layers - 1}")
    fmt = FORMATS[name]
    if fmt.key_bits == 8:
        return fmt
    if layer < _OUTER_LAYERS or layer >= layers - _OUTER_LAYERS:
        return FORMATS["k8v8"]
    return PackedFormat(8, fmt.value_bits) if layer in wide else fmt


class PackedPages(NamedTuple):
    """KV pages of one format; leading dimensions [..., pages] are free. Keys have a scale and minimum per page and
    channel, values per token. In fp8, whose codes have signs, the minimum of keys is the middle between the smallest
    and the largest of the group, and values have one scale per page and no minima: their last dimension is 0.

    key_codes     uint8   [..., pages, 64, d * key_bits / 8]
    key_scale     float16 [..., pages, d]
    key_minimum   float16 [..., pages, d]
    value_codes   uint8   [..., pages, 64, d * value_bits / 8]
    value_scale   float16 [..., pages, 64], fp8: [..., pages, 1]
    value_minimum float16 [..., pages, 64]
    """

    key_codes: torch.Tensor
    key_scale: torch.Tensor
    key_minimum: torch.Tensor
    value_codes: torch.Tensor
    value_scale: torch.Tensor
    value_minimum: torch.Tensor


def check_head_dim(d: int) -> None:
    if d <= 0 or d % 8:
        raise ValueError(f"d: got {d}, need a positive multiple of 8")


def _parts(fmt: PackedFormat, d: int) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...]:
    """dtype and shape of each tensor of one page, in the order of `PackedPages`."""
    check_head_dim(d)
    codes, half = torch.uint8, torch.float16
    return (
        (codes, (PAGE, d * fmt.key_bits // 8)),
        (half, (d,)),
        (half, (d,)),
        (codes, (PAGE, d * fmt.value_bits // 8)),
        (half, (1 if fmt.float8 else PAGE,)),
        (half, (0 if fmt.float8 else PAGE,)),
    )


def empty_pages(fmt: PackedFormat, shape: Sequence[int], d: int, device: torch.device | str = "cpu") -> PackedPages:
    """Room for pages, not initialized. `shape`: the leading dimensions, the number of pages last."""
    return PackedPages(*(torch.empty(*shape, *part, dtype=dtype, device=device) for dtype, part in _parts(fmt, d)))


def bytes_per_page(fmt: PackedFormat, d: int) -> int:
    """Bytes of one KV page of one KV head: codes, scales and minima of keys and values."""
    return sum(dtype.itemsize * prod(part) for dtype, part in _parts(fmt, d))
