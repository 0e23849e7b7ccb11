"""Products of one to eight rows with fp8 or bfloat16 weights: one pass over the weights at the speed of memory.

A program takes a few output rows and up to four rows of x. Its threads take 16 bytes of a weight row at a time as four
words, convert each byte to float32 in registers and multiply and add there, each word into a sum of its own; no tensor
core and no shared memory is needed. For a given weight every row of x is summed in the same order however many rows
there are, so that its result does not depend on them.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl

from kernels import card
from kernels.swiglu.triton import silu
from kernels.triton_overlap import let_next_start, options, overlaps, wait_for_earlier

FEW_ROWS = 8
_WARP_WORDS = 128  # 32 threads times 16 bytes


@dataclass(frozen=True, slots=True)
class Tile:
    """Of a program. `outs`: output rows; `steps`: loads of each of them that are under way together; `warps` share a
    row; `rows`: at most so many of x, further ones are left to programs that find the weights in the cache;
    `streamed`: weights go past the first cache, which then keeps x."""

    outs: int
    steps: int
    warps: int
    rows: int = 4
    streamed: bool = False


@lru_cache
def choose_tile(outs: int, inner: int) -> Tile:
    """The fixed choice for a weight [outs, inner], as measured on an H200 (docs/performance.md)."""
    if inner < 2048:
        return Tile(outs=2, steps=2, warps=1)
    if inner >= 8192 or outs <= 4096:  # few programs or long rows: two warps share one
        return Tile(outs=2, steps=2, warps=2)
    if outs >= 16384:
        return Tile(outs=4, steps=2, warps=1)
    return Tile(outs=2, steps=4, warps=1)


def matvec(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    gated: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """x bfloat16 [t, in], t from 1 to 8, weight [out, in] contiguous -> bfloat16 [t, out], summed in float32.

    weight: float8_e4m3fn with scales float32 [out], or bfloat16 without; bias [out] of a float type. `in` is a multiple
    of 4. `gated`: the rows of the weight are gates, then as many ups; the result is silu(gate) * up, [t, out / 2].
    Where kernels overlap the weight is read before the kernel ahead has ended: that one must not write it.
    """
    rows, (outs, inner) = x.shape[0], weight.shape
    fp8 = scales is not None
    tile = tile or choose_tile(outs, inner)
    columns = outs // 2 if gated else outs
    together = min(triton.next_power_of_2(rows), tile.rows)
    groups = triton.cdiv(rows, together)
    block = _WARP_WORDS * tile.warps
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device=x.device)
    overlap = overlaps(x.device)
    _matvec_kernel[(groups * triton.cdiv(columns, tile.outs // 2 if gated else tile.outs),)](
        x.contiguous(), weight.view(torch.int32), scales if fp8 else x, x if bias is None else bias, out,
        rows, outs, inner,
        FP8=fp8, HARDWARE=_converts_fp8(x.device), BIASED=bias is not None, GATED=gated, ROWS=together, GROUPS=groups,
        OUTS=tile.outs, STEPS=tile.steps, BLOCK=block, EVEN=inner % (block * tile.steps * (4 if fp8 else 2)) == 0,
        CACHE=".cg" if tile.streamed else "", OVERLAP=overlap, num_warps=tile.warps, **options(overlap),
    )  # fmt: skip
    return out


def _converts_fp8(device: torch.device) -> bool:
    return card.capability(device) >= (8, 9)


@triton.jit
def _matvec_kernel(
    x, weight, scales, bias, out, rows, outs, inner,
    FP8: tl.constexpr, HARDWARE: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr,
    GROUPS: tl.constexpr, OUTS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    CACHE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) // GROUPS
    first = tl.program_id(0) % GROUPS * ROWS
    PER_WORD: tl.constexpr = 4 if FP8 else 2
    words = inner // PER_WORD
    if FP8:
        x_words = x.to(tl.pointer_type(tl.int64), bitcast=True)
    else:
        x_words = x.to(tl.pointer_type(tl.int32), bitcast=True)
    sums = ()
    for _ in tl.static_range(OUTS * ROWS):
        sums += (tl.zeros([BLOCK], tl.float32),)
    let_next_start(OVERLAP)
    # Weights are under way while the kernel before this one still makes x.
    loaded = _load_weights(weight, tile, 0, words, outs, STEPS, OUTS, BLOCK, GATED, EVEN, CACHE)
    wait_for_earlier(OVERLAP)
    sums = _add(
        sums, loaded, x_words, 0, first, rows, words, STEPS, OUTS, ROWS, BLOCK, PER_WORD, EVEN, FP8, HARDWARE
    )  # fmt: skip
    for start in range(BLOCK * STEPS, words, BLOCK * STEPS):
        loaded = _load_weights(weight, tile, start, words, outs, STEPS, OUTS, BLOCK, GATED, EVEN, CACHE)
        sums = _add(
            sums, loaded, x_words, start, first, rows, words, STEPS, OUTS, ROWS, BLOCK, PER_WORD, EVEN, FP8, HARDWARE
        )  # fmt: skip
    for r in tl.static_range(ROWS):
        for o in tl.static_range(0, OUTS, 2 if GATED else 1):
            row = _weight_row(tile, o, outs, OUTS, GATED)
            y = _finished(sums[o * ROWS + r], scales, bias, row, FP8, HARDWARE, BIASED)
            column = tile * OUTS + o
            columns = outs
            if GATED:
                row = _weight_row(tile, o + 1, outs, OUTS, GATED)
                y = silu(y) * _finished(sums[(o + 1) * ROWS + r], scales, bias, row, FP8, HARDWARE, BIASED)
                column = tile * (OUTS // 2) + o // 2
                columns = outs // 2
            tl.store(out + (first + r) * columns + column, y.to(tl.bfloat16), (column < columns) & (first + r < rows))


@triton.jit
def _load_weights(
    weight, tile, start, words, outs, STEPS: tl.constexpr, OUTS: tl.constexpr, BLOCK: tl.constexpr,
    GATED: tl.constexpr, EVEN: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """STEPS blocks of words from `start` on, of each of a program's rows."""
    loaded = ()
    for step in tl.static_range(STEPS):
        at = start + step * BLOCK + tl.arange(0, BLOCK)
        for o in tl.static_range(OUTS):
            row = _weight_row(tile, o, outs, OUTS, GATED).to(tl.int64)
            loaded += (_load(weight + row * words + at, at < words, EVEN, CACHE),)
    return loaded


