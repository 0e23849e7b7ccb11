"""Page selection in torch: a stable sort, so that the same scores give the same pages everywhere."""

import math

import torch

_MOST = torch.finfo(torch.float32).max


def select_pages(scores: torch.Tensor, forced: torch.Tensor, allowed: torch.Tensor, count: int) -> torch.Tensor:
    """As `kernels.page_selection.select_pages`."""
    pages = allowed.shape[-1]
    keys = scores.nan_to_num(nan=_MOST, posinf=_MOST, neginf=-_MOST)
    keys = torch.nn.functional.pad(keys, (0, pages - scores.shape[-1]))
    forced = forced | (torch.arange(pages, device=scores.device) >= scores.shape[-1])
    keys = keys.masked_fill_(forced, math.inf).masked_fill_(~allowed, -math.inf)
    order = keys.sort(dim=-1, descending=True, stable=True).indices
    selected = torch.zeros_like(keys, dtype=torch.bool).scatter_(-1, order[..., : min(count, pages)], True)
    return (selected | forced) & allowed
