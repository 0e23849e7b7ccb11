"""Page scores on a GPU, for one decode token: every summary is read once, in place, through the page table.

score = max over logical pages and query heads of q0 . summary0 + q1 . summary1 (`kernels.page_scores`), as matrix
products on tensor cores: summaries are float16 already, and a query, first scaled by a power of two into float16's
range, goes in as float16 or, if it is float32, as the sum of two. The products are exact and summed in float32, so
scores are as good as those computed in float32 throughout.

Nothing here waits for the device, and the grid depends on the page table's capacity alone.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
# (kernels are in a language that only looks like Python to a type checker)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

PAGE = 64
_KINDS = ("mean_std", "min_max")


@dataclass(frozen=True, slots=True)
class Config:
    """`rows`: logical pages of a program."""

    rows: int
    num_warps: int


def configuration(head_dim: int) -> Config:
    return Config(rows=64 if head_dim <= 128 else 32, num_warps=8)


def score_pages(
    q: torch.Tensor,
    summary0: torch.Tensor,
    summary1: torch.Tensor,
    kind: str,
    table: torch.Tensor,
    exact_pages: int,
    length: torch.Tensor,
    budget: torch.Tensor,
    streaming: torch.Tensor | None,
    scores: torch.Tensor,
    config: Config | None = None,
) -> None:
    """Scores of all KV pages that have a summary, p < (length - 1) // 64, into scores float32 [kv_heads, capacity].

    q [heads, d] of bfloat16 or float32, rotated. summary0 and summary1 float16 [kv_heads, rows, logical, d]: mean and
    standard deviation for kind "mean_std", minimum and maximum for "min_max". table int32 [capacity]: page p's summary
    is row table[p], or exact_pages + ~table[p] where that is negative. length int32 [1]: tokens, the new one included.
    budget int32 [1], in pages: where no more are held, nothing is computed. streaming uint8 [kv_heads] or None: rows
    of heads that stream are not written. NaN in a page's summary makes its score infinite, as what cannot be judged
    must be read.
    """
    heads, d = q.shape
    kv_heads, _, logical, _ = summary0.shape
    if kind not in _KINDS:
        raise ValueError(f"kind: got {kind!r}, need one of {', '.join(_KINDS)}")
    for name, x in (("q", q), ("summary0", summary0[0]), ("summary1", summary1[0]), ("scores", scores)):
        if not x.is_contiguous():
            raise ValueError(f"{name}: got strides {x.stride()} for shape {list(x.shape)}, need it contiguous")
    if summary1.stride(0) != summary0.stride(0):
        raise ValueError("summary1: its KV heads must lie as those of summary0 do")
    config = config or configuration(d)
    capacity, pages = scores.shape[1], max(1, config.rows // logical)
    _score[(triton.cdiv(capacity, pages), kv_heads)](
        q, summary0, summary1, table, length, budget, streaming, scores, summary0.stride(0), exact_pages, capacity,
        GROUP=heads // kv_heads, COLUMNS=max(8, triton.next_power_of_2(heads // kv_heads)), DIM=d,
        WIDE=max(16, triton.next_power_of_2(d)), LOGICAL=logical, PAGES=pages, MIN_MAX=kind == "min_max",
        PAGE_TOKENS=PAGE, num_warps=config.num_warps,
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["length", "budget", "streaming"])
def _score(
    q, summary0, summary1, table, length, budget, streaming, scores, head_stride, exact_pages, capacity,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, LOGICAL: tl.constexpr,
    PAGES: tl.constexpr, MIN_MAX: tl.constexpr, PAGE_TOKENS: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(1), tl.program_id(0) * PAGES
    tokens, allowed = tl.load(length), tl.load(budget)
    known = (tokens - 1) // PAGE_TOKENS
    if (first >= known) | (known + 1 <= allowed):
        return
    if streaming is not None:  # noqa: SIM102, known when the kernel is compiled
        if tl.load(streaming + head) != 0:
            return
    row = tl.arange(0, PAGES * LOGICAL)
    page = first + row // LOGICAL
    place = tl.load(table + page, mask=page < known, other=0)
    place = tl.where(place >= 0, place, exact_pages + ~place)
    at = tl.arange(0, WIDE)
    start = head.to(tl.int64) * head_stride + (place.to(tl.int64) * LOGICAL + row % LOGICAL) * DIM
    where = start[:, None] + at[None, :]
    listed = (page < known)[:, None] & (at < DIM)[None, :]
    first_summary = tl.load(summary0 + where, mask=listed, other=0.0)
    second_summary = tl.load(summary1 + where, mask=listed, other=0.0)

    column = tl.arange(0, COLUMNS)
    query = tl.load(
        q + (head * GROUP + column)[None, :] * DIM + at[:, None],
        mask=(column < GROUP)[None, :] & (at < DIM)[:, None],
        other=0.0,
    )
    EXACT: tl.constexpr = query.dtype != tl.float32
    query = query.to(tl.float32)
    # The power of two that takes a head's largest entry to 2**14..2**15, and the one that takes scores back.
    exponent = tl.max(tl.abs(query), 0).to(tl.int32, bitcast=True) >> 23
    exponent = tl.maximum(exponent, 15)
    up = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    down = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
    query = query * up[None, :]
    if MIN_MAX:
        query0, query1 = tl.where(query > 0, 0.0, query), tl.where(query < 0, 0.0, query)
    else:
        query0, query1 = query, tl.abs(query)
    high0, high1 = query0.to(tl.float16), query1.to(tl.float16)
    sums = tl.dot(first_summary, high0)
    sums = tl.dot(second_summary, high1, sums)
    if not EXACT:
        sums = tl.dot(first_summary, (query0 - high0.to(tl.float32)).to(tl.float16), sums)
        sums = tl.dot(second_summary, (query1 - high1.to(tl.float32)).to(tl.float16), sums)
    sums = sums * down[None, :]
    sums = tl.where(sums == sums, sums, float("inf"))
    best = tl.max(tl.where((column < GROUP)[None, :], sums, -float("inf")), 1)
    best = tl.max(tl.reshape(best, [PAGES, LOGICAL]), 1)
    listed_page = first + tl.arange(0, PAGES)
    tl.store(scores + head.to(tl.int64) * capacity + listed_page, best, mask=listed_page < known)
