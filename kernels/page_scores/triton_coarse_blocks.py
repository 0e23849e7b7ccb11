"""How much attention rows of a query block would give to listed KV pages, by coarse keys, on a card in two launches.

The first weighs every token of the pages: their codes are taken apart by the two bits that share a byte and meet the
query, times the page's scales, in float16 products with float32 sums; a block's queries are divided by their largest
entry first. The second makes shares of the weights, row by row, and keeps a page's largest.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false
# (kernels are in a language that only looks like Python to a type checker)

import torch
import triton
import triton.language as tl

from kernels.block_index import PAGE

_LOG2_E = 1.4426950408889634
_PAGES = 16  # of a program that weighs, one after the other
_TILE = 32  # pages that a program looks at together to make shares


def coarse_shares(
    q: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor,
    pages: torch.Tensor,
    allowed: torch.Tensor,
    factor: float,
) -> torch.Tensor:
    """As `kernels.page_scores.coarse_shares`."""
    kv_heads, blocks, rows, d = q.shape
    listed = pages.shape[2]
    q, codes, scale, minimum = (x.contiguous() for x in (q, codes, scale, minimum))
    pages, allowed = pages.contiguous(), allowed.contiguous()
    logs = torch.empty(kv_heads, blocks, listed, rows, device=q.device)
    padded = max(16, triton.next_power_of_2(rows))
    _logs[(triton.cdiv(listed, _PAGES), blocks, kv_heads)](
        q, codes, scale, minimum, pages, logs, blocks, rows, listed, codes.shape[1], factor * _LOG2_E,
        D=d, WIDE=max(16, triton.next_power_of_2(d // 4)), ROWS=padded, TOKENS=PAGE, PAGES=_PAGES,
        num_warps=4 if padded <= 64 and d <= 128 else 8, num_stages=2,
    )  # fmt: skip
    out = torch.empty(kv_heads, blocks, listed, device=q.device)
    _shares[(blocks, kv_heads)](
        logs, pages, allowed, out, blocks, rows, listed, allowed.shape[1], ROWS=padded, TILE=_TILE, num_warps=8
    )
    return out


@triton.jit
def _quarter(q, size, row, rows, QUARTER: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr):
    """The channels whose codes lie in the same two bits of each byte: float16 [rows, WIDE], at most 1."""
    at = tl.arange(0, WIDE)
    place = row[:, None] * D + QUARTER * (D // 4) + at[None, :]
    x = tl.load(q + place, mask=(row < rows)[:, None] & (at < D // 4)[None, :], other=0.0)
    return (x / size).to(tl.float16)


@triton.jit
def _add(sums, held, query, scale, QUARTER: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr):
    """sums float32 [rows, tokens] + the products of one quarter. held uint8 [WIDE, tokens]; scale: the page's."""
    at = tl.arange(0, WIDE)
    steps = tl.load(scale + QUARTER * (D // 4) + at, mask=at < D // 4, other=0.0)
    keys = ((held >> (2 * QUARTER)) & 3).to(tl.float16)
    return tl.dot(query * steps[None, :], keys, sums)


@triton.jit
def _base(query, minimum, QUARTER: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr):
    """What a quarter's minima add to every token: float32 [rows, 16], equal columns, so that tensor cores sum it."""
    at = tl.arange(0, WIDE)
    lowest = tl.load(minimum + QUARTER * (D // 4) + at, mask=at < D // 4, other=0.0)
    return tl.dot(query, tl.broadcast_to(lowest[:, None], (WIDE, 16)))


@triton.jit(do_not_specialize=["blocks", "rows", "listed", "count", "factor"])
def _logs(
    q, codes, scale, minimum, pages, out, blocks, rows, listed, count, factor,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, PAGES: tl.constexpr,
):  # fmt: skip
    first, block, head = tl.program_id(0) * PAGES, tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, at, token, channel = tl.arange(0, ROWS), tl.arange(0, WIDE), tl.arange(0, TOKENS), tl.arange(0, 4 * WIDE)
    mine = head * blocks + block
    q += mine * rows * D
    pages += mine * listed
    out += mine * listed * rows
    whole = tl.load(
        q + row[:, None] * D + channel[None, :], mask=(row < rows)[:, None] & (channel < D)[None, :], other=0.0
    )
    size = tl.maximum(tl.max(tl.abs(whole)), 1e-30)
    q0, q1 = _quarter(q, size, row, rows, 0, D, WIDE), _quarter(q, size, row, rows, 1, D, WIDE)
    q2, q3 = _quarter(q, size, row, rows, 2, D, WIDE), _quarter(q, size, row, rows, 3, D, WIDE)
    back = size * factor
    for entry in range(first, tl.minimum(first + PAGES, listed)):
        place = head * count + tl.load(pages + entry).to(tl.int64)
        byte = place * (TOKENS * (D // 4)) + token[None, :] * (D // 4) + at[:, None]
        held = tl.load(codes + byte, mask=(at < D // 4)[:, None], other=0)  # [bytes, tokens]
        steps, lowest = scale + place * D, minimum + place * D
        base = _base(q0, lowest, 0, D, WIDE) + _base(q1, lowest, 1, D, WIDE)
        base += _base(q2, lowest, 2, D, WIDE) + _base(q3, lowest, 3, D, WIDE)
        sums = tl.broadcast_to(tl.max(base, 1)[:, None], (ROWS, TOKENS))
        sums = _add(sums, held, q0, steps, 0, D, WIDE)
        sums = _add(sums, held, q1, steps, 1, D, WIDE)
        sums = _add(sums, held, q2, steps, 2, D, WIDE)
        sums = _add(sums, held, q3, steps, 3, D, WIDE) * back
        top = tl.max(sums, 1)
        tl.store(out + entry * rows + row, top + tl.log2(tl.sum(tl.exp2(sums - top[:, None]), 1)), mask=row < rows)


@triton.jit
def _weights(logs, pages, allowed, first, rows, listed, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Base-2 logarithms float32 [pages, rows]: -inf where there is nothing to see; and which pages are seen."""
    entry, row = first + tl.arange(0, TILE), tl.arange(0, ROWS)
    there = entry < listed
    page = tl.load(pages + entry, mask=there, other=0)
    seen = tl.load(allowed + page, mask=there, other=0) != 0
    at = entry[:, None] * rows + row[None, :]
    return tl.load(logs + at, mask=seen[:, None] & (row < rows)[None, :], other=float("-inf")), seen


@triton.jit(do_not_specialize=["blocks", "rows", "listed", "known"])
def _shares(logs, pages, allowed, out, blocks, rows, listed, known, ROWS: tl.constexpr, TILE: tl.constexpr):
    block, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    mine = head * blocks + block
    logs += mine * listed * rows
    pages += mine * listed
    out += mine * listed
    allowed += block.to(tl.int64) * known
    highest = tl.full([ROWS], -1e30, tl.float32)  # finite, so that differences are never NaN
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, listed, TILE):
        x, _ = _weights(logs, pages, allowed, first, rows, listed, ROWS, TILE)
        x = tl.where(x == x, x, float("-inf"))  # a page that cannot be judged takes nothing from the others
        higher = tl.maximum(highest, tl.max(x, 0))
        total = total * tl.exp2(highest - higher) + tl.sum(tl.exp2(x - higher[None, :]), 0)
        highest = higher
    whole = highest + tl.log2(total)
    for first in range(0, listed, TILE):
        x, seen = _weights(logs, pages, allowed, first, rows, listed, ROWS, TILE)
        unknown = tl.max((x != x).to(tl.int32), 1) != 0
        share = tl.max(tl.where(x == x, x - whole[None, :], float("-inf")), 1) * 0.6931471805599453
        share = tl.where(unknown, float("inf"), tl.where(seen, share, float("-inf")))
        entry = first + tl.arange(0, TILE)
        tl.store(out + entry, share, mask=entry < listed)
