"""Page scores by coarse keys on a GPU, for one decode token: every summary is read once, in place.

score = max over query heads of logsumexp over the page's tokens of factor * q . (code * scale + minimum), as in
`kernels.page_scores.coarse_scores`. Codes enter tensor cores where they lie: 16 bits, all but two of them masked out,
are a float16 of the code times a power of two, which is taken back from the other factor, query times scale. That one
is rounded to float16 or, for a float32 query, is the sum of two. Sums are float32. Two float16 share a register, and
what is done to both at once is written in PTX, as Triton would take them apart.

Nothing here waits for the device, and the grid depends on the page table's capacity alone.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# (kernels are in a language that only looks like Python to a type checker)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

PAGE = 64
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Config:
    """`pages`: at a time. `programs`: at most, over all KV heads; a head's programs take turns at its pages.
    `registers`: of a thread, at most. `stages`: 2 to read pages ahead."""

    pages: int
    programs: int
    num_warps: int
    registers: int | None = None
    stages: int = 2


def configuration(head_dim: int, group: int, exact: bool) -> Config:
    """For `group` query heads to a KV head; `exact`: the query is bfloat16. Three programs, of 168 registers, fit on
    each of an H200's 132 multiprocessors."""
    small = head_dim <= 128 and group <= 8
    return Config(8 if small else 4, 3 * 132, 4, 168 if small and exact else None)


