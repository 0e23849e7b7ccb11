"""Codes of 8, 4, 3 or 2 bits laid out in bytes, along the head dimension d of each token.

8 bits: byte i is code i. 4 bits: byte i holds code i in its low half and code i + d/2 in its high half. 2 bits: byte i
holds codes i, i + d/4, i + 2d/4, i + 3d/4, from bit 0 up. 3 bits: d/4 bytes with the low two bits of every code, laid
out as 2-bit codes, then d/8 bytes with the high bits: bit j of byte i belongs to code i + j*d/8.

Kernels rely on this layout: neighbouring bytes hold neighbouring codes, so whole vectors are unpacked with shifts.
"""

import torch

BITS = (8, 4, 3, 2)


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """codes uint8 [..., d] below 2**bits, d a multiple of 8 -> bytes uint8 [..., d * bits / 8]."""
    if bits == 8:
        return codes
    if bits == 3:
        return torch.cat((_fold(codes & 3, 2), _fold(codes >> 2, 1)), -1)
    return _fold(codes, bits)


def unpack_codes(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of `pack_codes`: bytes uint8 [..., d * bits / 8] -> codes uint8 [..., d]."""
    if bits == 8:
        return packed
    if bits == 3:
        low, high = packed.split((packed.shape[-1] // 3 * 2, packed.shape[-1] // 3), -1)
        return _unfold(low, 2) | (_unfold(high, 1) << 2)
    return _unfold(packed, bits)


def _fold(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes [..., d] of 4, 2 or 1 bits -> [..., d * bits / 8]: d codes in 8 / bits runs, one above the other."""
    packed, *runs = codes.chunk(8 // bits, -1)
    for j, run in enumerate(runs, start=1):
        packed = packed | (run << (j * bits))
    return packed


def _unfold(packed: torch.Tensor, bits: int) -> torch.Tensor:
    mask = (1 << bits) - 1
    return torch.cat([(packed >> shift) & mask for shift in range(0, 8, bits)], -1)