@triton.jit
def _add(
    sums, loaded, x_words, start, first, rows, words, STEPS: tl.constexpr, OUTS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, PER_WORD: tl.constexpr, EVEN: tl.constexpr, FP8: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """sums [OUTS * ROWS] of float32 [BLOCK], and what these weights add."""
    for step in tl.static_range(STEPS):
        at = start + step * BLOCK + tl.arange(0, BLOCK)
        xs = ()
        for r in tl.static_range(ROWS):
            row = tl.minimum(first + r, rows - 1)
            xs += _x_of(_load(x_words + row * words + at, at < words, EVEN, ""), FP8)
        added = ()
        for o in tl.static_range(OUTS):
            ws = _weights_of(loaded[step * OUTS + o], FP8, HARDWARE)
            for r in tl.static_range(ROWS):
                total = sums[o * ROWS + r]
                for i in tl.static_range(PER_WORD):
                    total = tl.fma(ws[i], xs[r * PER_WORD + i], total)
                added += (total,)
        sums = added
    return sums


@triton.jit
def _load(pointers, inside, EVEN: tl.constexpr, CACHE: tl.constexpr):
    if EVEN:
        return tl.load(pointers, cache_modifier=CACHE)
    else:
        return tl.load(pointers, inside, 0, cache_modifier=CACHE)


@triton.jit
def _weight_row(tile, o: tl.constexpr, outs, OUTS: tl.constexpr, GATED: tl.constexpr):
    """The o-th weight row of a program, the last one repeated past the end; gated: gates and ups take turns."""
    if GATED:
        half = outs // 2
        return tl.minimum(tile * (OUTS // 2) + o // 2, half - 1) + o % 2 * half
    else:
        return tl.minimum(tile * OUTS + o, outs - 1)


@triton.jit
def _finished(total, scales, bias, row, FP8: tl.constexpr, HARDWARE: tl.constexpr, BIASED: tl.constexpr):
    y = tl.sum(total, 0)
    if FP8:
        y *= tl.load(scales + row) * (1.0 if HARDWARE else 256.0)
    if BIASED:
        y += tl.load(bias + row).to(tl.float32)
    return y


@triton.jit
def _x_of(words, FP8: tl.constexpr):
    """Words of bfloat16 -> as many float32 tensors as a word has elements."""
    if FP8:
        return _bf16_pair(words.to(tl.int32)) + _bf16_pair((words >> 32).to(tl.int32))
    else:
        return _bf16_pair(words)


@triton.jit
def _weights_of(words, FP8: tl.constexpr, HARDWARE: tl.constexpr):
    """Words of four e4m3 or two bfloat16 -> as many float32 tensors; e4m3 without hardware is 1/256 of its value."""
    if not FP8:
        return _bf16_pair(words)
    elif HARDWARE:
        return tl.inline_asm_elementwise(
            _FOUR_E4M3, "=f,=f,=f,=f,r", [words], (tl.float32, tl.float32, tl.float32, tl.float32), True, 1
        )
    else:
        second, fourth = _e4m3_pair(words)
        first, third = _e4m3_pair(words << 8)
        return first, second, third, fourth


_FOUR_E4M3 = tl.constexpr(
    """{
    .reg .b16 bytes<2>, half<4>;
    .reg .b32 pair<2>;
    mov.b32 {bytes0, bytes1}, $4;
    cvt.rn.f16x2.e4m3x2 pair0, bytes0;
    cvt.rn.f16x2.e4m3x2 pair1, bytes1;
    mov.b32 {half0, half1}, pair0;
    mov.b32 {half2, half3}, pair1;
    cvt.f32.f16 $0, half0;
    cvt.f32.f16 $1, half1;
    cvt.f32.f16 $2, half2;
    cvt.f32.f16 $3, half3;
    }"""
)


@triton.jit
def _e4m3_pair(words):
    """Second and fourth byte: sign, exponent and fraction put where float16 has them, which suits subnormals too."""
    halves = (words & -0x7FFF8000) | ((words >> 1) & 0x3F803F80)
    low, high = halves.to(tl.int16), (halves >> 16).to(tl.int16)
    return low.to(tl.float16, bitcast=True).to(tl.float32), high.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _bf16_pair(words):
    return (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
