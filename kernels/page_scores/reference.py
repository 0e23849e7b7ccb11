"""Page scores in torch: two matrix products over the logical pages, and the largest of what belongs to a KV page.

Scores of one page never depend on another page's summary, so NaN there stays there.
"""

import torch

_SLAB = 1 << 24  # scores of logical pages held at once: 64 MB


def mean_std_scores(q: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """q float32 [kv_heads, blocks, rows, d], mean and std [kv_heads, pages, logical, d] -> float32 scores of KV pages
    [kv_heads, blocks, pages].

    Score of a logical page: sum over d of q * mean + |q| * std. A KV page has the largest of its logical pages' scores
    over all rows. Rows are the query heads of the KV head, for as many query positions as are sampled.
    """
    return _largest(q, q.abs(), mean, std)


def min_max_scores(q: torch.Tensor, minimum: torch.Tensor, maximum: torch.Tensor) -> torch.Tensor:
    """As `mean_std_scores`, with the upper bound of q times any key: sum over d of max(q * minimum, q * maximum)."""
    return _largest(q.clamp(max=0), q.clamp(min=0), minimum, maximum)


def _largest(q0: torch.Tensor, q1: torch.Tensor, summary0: torch.Tensor, summary1: torch.Tensor) -> torch.Tensor:
    """Largest of q0 @ summary0 + q1 @ summary1 over rows and logical pages, a slab of query blocks at a time."""
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
