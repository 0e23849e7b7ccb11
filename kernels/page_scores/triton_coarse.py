"""Page scores by coarse keys on a GPU, for one decode token: every summary is read once, in place.

score = max over query heads of logsumexp over the page's tokens of factor * q . (code * scale + minimum), as in
`kernels.page_scores.coarse_scores`. Codes enter tensor cores where they lie: 16 bits, all but two of them masked out,
are a float16 of the code times a power of two, which is taken back from the other factor, query times scale. That one
is rounded to float16 or, for a float32 query, is the sum of two. Sums are float32.

Nothing here waits for the device, and the grid depends on the page table's capacity alone.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# (kernels are in a language that only looks like Python to a type checker)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton_overlap import let_next_start, options, overlaps, wait_for_earlier

PAGE = 64
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Config:
    """`pages`: of a program, at least 16."""

    pages: int
    num_warps: int


def configuration(head_dim: int) -> Config:
    return Config(pages=16, num_warps=8)


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
    config = config or configuration(d)
    capacity, pairs, overlap = scores.shape[1], codes.view(torch.int16), overlaps(q.device)
    _score_coarse[(triton.cdiv(capacity, config.pages), kv_heads)](
        q, pairs, scale, minimum, table, length, budget, streaming, scores, pairs.stride(0), scale.stride(0),
        exact_pages, capacity, factor * _LOG2_E,
        GROUP=heads // kv_heads, COLUMNS=max(8, triton.next_power_of_2(heads // kv_heads)), DIM=d,
        WIDE=max(16, triton.next_power_of_2(d // 8)), ALL=triton.next_power_of_2(d), PAGES=config.pages,
        PAGE_TOKENS=PAGE, OVERLAP=overlap, num_warps=config.num_warps, **options(overlap),
    )  # fmt: skip


@triton.jit(do_not_specialize=["factor"], do_not_specialize_on_alignment=["length", "budget", "streaming"])
def _score_coarse(
    q, codes, scale, minimum, table, length, budget, streaming, scores, codes_stride, scale_stride, exact_pages,
    capacity, factor,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, ALL: tl.constexpr,
    PAGES: tl.constexpr, PAGE_TOKENS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    let_next_start(OVERLAP)
    wait_for_earlier(OVERLAP)
    head, first = tl.program_id(1), tl.program_id(0) * PAGES
    tokens, allowed = tl.load(length), tl.load(budget)
    known = (tokens - 1) // PAGE_TOKENS
    if (first >= known) | (known + 1 <= allowed):
        return
    if streaming is not None:  # noqa: SIM102, known when the kernel is compiled
        if tl.load(streaming + head) != 0:
            return
    EIGHTH: tl.constexpr = DIM // 8  # pairs of bytes of a token, four codes in each byte
    page = first + tl.arange(0, PAGES)
    place = tl.load(table + page, mask=page < known, other=0)
    place = tl.where(place >= 0, place, exact_pages + ~place).to(tl.int64)
    pair, token, column = tl.arange(0, WIDE), tl.arange(0, PAGE_TOKENS), tl.arange(0, COLUMNS)
    inside = pair < EIGHTH
    listed = (page < known)[:, None] & inside[None, :]
    at = head.to(tl.int64) * codes_stride + place[:, None, None] * (PAGE_TOKENS * EIGHTH)
    at = at + token[None, :, None] * EIGHTH + pair[None, None, :]
    low_bytes = tl.load(codes + at, mask=listed[:, None, :], other=0)
    high_bytes = low_bytes >> 8

    channel = tl.arange(0, ALL)
    query = tl.load(
        q + (head * GROUP + column)[None, :] * DIM + channel[:, None],
        mask=(column < GROUP)[None, :] & (channel < DIM)[:, None],
        other=0.0,
    )
    EXACT: tl.constexpr = query.dtype != tl.float32
    query = query.to(tl.float32)
    # The power of two that takes the largest entry to 0.5..1, so that no scale takes it out of range, and the one that
    # takes scores back.
    exponent = tl.max(tl.max(tl.abs(query), 1), 0).to(tl.int32, bitcast=True) >> 23
    exponent = tl.minimum(tl.maximum(exponent, 1), 252)
    up = ((253 - exponent) << 23).to(tl.float32, bitcast=True)
    down = (exponent << 23).to(tl.float32, bitcast=True) * 2.0 * factor
    query = query * up
    high = query.to(tl.float16)
    start = head.to(tl.int64) * scale_stride + place[:, None] * DIM
    base = tl.load(
        minimum + start + channel[None, :], mask=(page < known)[:, None] & (channel < DIM)[None, :], other=0.0
    )
    centre = tl.dot(base, high)
    if not EXACT:
        centre = tl.dot(base, (query - high.to(tl.float32)).to(tl.float16), centre)

    sums = tl.zeros([PAGES, PAGE_TOKENS, COLUMNS], tl.float32)
    for place_in_byte in tl.static_range(4):
        for odd in tl.static_range(2):
            channels = place_in_byte * (DIM // 4) + 2 * pair + odd
            part = tl.load(
                q + (head * GROUP + column)[None, :] * DIM + channels[:, None],
                mask=(column < GROUP)[None, :] & inside[:, None],
                other=0.0,
            )
            part = part.to(tl.float32) * (up * (1.0 / 4**place_in_byte))
            steps = tl.load(scale + start + channels[None, :], mask=listed, other=0.0).to(tl.float32)
            product = part[None, :, :] * steps[:, :, None]
            shown = (high_bytes if odd else low_bytes) & (3 << (2 * place_in_byte))
            keys = shown.to(tl.float16, bitcast=True)
            rounded = product.to(tl.float16)
            sums = tl.dot(keys, rounded, sums)
            if not EXACT:
                sums = tl.dot(keys, (product - rounded.to(tl.float32)).to(tl.float16), sums)
    sums = sums * 16777216.0 + centre[:, None, :]  # the smallest float16, 2**-24, stands for 1
    # All heads are measured from the page's largest token: the head that scores highest has no sum below 1.
    sums = tl.where((column < GROUP)[None, None, :], sums * down, -float("inf"))
    top = tl.max(tl.max(sums, 2), 1)
    weight = tl.max(tl.sum(tl.exp2(sums - top[:, None, None]), 1), 1)
    best = (top + tl.log2(weight)) * 0.6931471805599453
    best = tl.where(best == best, best, float("inf"))
    tl.store(scores + head.to(tl.int64) * capacity + page, best, mask=page < known)
