"""Scores of KV pages for the query blocks of a prefill chunk, on a card: two products and the largest, in one launch.

Products are in tf32, which holds the float16 summaries exactly and rounds queries to 11 bits.
"""

import torch
import triton
import triton.language as tl

_LOGICAL_PAGES = 64  # of a program
_WARPS = 4


def largest(
    q: torch.Tensor, summary0: torch.Tensor, summary1: torch.Tensor, kind: str, exact: bool = False
) -> torch.Tensor:
    """q float32 [kv_heads, blocks, rows, d], summaries float16 [kv_heads, pages, logical, d] -> float32 [kv_heads,
    blocks, pages], as `kernels.page_scores.mean_std_scores` or, for `kind` "min_max", `min_max_scores`; a score that is
    no number becomes infinity. `exact`: products in float32."""
    kv_heads, blocks, rows, d = q.shape
    pages, logical = summary0.shape[1:3]
    q, summary0, summary1 = q.contiguous(), summary0.contiguous(), summary1.contiguous()
    out = torch.empty(kv_heads, blocks, pages, device=q.device)
    taken = _LOGICAL_PAGES // logical
    _largest[(triton.cdiv(pages, taken), blocks, kv_heads)](  # type: ignore[reportIndexIssue]
        q, summary0, summary1, out, blocks, rows, pages,
        D=d, WIDE=triton.next_power_of_2(d), ROWS=max(16, triton.next_power_of_2(rows)), LOGICAL=logical, TAKEN=taken,
        MEAN_STD=kind == "mean_std", PRECISION="ieee" if exact else "tf32", num_warps=_WARPS, num_stages=1,
    )  # fmt: skip
    return out


@triton.jit
def _largest(
    q_ptr, summary0, summary1, out, blocks, rows, pages,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, LOGICAL: tl.constexpr, TAKEN: tl.constexpr,
    MEAN_STD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first, block, head = tl.program_id(0) * TAKEN, tl.program_id(1), tl.program_id(2)
    dim, row = tl.arange(0, WIDE), tl.arange(0, ROWS)
    row = tl.where(row < rows, row, 0)  # a row that is there twice changes no maximum
    within = dim < D
    start = (head.to(tl.int64) * blocks + block) * rows
    q = tl.load(q_ptr + (start + row[:, None]) * D + dim[None, :], mask=within[None, :], other=0.0)
    line = tl.arange(0, TAKEN * LOGICAL)
    there = (first + line // LOGICAL) < pages
    at = ((head.to(tl.int64) * pages + first) * LOGICAL + line)[None, :] * D + dim[:, None]
    mask = there[None, :] & within[:, None]
    s0 = tl.load(summary0 + at, mask=mask, other=0.0).to(tl.float32)  # [d, logical pages]
    s1 = tl.load(summary1 + at, mask=mask, other=0.0).to(tl.float32)
    q0 = q if MEAN_STD else tl.minimum(q, 0.0)
    q1 = tl.abs(q) if MEAN_STD else tl.maximum(q, 0.0)
    scores = tl.dot(q0, s0, input_precision=PRECISION)
    scores = tl.dot(q1, s1, scores, input_precision=PRECISION)
    scores = tl.where(scores == scores, scores, float("inf"))
    best = tl.max(tl.reshape(tl.max(scores, axis=0), (TAKEN, LOGICAL)), axis=1)
    page = first + tl.arange(0, TAKEN)
    tl.store(out + (head.to(tl.int64) * blocks + block) * pages + page, best, mask=page < pages)
