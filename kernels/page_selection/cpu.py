"""Page selection compiled for the CPU: quickselect for the count-th largest key, and the first of those equal to it."""

import numpy as np
import torch

from kernels.cpu_jit import jit

_MOST = np.float32(np.finfo(np.float32).max)


def select_pages(scores: torch.Tensor, forced: torch.Tensor, allowed: torch.Tensor, count: int) -> torch.Tensor:
    """As `kernels.page_selection.select_pages`; tensors on the CPU."""
    pages = allowed.shape[-1]
    out = torch.empty(*scores.shape[:2], pages, dtype=torch.bool)
    _select(scores.numpy(), forced.numpy(), allowed.numpy(), min(count, pages), out.numpy())
    return out


@jit()
def _select(scores, forced, allowed, count, out):
    heads, blocks, pages = out.shape
    scored = scores.shape[2]
    keys = np.empty(pages, np.float32)
    for head in range(heads):
        for block in range(blocks):
            for page in range(pages):
                if not allowed[block, page]:
                    keys[page] = -np.inf
                elif page >= scored or forced[block, page]:
                    keys[page] = np.inf
                else:
                    score = scores[head, block, page]
                    keys[page] = _MOST if score != score else min(max(score, -_MOST), _MOST)
            limit, ties = np.float32(np.inf), 0
            if count > 0:
                limit = np.partition(keys, pages - count)[pages - count]
                ties = count
                for page in range(pages):
                    ties -= keys[page] > limit
            for page in range(pages):
                key = keys[page]
                chosen = key > limit
                if key == limit and ties > 0:
                    chosen = True
                    ties -= 1
                out[head, block, page] = (chosen or key == np.inf) and allowed[block, page]
