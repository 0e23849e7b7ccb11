"""Page scores in torch: two matrix products over the logical pages, and the largest of what belongs to a KV page.

Scores of one page never depend on another page's summary, so NaN there stays there.
"""

import math
from collections.abc import Iterator

import torch

from kernels.kv_codec.coarse import coarse_codes
from kernels.kv_codec.formats import PAGE

_SLAB = 1 << 24  # scores of logical pages held at once: 64 MB


def largest(q0: torch.Tensor, q1: torch.Tensor, summary0: torch.Tensor, summary1: torch.Tensor) -> torch.Tensor:
    """q0 and q1 float32 [kv_heads, blocks, rows, d], summaries [kv_heads, pages, logical, d] -> float32 [kv_heads,
    blocks, pages]: the largest of q0 . summary0 + q1 . summary1 over rows and logical pages."""
    kv_heads, blocks, rows, _ = q0.shape
    pages, logical = summary0.shape[1:3]
    s0, s1 = (summary.flatten(1, 2).float().mT for summary in (summary0, summary1))  # [kv_heads, d, pages * logical]
    step = max(1, _SLAB // max(1, kv_heads * rows * pages * logical))
    slabs = [
        torch.baddbmm(q0[:, at : at + step].flatten(1, 2) @ s0, q1[:, at : at + step].flatten(1, 2), s1)
        .view(kv_heads, -1, rows, pages * logical)
        .amax(dim=2)
        .view(kv_heads, -1, pages, logical)
        .amax(dim=3)  # apart from the rows: one call over both is many times slower
        for at in range(0, blocks, step)
    ]
    return slabs[0] if len(slabs) == 1 else torch.cat(slabs, dim=1)


def coarse_scores(
    q: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, factor: float
) -> torch.Tensor:
    """As `kernels.page_scores.coarse_scores`."""
    kv_heads, blocks, rows, _ = q.shape
    scores = torch.empty(kv_heads, blocks, codes.shape[1], device=q.device)
    for part, logs in _row_logs(q, codes, scale, minimum, factor):
        scores[:, :, part] = logs.unflatten(1, (blocks, rows)).amax(2)
    return scores


def coarse_shares(
    q: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor,
    pages: torch.Tensor,
    allowed: torch.Tensor,
    factor: float,
) -> torch.Tensor:
    """As `kernels.page_scores.coarse_shares`. All pages are weighed, listed or not."""
    kv_heads, blocks, rows, _ = q.shape
    logs = torch.empty(kv_heads, blocks, codes.shape[1], rows, device=q.device)
    for part, found in _row_logs(q, codes, scale, minimum, factor):
        logs[:, :, part] = found.unflatten(1, (blocks, rows)).transpose(2, 3)
    logs = logs.gather(2, pages[..., None].expand(-1, -1, -1, rows))
    seen = allowed.expand(kv_heads, -1, -1).gather(2, pages)
    unknown = logs.isnan()
    logs = logs.masked_fill_(unknown | ~seen[..., None], -math.inf)
    shares = (logs - logs.logsumexp(2, keepdim=True).clamp_(min=-1e30)).amax(3)
    return shares.masked_fill_(unknown.any(3) & seen, math.inf)


def _row_logs(
    q: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, factor: float
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Some pages after the other: which, and the logsumexp over their tokens, [kv_heads, blocks * rows, pages]."""
    kv_heads, blocks, rows, d = q.shape
    q = q.flatten(1, 2).float() * factor
    step = max(1, _SLAB // max(1, kv_heads * PAGE * max(d, blocks * rows)))
    for first in range(0, codes.shape[1], step):
        part = slice(first, first + step)
        keys = torch.addcmul(minimum[:, part, None].float(), coarse_codes(codes[:, part]), scale[:, part, None].float())
        yield part, (q @ keys.flatten(1, 2).mT).unflatten(2, (-1, PAGE)).logsumexp(3)
