"""The KV codec on a GPU, where pages lie: packing and summarizing complete pages, and unpacking into a workspace.

Codes, scales and minima are those of `kernels.kv_codec.pack_pages` on the CPU to the bit, and unpacked numbers those of
`unpack_page_keys` and `unpack_page_values`, rounded once to the type of the output. A NaN makes its own group NaN; the
codes of such a group mean nothing. Means and standard deviations may differ in the last bit of float16: they are summed
in another order. Divisions are correctly rounded, and e4m3 numbers are made and read with integer arithmetic, so that
every card computes the same.

A tile is one KV page of one KV head, [64, 8, d / 8]: in every format the codes that share a byte lie in different
eighths of the head dimension (`kernels.kv_codec.bits`), so they meet in a sum over the middle axis.

Nothing here waits for the device. Page numbers below 0 in `source`, or in `pages` of `summarize_into`, are skipped: a
recorded launch can so do nothing.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels.kv_codec.formats import PackedFormat, PackedPages

if TYPE_CHECKING:
    from kernels.decode_attention.paged import PagedKv

_LARGEST = tl.constexpr(65504.0)  # of float16
_LARGEST_FLOAT8 = tl.constexpr(448.0)  # of e4m3
_SMALLEST_SCALE = tl.constexpr(2.0**-20)
_TO_INTEGER = tl.constexpr(8388608.0)  # 2**23: added to a number from 0 to 255, leaves it rounded in the low byte


def pack_into(
    keys: torch.Tensor,
    values: torch.Tensor,
    source: torch.Tensor,
    packed: PackedPages,
    fmt: PackedFormat,
    target: torch.Tensor,
) -> None:
    """Pages `source` of the exact pool into pages `target` of `packed`, of one layer.

    keys, values [kv_heads, slots, d] of bfloat16 or float32, a page being 64 slots, values rotated; source, target
    int64 [n]; packed [kv_heads, pages, ...].
    """
    kv_heads, _, d = keys.shape
    _check(keys, values, packed)
    if source.shape[0]:
        _pack[(source.shape[0], kv_heads, 2)](
            keys, values, source, target, *packed, keys.stride(0), packed.key_codes.shape[1],
            KEY_BITS=fmt.key_bits, VALUE_BITS=fmt.value_bits, FLOAT8=fmt.float8, DIM=d, WIDE=_eighth(d),
            num_warps=8,
        )  # fmt: skip


def summarize_into(keys: torch.Tensor, pages: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> None:
    """Mean and population standard deviation of the keys of each logical page.

    keys [kv_heads, slots, d] of bfloat16 or float32; pages int64 [n], of the exact pool; mean, std float16 [kv_heads,
    rows, logical, d], written at rows of the same numbers.
    """
    kv_heads, _, d = keys.shape
    _check(keys, keys, (mean, std))
    if pages.shape[0]:
        _summarize[(pages.shape[0], kv_heads)](
            keys, pages, mean, std, keys.stride(0), mean.stride(0),
            LOGICAL=mean.shape[2], DIM=d, WIDE=triton.next_power_of_2(d), num_warps=_warps(d),
        )  # fmt: skip


def unpack_into(kv: PagedKv, table: torch.Tensor, count: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    """The first `count` pages of a sequence, exact, packed or demoted, into keys and values [kv_heads, count * 64 or
    more, d] of bfloat16 or float32. table int32 [at least count]: their places, as `PagedKv` numbers them."""
    kv_heads, _, d = kv.keys.shape
    _check(kv.keys, kv.values, (*(kv.packed or ()), *(kv.cold or ())))
    for name, x in (("keys", keys), ("values", values)):
        if x.stride()[1:] != (d, 1) or x.stride(0) != keys.stride(0):
            raise ValueError(f"{name}: got strides {x.stride()}, need tokens of {d} entries next to each other")
    fmt = kv.format or PackedFormat(8, 8)
    packed = kv.packed or _no_pages(kv.keys)
    cold, cold_format = kv.cold or packed, kv.cold_format or fmt
    if count:
        _unpack[(count, kv_heads, 2)](
            kv.keys, kv.values, *packed, *cold, table, keys, values,
            kv.keys.stride(0), keys.stride(0), packed.key_codes.shape[1], cold.key_codes.shape[1],
            KEY_BITS=fmt.key_bits, VALUE_BITS=fmt.value_bits, COLD_VALUE_BITS=cold_format.value_bits,
            FLOAT8=fmt.float8, HAS_PACKED=kv.packed is not None, HAS_COLD=kv.cold is not None,
            DIM=d, WIDE=_eighth(d), num_warps=_warps(d),
        )  # fmt: skip


def _check(keys: torch.Tensor, values: torch.Tensor, stored: tuple[torch.Tensor, ...]) -> None:
    d = keys.shape[2]
    for name, x in (("keys", keys), ("values", values)):
        if x.stride()[1:] != (d, 1) or x.stride(0) != keys.stride(0):
            raise ValueError(f"{name}: got strides {x.stride()}, need slots of {d} entries next to each other")
    if not all(x.is_contiguous() for x in stored):
        raise ValueError("packed pages and summaries of a layer must be contiguous")


def _no_pages(keys: torch.Tensor) -> PackedPages:
    codes, scales = keys.view(torch.uint8)[:, :0], keys.view(torch.float16)[:, :0]
    return PackedPages(codes, scales, scales, codes, scales, scales)


def _eighth(d: int) -> int:
    return triton.next_power_of_2(d // 8)


def _warps(d: int) -> int:
    return 4 if d <= 128 else 8


@triton.jit
def _poisoned(x, inside, AXIS: tl.constexpr):
    return tl.max((inside & (x != x)).to(tl.int32), AXIS) != 0


@triton.jit
def _within(x, BOUND: tl.constexpr):
    """x from -BOUND to BOUND; NaN stays NaN."""
    return tl.where(x > BOUND, BOUND, tl.where(x < -BOUND, -BOUND, x))


@triton.jit
def _quotient(x, y):
    return tl.div_rn(x, tl.zeros_like(x) + y)


@triton.jit
def _grid(x, inside, AXIS: tl.constexpr, BITS: tl.constexpr):
    """-> scale and minimum, float16, of the groups that `AXIS` runs along."""
    low = _within(tl.min(tl.where(inside, x, float("inf")), AXIS), _LARGEST)
    high = _within(tl.max(tl.where(inside, x, -float("inf")), AXIS), _LARGEST)
    low = tl.where(_poisoned(x, inside, AXIS), float("nan"), low)  # and with it all that follows
    if BITS <= 3:  # the points are the centres of cells
        half_cell = (high - low) * 2.0 ** -(BITS + 1)
        low, high = low + half_cell, high - half_cell
    minimum = low.to(tl.float16)
    scale = _quotient(high - minimum.to(tl.float32), 2.0**BITS - 1)
    return tl.where(scale < _SMALLEST_SCALE, _SMALLEST_SCALE, scale).to(tl.float16), minimum


@triton.jit
def _codes(x, scale, minimum, BITS: tl.constexpr):
    """-> int32. scale and minimum float16, of x's shape or broadcast to it."""
    code = _quotient(x - minimum.to(tl.float32), scale.to(tl.float32))
    code = tl.minimum(tl.maximum(code, 0.0), 2.0**BITS - 1)
    return (code + _TO_INTEGER).to(tl.int32, bitcast=True) & 255


