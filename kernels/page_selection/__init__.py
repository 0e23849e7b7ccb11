"""Choosing the KV pages with the highest scores."""

import torch

from kernels import cpu_jit
from kernels.page_selection import reference

__all__ = ["select_pages"]


def select_pages(scores: torch.Tensor, forced: torch.Tensor, allowed: torch.Tensor, count: int) -> torch.Tensor:
    """scores float32 [kv_heads, blocks, scored pages] -> bool [kv_heads, blocks, pages]: `count` pages in each row, or
    all allowed ones.

    `forced` and `allowed`: bool [blocks, pages]. Forced pages that are allowed are selected and counted, even if there
    are more than `count`; the highest scores fill the rest. The last pages, if they have no scores, count as forced.
    Of equal scores the lower page number wins.
    Infinite scores count as the largest finite ones; NaN as the largest of all: what cannot be judged is read.
    Scores of pages that are not allowed have no influence.
    """
    if scores.device.type == "cpu" and cpu_jit.available():
        from kernels.page_selection import cpu

        return cpu.select_pages(scores, forced, allowed, count)
    return reference.select_pages(scores, forced, allowed, count)
