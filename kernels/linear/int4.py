"""4-bit weights in groups along the input, in the packed layout of torch's CUDA product (compute capability >= 8.0)."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from kernels import triton_jit

GROUPS = (32, 64, 128, 256)
FEW_ROWS = 16  # a tile of torch's product, which reads the weights again for every further one
_PACKED_AT_ONCE = 1 << 24  # elements
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True, slots=True)
class Int4GroupWeight:
    """weight = (code - 8) * scale + zero.

    codes int32 [out / 8, in / (16 * tiles), 32, tiles / 2]; scales_and_zeros bfloat16 [in / group, out, 2].
    """

    codes: torch.Tensor
    scales_and_zeros: torch.Tensor
    group: int
    bias: torch.Tensor | None = None


def pack_int4_groups(weight: torch.Tensor, group: int = 128, bias: torch.Tensor | None = None) -> Int4GroupWeight:
    """weight [out, in] of any float type on a CUDA card; the smallest and largest of each group become codes 0 and 15.

    `out` is a multiple of 8, `in` of 32 and of the group. Takes little memory beside the result.
    """
    outs, inner = weight.shape
    if group not in GROUPS:
        raise ValueError(f"group: got {group}, need one of {GROUPS}")
    if inner % group or inner % 32 or outs % 8:
        raise ValueError(f"weight: got {list(weight.shape)}, need [multiple of 8, multiple of 32 and of group {group}]")
    tiles = next(tiles for tiles in (8, 4, 2) if inner % (16 * tiles) == 0)
    codes = torch.empty(outs // 8, inner // (16 * tiles), 32, tiles // 2, dtype=torch.int32, device=weight.device)
    scales_and_zeros = torch.empty(inner // group, outs, 2, dtype=torch.bfloat16, device=weight.device)
    step = max(8, _PACKED_AT_ONCE // inner // 8 * 8)
    for first in range(0, outs, step):
        rows = slice(first, first + step)
        part, scales_and_zeros[:, rows] = quantize_groups(weight[rows], group)
        pairs = (part[:, ::2] << 4) | part[:, 1::2]
        codes[first // 8 : (first + step) // 8] = torch.ops.aten._convert_weight_to_int4pack(pairs, tiles)
    return Int4GroupWeight(codes, scales_and_zeros, group, bias)


def quantize_groups(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [out, in] -> codes uint8 [out, in] from 0 to 15, scales_and_zeros bfloat16 [in / group, out, 2]."""
    groups = weight.float().unflatten(1, (-1, group))
    low, high = groups.aminmax(dim=2, keepdim=True)
    scales = ((high - low) / 15).clamp_min(1e-20).to(torch.bfloat16)
    zeros = (low + 8 * scales.float()).to(torch.bfloat16)
    codes = ((groups - zeros.float()) / scales.float() + 8).round_().clamp_(0, 15).to(torch.uint8)
    return codes.flatten(1), torch.cat((scales, zeros), 2).transpose(0, 1)


def unpack_int4_groups(w: Int4GroupWeight, first: int, rows: int) -> torch.Tensor:
    """Weight rows from `first`, both multiples of 8, as bfloat16 [rows, in]."""
    if triton_jit.available(w.codes.device):
        from kernels.linear import triton_convert

        return triton_convert.unpack_int4_groups(w.codes, w.scales_and_zeros, w.group, first, rows)
    packed = w.codes[first // 8 : (first + rows) // 8]
    outer, inner_tiles = packed.shape[1], packed.shape[3]
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    # word [out / 8, outer, row of 8, pair of k, tile pair], then its nibbles [odd k, eights of k]
    nibbles = (packed.view(-1, outer, 8, 4, inner_tiles, 1) >> shifts).bitwise_and_(15).unflatten(-1, (2, 4))
    codes = nibbles.permute(0, 2, 1, 4, 6, 3, 5).reshape(rows, -1)
    scales, zeros = w.scales_and_zeros[:, first : first + rows].float().transpose(0, 1).unbind(2)
    values = (codes.unflatten(1, (-1, w.group)) - 8) * scales[..., None] + zeros[..., None]
    return values.flatten(1).to(torch.bfloat16)


def int4_group_linear(x: torch.Tensor, w: Int4GroupWeight) -> torch.Tensor:
    """x [t, in] -> bfloat16 [t, out]: torch's packed product up to 16 rows, else blocks of the weight as bfloat16."""
    x = x.to(torch.bfloat16).contiguous()
    outs = w.scales_and_zeros.shape[1]
    if x.shape[0] <= FEW_ROWS and x.device.type == "cuda":
        y = torch.ops.aten._weight_int4pack_mm(x, w.codes, w.group, w.scales_and_zeros)
    else:
        y = torch.empty(x.shape[0], outs, dtype=torch.bfloat16, device=x.device)
        for first in range(0, outs, _ROWS_AT_ONCE):
            rows = min(_ROWS_AT_ONCE, outs - first)
            y[:, first : first + rows] = functional.linear(x, unpack_int4_groups(w, first, rows))
    return y if w.bias is None else y.add_(w.bias)