@triton.jit
def _float8_scale(largest, poisoned):
    """largest: absolute value of a group -> float16."""
    scale = tl.maximum(_quotient(tl.minimum(largest, _LARGEST), _LARGEST_FLOAT8), _SMALLEST_SCALE)
    return tl.where(poisoned, float("nan"), scale).to(tl.float16)


@triton.jit
def _float8_codes(x, scale):
    """-> e4m3 as int32: the nearest number, of two equally near ones the even one."""
    x = _within(_quotient(x, scale.to(tl.float32)), _LARGEST_FLOAT8)
    pattern = x.to(tl.int32, bitcast=True)
    size = pattern & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    small = (tl.abs(x) * 512.0 + _TO_INTEGER).to(tl.int32, bitcast=True) & 255
    return tl.where(size < 0x3C800000, small, normal) | ((pattern >> 24) & 128)  # below 2**-6 steps are 2**-9


@triton.jit
def _float8_around(x, inside):
    """x [64, ...], grouped along its first axis -> scale and middle of the groups, float16, and codes of x, int32."""
    x = _within(x, _LARGEST)
    poisoned = _poisoned(x, inside, 0)
    middle = tl.where(poisoned, float("nan"), (tl.min(x, 0) + tl.max(x, 0)) * 0.5 + 0.0).to(tl.float16)  # never -0
    x -= middle.to(tl.float32)[None, :, :]
    scale = _float8_scale(tl.max(tl.abs(x), 0), poisoned)
    return scale, middle, _float8_codes(x, scale[None, :, :])


