"""Coarse keys (`kernels.kv_codec.coarse`) on a GPU, where pages lie: made of complete pages, to the bit as on the CPU,
and read back as what they say about logical pages.

Nothing here waits for the device. Pages below 0 are skipped: a recorded launch can so do nothing.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
# (kernels are in a language that only looks like Python to a type checker)

import torch
import triton
import triton.language as tl

from kernels.kv_codec.coarse import COARSE_BITS
from kernels.kv_codec.triton import _load_codes, _pack_keys

_BITS = tl.constexpr(COARSE_BITS)


def copy_coarsely_into(
    keys: torch.Tensor, pages: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor
) -> None:
    """keys [kv_heads, slots, d] of bfloat16 or float32; pages int64 [n], of the exact pool -> codes uint8 [kv_heads,
    rows, 64, d / 4], scale and minimum float16 [kv_heads, rows, d], written at rows of the same numbers."""
    kv_heads, _, d = keys.shape
    if keys.stride()[1:] != (d, 1):
        raise ValueError(f"keys: got strides {keys.stride()}, need slots of {d} entries next to each other")
    _check(codes, scale, minimum)
    if pages.shape[0]:
        _copy_coarsely[(pages.shape[0], kv_heads)](
            keys, pages, codes, scale, minimum, keys.stride(0), codes.shape[1],
            DIM=d, WIDE=triton.next_power_of_2(d // 8), num_warps=8,
        )  # fmt: skip


def logical_statistics(
    codes: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor,
    rows: torch.Tensor,
    logical: int,
    out_mean: torch.Tensor,
    out_std: torch.Tensor,
) -> None:
    """As `kernels.kv_codec.logical_statistics`, of rows `rows` int32 or int64 [n] of a layer's coarse keys, into
    out_mean and out_std float16 [kv_heads, n, 64 / logical, d]."""
    kv_heads, _, d = scale.shape
    _check(codes, scale, minimum, out_mean, out_std)
    if rows.shape[0]:
        _logical_statistics[(rows.shape[0], kv_heads)](
            codes, scale, minimum, rows, out_mean, out_std, codes.shape[1], rows.shape[0],
            LOGICAL=logical, PARTS=64 // logical, DIM=d, WIDE=triton.next_power_of_2(d // 8),
            num_warps=4 if d <= 128 else 8,
        )  # fmt: skip


def _check(*stored: torch.Tensor) -> None:
    if not all(x.is_contiguous() for x in stored):
        raise ValueError("coarse keys and statistics of a layer must be contiguous")


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["pages"])
def _copy_coarsely(keys, pages, codes, scale, minimum, head_stride, rows, DIM: tl.constexpr, WIDE: tl.constexpr):
    head = tl.program_id(1).to(tl.int64)
    page = tl.load(pages + tl.program_id(0)).to(tl.int64)
    if page < 0:
        return
    EIGHTH: tl.constexpr = DIM // 8
    token, part, at = tl.arange(0, 64), tl.arange(0, 8), tl.arange(0, WIDE)
    inside = (at < EIGHTH)[None, None, :] & (part >= 0)[None, :, None] & (token >= 0)[:, None, None]
    where = token[:, None, None] * DIM + part[None, :, None] * EIGHTH + at[None, None, :]
    x = tl.load(keys + head * head_stride + page * (64 * DIM) + where, mask=inside, other=0.0).to(tl.float32)
    _pack_keys(x, inside, codes, scale, minimum, head * rows + page, _BITS, False, DIM, WIDE)


@triton.jit(do_not_specialize=["stored", "count"], do_not_specialize_on_alignment=["rows"])
def _logical_statistics(
    codes, scale, minimum, rows, out_mean, out_std, stored, count,
    LOGICAL: tl.constexpr, PARTS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    entry, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    number = head * stored + tl.load(rows + tl.program_id(0)).to(tl.int64)
    EIGHTH: tl.constexpr = DIM // 8
    part, at = tl.arange(0, 8), tl.arange(0, WIDE)
    code = _load_codes(codes + number * (8 * DIM * _BITS), _BITS, DIM, WIDE)
    code = tl.reshape(code, [PARTS, LOGICAL, 8, WIDE])
    total, squares = tl.sum(code, 1), tl.sum(code * code, 1)
    average = total.to(tl.float32) * (1.0 / LOGICAL)
    variance = (squares * LOGICAL - total * total).to(tl.float32) * (1.0 / (LOGICAL * LOGICAL))  # exact
    channel = part[:, None] * EIGHTH + at[None, :]
    channels = (at < EIGHTH)[None, :] & (part >= 0)[:, None]
    step = tl.load(scale + number * DIM + channel, mask=channels, other=0.0).to(tl.float32)
    base = tl.load(minimum + number * DIM + channel, mask=channels, other=0.0).to(tl.float32)
    mean = base[None, :, :] + step[None, :, :] * average
    std = step[None, :, :] * tl.sqrt_rn(variance)
    to = ((head * count + entry) * PARTS + tl.arange(0, PARTS))[:, None, None] * DIM + channel[None, :, :]
    tl.store(out_mean + to, mean.to(tl.float16), mask=channels[None, :, :])
    tl.store(out_std + to, std.to(tl.float16), mask=channels[None, :, :])
