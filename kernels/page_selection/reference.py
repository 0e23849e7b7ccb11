"""Page selection in torch: a stable sort, so that the same scores give the same pages everywhere."""

import math

import torch

_MOST = torch.finfo(torch.float32).max


def select_pages(scores: torch.Tensor, forced: torch.Tensor, allowed: torch.Tensor, count: int) -> torch.Tensor:
    """scores float32 [kv_heads, blocks, pages] -> bool of that shape: `count` pages in each row, or all allowed ones.

    `forced` and `allowed`: bool, broadcast to the scores. Forced pages that are allowed are selected and counted, even
    if there are more than `count`; the highest scores fill the rest. Of equal scores the lower page number wins.
    Infinite scores count as the largest finite ones; NaN as the largest of all: what cannot be judged is read.
    Scores of pages that are not allowed have no influence.
    """
    count = min(count, scores.shape[-1])
    keys = scores.nan_to_num(nan=_MOST, posinf=_MOST, neginf=-_MOST)
    keys = keys.masked_fill_(forced, math.inf).masked_fill_(~allowed, -math.inf)
    order = keys.sort(dim=-1, descending=True, stable=True).indices
    selected = torch.zeros_like(keys, dtype=torch.bool).scatter_(-1, order[..., :count], True)
    return (selected | forced) & allowed