@triton.jit
def _store_codes(into, codes, BITS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr):
    """codes int32 [64, 8, WIDE] of one page -> bytes at `into`."""
    EIGHTH: tl.constexpr = DIM // 8
    ROW_BYTES: tl.constexpr = DIM * BITS // 8
    token, part, at = tl.arange(0, 64), tl.arange(0, 8), tl.arange(0, WIDE)
    if BITS == 8:
        where = token[:, None, None] * ROW_BYTES + part[None, :, None] * EIGHTH + at[None, None, :]
        tl.store(into + where, codes.to(tl.uint8), mask=(at < EIGHTH)[None, None, :])
    else:
        LOW_BITS: tl.constexpr = 4 if BITS == 4 else 2
        RUNS: tl.constexpr = 8 // LOW_BITS  # the codes of a byte
        LEFT: tl.constexpr = 8 // RUNS
        shift = part // LEFT * LOW_BITS
        low = (codes & ((1 << LOW_BITS) - 1)) << shift[None, :, None]
        low = tl.sum(tl.reshape(low, [64, RUNS, LEFT, WIDE]), 1)
        where = token[:, None, None] * ROW_BYTES + tl.arange(0, LEFT)[None, :, None] * EIGHTH + at[None, None, :]
        tl.store(into + where, low.to(tl.uint8), mask=(at < EIGHTH)[None, None, :])
        if BITS == 3:
            high = tl.sum((codes >> 2) << part[None, :, None], 1)
            where = token[:, None] * ROW_BYTES + DIM // 4 + at[None, :]
            tl.store(into + where, high.to(tl.uint8), mask=(at < EIGHTH)[None, :])


