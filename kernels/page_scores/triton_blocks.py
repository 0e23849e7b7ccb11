"""Scores of KV pages for the query blocks of a prefill chunk, on a card: two products and the largest, in one launch.

Products are in float16, which summaries are kept in; queries are scaled by their largest entry and rounded to 11 bits.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false
# (kernels are in a language that only looks like Python to a type checker)

import torch
import triton
import triton.language as tl

_LOGICAL_PAGES = 128  # of a program
_ROWS = 128  # of a program: the rows of so many query blocks as fit
_WARPS = 8


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
    taken, padded = _LOGICAL_PAGES // logical, max(16, triton.next_power_of_2(rows))
    together = max(1, _ROWS // padded)
    _largest[(triton.cdiv(pages, taken), triton.cdiv(blocks, together), kv_heads)](
        q, summary0, summary1, out, blocks, rows, pages,
        D=d, WIDE=triton.next_power_of_2(d), TOGETHER=together, ROWS=padded, LOGICAL=logical, TAKEN=taken,
        MEAN_STD=kind == "mean_std", EXACT=exact, num_warps=_WARPS, num_stages=1,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["blocks", "rows", "pages"])
def _largest(
    q_ptr, summary0, summary1, out, blocks, rows, pages,
    D: tl.constexpr, WIDE: tl.constexpr, TOGETHER: tl.constexpr, ROWS: tl.constexpr, LOGICAL: tl.constexpr,
    TAKEN: tl.constexpr, MEAN_STD: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    first, block, head = tl.program_id(0) * TAKEN, tl.program_id(1) * TOGETHER, tl.program_id(2).to(tl.int64)
    dim, row = tl.arange(0, WIDE), tl.arange(0, TOGETHER * ROWS)
    within = (dim < D)[None, :]
    mine = tl.minimum(block + row // ROWS, blocks - 1)
    rest = row % ROWS
    rest = tl.where(rest < rows, rest, 0)  # a row that is there twice changes no maximum
    place = ((head * blocks + mine) * rows + rest)[:, None] * D + dim[None, :]
    q = tl.load(q_ptr + place, mask=within, other=0.0)
    line = tl.arange(0, TAKEN * LOGICAL)
    at = ((head * pages + first) * LOGICAL + line)[None, :] * D + dim[:, None]
    mask = ((first + line // LOGICAL) < pages)[None, :] & (dim < D)[:, None]
    s0 = tl.load(summary0 + at, mask=mask, other=0.0)  # [d, logical pages]
    s1 = tl.load(summary1 + at, mask=mask, other=0.0)
    size = tl.max(tl.abs(q))
    if not EXACT:
        q = q / tl.where(size > 0, size, 1.0)
    q0 = q if MEAN_STD else tl.minimum(q, 0.0)
    q1 = tl.abs(q) if MEAN_STD else tl.maximum(q, 0.0)
    if EXACT:
        scores = tl.dot(q0, s0.to(tl.float32), input_precision="ieee")
        scores = tl.dot(q1, s1.to(tl.float32), scores, input_precision="ieee")
    else:
        scores = tl.dot(q0.to(tl.float16), s0)
        scores = tl.dot(q1.to(tl.float16), s1, scores) * size
    scores = tl.where(scores == scores, scores, float("inf"))
    best = tl.max(tl.reshape(scores, (TOGETHER, ROWS, TAKEN * LOGICAL)), axis=1)
    best = tl.max(tl.reshape(best, (TOGETHER, TAKEN, LOGICAL)), axis=2)
    page = first + tl.arange(0, TAKEN)
    to = block + tl.arange(0, TOGETHER)
    place = (head * blocks + to)[:, None] * pages + page[None, :]
    tl.store(out + place, best, mask=(to < blocks)[:, None] & (page < pages)[None, :])