def score_pages_by_coarse_keys(
    q: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor,
    factor: float,
    table: torch.Tensor,
    exact_pages: int,
    length: torch.Tensor,
    budget: torch.Tensor,
    streaming: torch.Tensor | None,
    scores: torch.Tensor,
    config: Config | None = None,
) -> None:
    """Scores of all KV pages that have a summary, p < (length - 1) // 64, into scores float32 [kv_heads, capacity].

    q [heads, d] of bfloat16 or float32, rotated. codes uint8 [kv_heads, rows, 64, d / 4], scale and minimum float16
    [kv_heads, rows, d], as of `kernels.kv_codec.coarse_keys`. factor: of a product of query and key. table,
    exact_pages, length, budget, streaming as for `kernels.page_scores.triton.score_pages`. NaN in a page's scale or
    minimum makes its score infinite, as what cannot be judged must be read.
    """
    heads, d = q.shape
    kv_heads = codes.shape[0]
    parts = (("q", q), ("codes", codes[0]), ("scale", scale[0]), ("minimum", minimum[0]), ("scores", scores))
    for name, x in parts:
        if not x.is_contiguous():
            raise ValueError(f"{name}: got strides {x.stride()} for shape {list(x.shape)}, need it contiguous")
    if scale.stride(0) != minimum.stride(0):
        raise ValueError("minimum: its KV heads must lie as those of scale do")
    config = config or configuration(d, heads // kv_heads, q.dtype == torch.bfloat16)
    capacity = scores.shape[1]
    programs = min(triton.cdiv(capacity, config.pages), max(1, config.programs // kv_heads))
    _score_coarse[(programs, kv_heads)](
        q, codes, scale, minimum, table, length, budget, streaming, scores, codes.stride(0), scale.stride(0),
        exact_pages, capacity, factor * _LOG2_E,
        GROUP=heads // kv_heads, COLUMNS=max(8, triton.next_power_of_2(heads // kv_heads)), DIM=d,
        WIDE=max(16, triton.next_power_of_2(d // 4)), ALL=max(16, triton.next_power_of_2(d)), PAGES=config.pages,
        PAGE_TOKENS=PAGE, PACKED=isinstance(_score_coarse, triton.JITFunction),
        num_warps=config.num_warps, num_stages=config.stages, maxnreg=config.registers,
    )  # fmt: skip


@triton.jit
def _shown(x, MASK: tl.constexpr, PACKED: tl.constexpr):
    """int16, all but the bits of MASK masked out, as float16. PACKED: two in an instruction."""
    if PACKED:
        return tl.inline_asm_elementwise(
            "and.b32 $0, $1, $2;", "=r,r,r", [x, tl.full(x.shape, MASK, tl.int16)], tl.float16, True, 2
        )
    else:
        return (x & MASK).to(tl.float16, bitcast=True)


@triton.jit
def _widened(x, PACKED: tl.constexpr):
    """uint8 as int16. PACKED: two in an instruction."""
    if PACKED:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $2, 0, 0x4140;\nprmt.b32 $1, $2, 0, 0x4342;", "=r,=r,r", [x], tl.int16, True, 4
        )
    else:
        return x.to(tl.int16)


@triton.jit
def _product(x, y, PACKED: tl.constexpr):
    """The product of float16 tensors. PACKED: two in an instruction."""
    if PACKED:
        return tl.inline_asm_elementwise(
            "mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [x, tl.broadcast_to(y, x.shape)], tl.float16, True, 2
        )
    else:
        return x * y


@triton.jit
def _load_quarter(
    q, power, QUARTER: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr
):
    """Entries of the group's heads for the channels of one code in each byte, times `power`: [1, COLUMNS, WIDE]."""
    at, column = tl.arange(0, WIDE), tl.arange(0, COLUMNS)
    # A head that is there twice changes no maximum.
    where = (column % GROUP)[None, :, None] * DIM + QUARTER * (DIM // 4) + at[None, None, :]
    x = tl.load(q + where, mask=(at < DIM // 4)[None, None, :], other=0.0)
    EXACT: tl.constexpr = x.dtype != tl.float32
    x = x.to(tl.float32) * (power * 0.25**QUARTER)  # codes come out 4**QUARTER times too large
    if EXACT:
        return x.to(tl.float16)
    else:
        return x


@triton.jit
def _add_quarter(
    sums, codes, scale, query, there, QUARTER: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, PACKED: tl.constexpr
):
    """sums [pages, tokens, COLUMNS] + what the channels of one code in each byte add, in steps of 2**-24."""
    at = tl.arange(0, WIDE)
    inside = there[:, None, None] & (at < DIM // 4)[None, None, :]
    steps = tl.load(scale[:, None, None] + QUARTER * (DIM // 4) + at[None, None, :], mask=inside, other=0.0)
    steps = tl.broadcast_to(steps, [steps.shape[0], query.shape[1], WIDE])
    keys = _shown(codes, 3 << (2 * QUARTER), PACKED)
    if query.dtype == tl.float16:
        return tl.dot(keys, tl.permute(_product(steps, query, PACKED), [0, 2, 1]), sums)
    else:
        product = steps.to(tl.float32) * query
        rounded = product.to(tl.float16)
        sums = tl.dot(keys, tl.permute(rounded, [0, 2, 1]), sums)
        return tl.dot(keys, tl.permute((product - rounded.to(tl.float32)).to(tl.float16), [0, 2, 1]), sums)


@triton.jit(do_not_specialize=["factor"], do_not_specialize_on_alignment=["length", "budget", "streaming"])
def _score_coarse(
    q, codes, scale, minimum, table, length, budget, streaming, scores, codes_stride, scale_stride, exact_pages,
    capacity, factor,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, ALL: tl.constexpr,
    PAGES: tl.constexpr, PAGE_TOKENS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    head, begin = tl.program_id(1), tl.program_id(0) * PAGES
    tokens, allowed = tl.load(length), tl.load(budget)
    known = (tokens - 1) // PAGE_TOKENS
    if (begin >= known) | (known + 1 <= allowed):
        return
    if streaming is not None:  # noqa: SIM102, known when the kernel is compiled
        if tl.load(streaming + head) != 0:
            return
    BYTES: tl.constexpr = DIM // 4
    MANY: tl.constexpr = max(16, PAGES)
    # A warp's load is one stretch of a page, and its page the same as in the products.
    STRETCH: tl.constexpr = min(512, PAGE_TOKENS * WIDE)
    STRETCHES: tl.constexpr = PAGE_TOKENS * WIDE // STRETCH
    byte = tl.arange(0, STRETCHES)[:, None] * STRETCH + tl.arange(0, STRETCH)[None, :]
    stored = byte >= 0
    if WIDE != BYTES:
        stored = byte % WIDE < BYTES
        byte = byte // WIDE * BYTES + byte % WIDE

    q += head * (GROUP * DIM)
    channel, column = tl.arange(0, ALL), tl.arange(0, COLUMNS)
    query = tl.load(q + (column % GROUP)[:, None] * DIM + channel[None, :], mask=(channel < DIM)[None, :], other=0.0)
    EXACT: tl.constexpr = query.dtype != tl.float32
    query = query.to(tl.float32)
    # The power of two that takes the largest entry to 0.5..1, so that no scale takes it out of range, and the one that
    # takes scores back, which are in steps of the smallest float16, 2**-24.
    exponent = tl.max(tl.max(tl.abs(query), 1), 0).to(tl.int32, bitcast=True) >> 23
    exponent = tl.minimum(tl.maximum(exponent, 1), 252)
    up = ((253 - exponent) << 23).to(tl.float32, bitcast=True)
    down = (exponent << 23).to(tl.float32, bitcast=True) * 2.0 * (factor * 16777216.0)
    query = query * up
    whole = query.to(tl.float16)
    rest = tl.trans((query - whole.to(tl.float32)).to(tl.float16))
    whole = tl.trans(whole)
    query0 = _load_quarter(q, up, 0, GROUP, COLUMNS, DIM, WIDE)
    query1 = _load_quarter(q, up, 1, GROUP, COLUMNS, DIM, WIDE)
    query2 = _load_quarter(q, up, 2, GROUP, COLUMNS, DIM, WIDE)
    query3 = _load_quarter(q, up, 3, GROUP, COLUMNS, DIM, WIDE)
    codes += head.to(tl.int64) * codes_stride
    scale += head.to(tl.int64) * scale_stride
    minimum += head.to(tl.int64) * scale_stride
    scores += head.to(tl.int64) * capacity

    for first in tl.range(begin, known, tl.num_programs(0) * PAGES):
        page = first + tl.arange(0, PAGES)
        there = page < known
        place = tl.load(table + page, mask=there, other=0)
        place = tl.where(place >= 0, place, exact_pages + ~place).to(tl.int64)
        # A product has 16 rows or more: some pages are there twice.
        again = first + tl.arange(0, MANY) % PAGES
        own = tl.load(table + again, mask=again < known, other=0)
        own = tl.where(own >= 0, own, exact_pages + ~own).to(tl.int64)
        inside = (again < known)[:, None] & (channel < DIM)[None, :]
        base = tl.load(minimum + own[:, None] * DIM + channel[None, :], mask=inside, other=0.0)
        at = place[:, None, None] * (PAGE_TOKENS * BYTES) + byte[None, :, :]
        held = tl.load(codes + at, mask=there[:, None, None] & stored[None, :, :], other=0)
        centre = tl.dot(base, whole)
        if not EXACT:
            centre = tl.dot(base, rest, centre)
        if MANY > PAGES:
            centre = tl.max(tl.reshape(centre, [MANY // PAGES, PAGES, COLUMNS]), 0)
        held = _widened(tl.reshape(held, [PAGES, PAGE_TOKENS, WIDE]), PACKED)
        sums = tl.broadcast_to(centre[:, None, :] * 2.0**-24, [PAGES, PAGE_TOKENS, COLUMNS])
        steps = scale + place * DIM
        sums = _add_quarter(sums, held, steps, query0, there, 0, DIM, WIDE, PACKED)
        sums = _add_quarter(sums, held, steps, query1, there, 1, DIM, WIDE, PACKED)
        sums = _add_quarter(sums, held, steps, query2, there, 2, DIM, WIDE, PACKED)
        sums = _add_quarter(sums, held, steps, query3, there, 3, DIM, WIDE, PACKED)
        # All heads are measured from the page's largest token: the head that scores highest has no sum below 1.
        # Subtracted before it is scaled: scaled first, one fused instruction would round only one of the two.
        top = tl.max(tl.max(sums, 1, keep_dims=True), 2, keep_dims=True)
        weight = tl.max(tl.sum(tl.exp2((sums - top) * down), 1, keep_dims=True), 2, keep_dims=True)
        best = tl.reshape((top * down + tl.log2(weight)) * 0.6931471805599453, [PAGES])
        best = tl.where(best == best, best, float("inf"))
        tl.store(scores + page, best, mask=there)