@triton.jit
def _load_codes(source, BITS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr):
    """The inverse: -> int32 [64, 8, WIDE]."""
    EIGHTH: tl.constexpr = DIM // 8
    ROW_BYTES: tl.constexpr = DIM * BITS // 8
    token, part, at = tl.arange(0, 64), tl.arange(0, 8), tl.arange(0, WIDE)
    inside = (at < EIGHTH)[None, None, :]
    row = token[:, None, None] * ROW_BYTES + at[None, None, :]
    if BITS == 8:
        codes = tl.load(source + row + part[None, :, None] * EIGHTH, mask=inside, other=0).to(tl.int32)
    else:
        LOW_BITS: tl.constexpr = 4 if BITS == 4 else 2
        LEFT: tl.constexpr = LOW_BITS
        low = tl.load(source + row + (part % LEFT)[None, :, None] * EIGHTH, mask=inside, other=0).to(tl.int32)
        codes = (low >> (part // LEFT * LOW_BITS)[None, :, None]) & ((1 << LOW_BITS) - 1)
        if BITS == 3:
            high = tl.load(source + row + DIM // 4, mask=inside, other=0).to(tl.int32)
            codes |= ((high >> part[None, :, None]) & 1) << 2
    return codes


@triton.jit
def _number(codes, FLOAT8: tl.constexpr):
    """What a code stands for before scale and minimum, float32. An e4m3's bits, moved, are a float16 2**8 too small."""
    if FLOAT8:
        pattern = ((codes & 127) << 7) | ((codes & 128) << 8)
        return pattern.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    else:
        return codes.to(tl.float32)


@triton.jit
def _pack_keys(
    x, inside, codes, scales, minima, number, BITS: tl.constexpr, FLOAT8: tl.constexpr, DIM: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """x float32 [64, 8, WIDE] -> page `number` of the pool."""
    EIGHTH: tl.constexpr = DIM // 8
    part, at = tl.arange(0, 8), tl.arange(0, WIDE)
    channel = part[:, None] * EIGHTH + at[None, :]
    channels = (at < EIGHTH)[None, :] & (part >= 0)[:, None]
    if FLOAT8:
        scale, minimum, code = _float8_around(x, inside)
    else:
        scale, minimum = _grid(x, inside, 0, BITS)
        code = _codes(x, scale[None, :, :], minimum[None, :, :], BITS)
    tl.store(minima + number * DIM + channel, minimum, mask=channels)
    tl.store(scales + number * DIM + channel, scale, mask=channels)
    _store_codes(codes + number * (8 * DIM * BITS), code, BITS, DIM, WIDE)


@triton.jit
def _pack_values(
    x, inside, codes, scales, minima, number, BITS: tl.constexpr, FLOAT8: tl.constexpr, DIM: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """As `_pack_keys`."""
    flat, full = tl.reshape(x, [64, 8 * WIDE]), tl.reshape(inside, [64, 8 * WIDE])
    if FLOAT8:
        poisoned = tl.max(_poisoned(flat, full, 1).to(tl.int32), 0) != 0
        scale = _float8_scale(tl.max(tl.max(tl.abs(flat), 1), 0), poisoned)
        code = _float8_codes(x, scale)
        tl.store(scales + number, scale)
    else:
        token = number * 64 + tl.arange(0, 64)
        scale, minimum = _grid(flat, full, 1, BITS)
        code = _codes(x, scale[:, None, None], minimum[:, None, None], BITS)
        tl.store(scales + token, scale)
        tl.store(minima + token, minimum)
    _store_codes(codes + number * (8 * DIM * BITS), code, BITS, DIM, WIDE)


@triton.jit
def _pack(
    keys, values, source, target,
    key_codes, key_scale, key_minimum, value_codes, value_scale, value_minimum, head_stride, pages,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, FLOAT8: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    entry, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    page = tl.load(source + entry).to(tl.int64)
    if page < 0:
        return
    number = head * pages + tl.load(target + entry).to(tl.int64)
    EIGHTH: tl.constexpr = DIM // 8
    token, part, at = tl.arange(0, 64), tl.arange(0, 8), tl.arange(0, WIDE)
    inside = (at < EIGHTH)[None, None, :] & (part >= 0)[None, :, None] & (token >= 0)[:, None, None]
    where = token[:, None, None] * DIM + part[None, :, None] * EIGHTH + at[None, None, :]
    first = head * head_stride + page * (64 * DIM)
    if tl.program_id(2) == 0:
        x = tl.load(keys + first + where, mask=inside, other=0.0).to(tl.float32)
        _pack_keys(x, inside, key_codes, key_scale, key_minimum, number, KEY_BITS, FLOAT8, DIM, WIDE)
    else:
        x = tl.load(values + first + where, mask=inside, other=0.0).to(tl.float32)
        _pack_values(x, inside, value_codes, value_scale, value_minimum, number, VALUE_BITS, FLOAT8, DIM, WIDE)


@triton.jit
def _summarize(
    keys, pages, mean, std, head_stride, summary_stride,
    LOGICAL: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    page = tl.load(pages + tl.program_id(0)).to(tl.int64)
    if page < 0:
        return
    TOKENS: tl.constexpr = 64 // LOGICAL
    token, at = tl.arange(0, 64), tl.arange(0, WIDE)
    keys += head * head_stride + page * (64 * DIM)
    where = token[:, None] * DIM + at[None, :]
    x = _within(tl.load(keys + where, mask=(at < DIM)[None, :], other=0.0).to(tl.float32), _LARGEST)
    x = tl.reshape(x, [LOGICAL, TOKENS, WIDE])
    average = tl.sum(x, 1) * (1.0 / TOKENS)
    rest = x - average[:, None, :]
    deviation = tl.sqrt_rn(tl.sum(rest * rest, 1) * (1.0 / TOKENS))
    part = tl.arange(0, LOGICAL)
    where = head * summary_stride + page * (LOGICAL * DIM) + part[:, None] * DIM + at[None, :]
    tl.store(mean + where, average.to(tl.float16), mask=(at < DIM)[None, :])
    tl.store(std + where, deviation.to(tl.float16), mask=(at < DIM)[None, :])


@triton.jit
def _unpacked_keys(
    codes, scale, minimum, number, BITS: tl.constexpr, FLOAT8: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr
):
    EIGHTH: tl.constexpr = DIM // 8
    part, at = tl.arange(0, 8), tl.arange(0, WIDE)
    channel = part[:, None] * EIGHTH + at[None, :]
    channels = (at < EIGHTH)[None, :] & (part >= 0)[:, None]
    x = _number(_load_codes(codes + number * (8 * DIM * BITS), BITS, DIM, WIDE), FLOAT8)
    x = x * tl.load(scale + number * DIM + channel, mask=channels, other=0.0).to(tl.float32)[None, :, :]
    return x + tl.load(minimum + number * DIM + channel, mask=channels, other=0.0).to(tl.float32)[None, :, :]


@triton.jit
def _unpacked_values(
    codes, scale, minimum, number, BITS: tl.constexpr, FLOAT8: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr
):
    x = _number(_load_codes(codes + number * (8 * DIM * BITS), BITS, DIM, WIDE), FLOAT8)
    if FLOAT8:
        x *= tl.load(scale + number).to(tl.float32)
    else:
        token = number * 64 + tl.arange(0, 64)
        x = x * tl.load(scale + token).to(tl.float32)[:, None, None]
        x += tl.load(minimum + token).to(tl.float32)[:, None, None]
    return x


@triton.jit
def _unpack(
    exact_keys, exact_values, key_codes, key_scale, key_minimum, value_codes, value_scale, value_minimum,
    cold_key_codes, cold_key_scale, cold_key_minimum, cold_value_codes, cold_value_scale, cold_value_minimum,
    table, keys, values, head_stride, out_stride, pages, cold_pages,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, COLD_VALUE_BITS: tl.constexpr, FLOAT8: tl.constexpr,
    HAS_PACKED: tl.constexpr, HAS_COLD: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    page, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    place = tl.load(table + page).to(tl.int64)
    EIGHTH: tl.constexpr = DIM // 8
    token, part, at = tl.arange(0, 64), tl.arange(0, 8), tl.arange(0, WIDE)
    entry = token[:, None, None] * DIM + part[None, :, None] * EIGHTH + at[None, None, :]
    inside = (at < EIGHTH)[None, None, :]
    for_keys = tl.program_id(2) == 0
    x = tl.zeros([64, 8, WIDE], tl.float32)
    if place >= 0:
        first = head * head_stride + place * (64 * DIM)
        if for_keys:
            x = tl.load(exact_keys + first + entry, mask=inside, other=0.0).to(tl.float32)
        else:
            x = tl.load(exact_values + first + entry, mask=inside, other=0.0).to(tl.float32)
    elif HAS_PACKED:
        number = -1 - place
        if number < pages:
            number += head * pages
            if for_keys:
                x = _unpacked_keys(key_codes, key_scale, key_minimum, number, KEY_BITS, FLOAT8, DIM, WIDE)
            else:
                x = _unpacked_values(value_codes, value_scale, value_minimum, number, VALUE_BITS, FLOAT8, DIM, WIDE)
        elif HAS_COLD:
            number += head * cold_pages - pages
            if for_keys:
                x = _unpacked_keys(cold_key_codes, cold_key_scale, cold_key_minimum, number, KEY_BITS, False, DIM, WIDE)
            else:
                x = _unpacked_values(
                    cold_value_codes, cold_value_scale, cold_value_minimum, number, COLD_VALUE_BITS, False, DIM, WIDE
                )
    first = head * out_stride + page * (64 * DIM)
    if for_keys:
        tl.store(keys + first + entry, x.to(keys.dtype.element_ty), mask=inside)
    else:
        tl.store(values + first + entry, x.to(values.dtype.element_ty), mask=inside)
