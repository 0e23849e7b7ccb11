"""Page scores compiled for the CPU: float16 summaries are read as they lie, without a copy in float32.

For the few rows of a decode step; over many rows matrix products are faster.
"""

import numpy as np
import torch
from numba import prange

from kernels.cpu_floats import half
from kernels.cpu_jit import as_numpy, jit, parallel_lock

_PARALLEL = 2048  # KV pages over all heads: below that, starting threads takes longer than the scores


def largest(q0: torch.Tensor, q1: torch.Tensor, summary0: torch.Tensor, summary1: torch.Tensor) -> torch.Tensor:
    """q0 and q1 float32 [kv_heads, blocks, rows, d], summaries float16 [kv_heads, pages, logical, d], finite ->
    float32 [kv_heads, blocks, pages]: the largest of q0 . summary0 + q1 . summary1 over rows and logical pages."""
    kv_heads, blocks = q0.shape[:2]
    pages = summary0.shape[1]
    out = torch.empty(kv_heads, blocks, pages)
    arrays = (q0.numpy(), q1.numpy(), as_numpy(summary0), as_numpy(summary1), out.numpy())
    if kv_heads * pages < _PARALLEL or torch.get_num_threads() == 1:
        for head in range(kv_heads):
            _pages(*(array[head] for array in arrays), 0, pages)
    else:
        with parallel_lock:
            _parallel(*arrays)
    return out


@jit(parallel=True)
def _parallel(q0, q1, summary0, summary1, out):
    heads, pages = out.shape[0], out.shape[2]
    step = 64
    tasks = (pages + step - 1) // step
    for task in prange(heads * tasks):
        head, first = task // tasks, task % tasks * step
        _pages(q0[head], q1[head], summary0[head], summary1[head], out[head], first, min(first + step, pages))


@jit()
def _pages(q0, q1, summary0, summary1, out, first, end):
    """Pages `first` to `end` - 1 of one head: q [blocks, rows, d], summaries [pages, logical, d]; out [blocks, :]."""
    blocks, rows, d = q0.shape
    a, b = np.empty(d, np.float32), np.empty(d, np.float32)
    for page in range(first, end):
        for part in range(summary0.shape[1]):
            for i in range(d):
                a[i] = half(summary0[page, part, i])
                b[i] = half(summary1[page, part, i])
            for block in range(blocks):
                for row in range(rows):
                    score = np.float32(0)
                    for i in range(d):
                        score += q0[block, row, i] * a[i] + q1[block, row, i] * b[i]
                    if (part == 0 and row == 0) or score > out[block, page]:
                        out[block, page] = score
