"""Page scores by coarse keys compiled for the CPU, for the few rows of a decode step.

A page's codes become float32 once and serve all rows; scales go into the query.
"""

import math

import numpy as np
import torch
from numba import prange

from kernels.cpu_floats import exp_negative, half
from kernels.cpu_jit import as_numpy, jit, parallel_lock

_PARALLEL = 128  # KV pages over all heads: below that, starting threads takes longer than the scores
_STEP = 16  # pages of a task


def coarse_scores(
    q: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, factor: float
) -> torch.Tensor:
    """As `kernels.page_scores.coarse_scores`: q float32 [kv_heads, blocks, rows, d], codes uint8 [kv_heads, pages, 64,
    d / 4], scale and minimum float16 [kv_heads, pages, d], all finite -> float32 [kv_heads, blocks, pages]."""
    kv_heads, blocks = q.shape[:2]
    pages = codes.shape[1]
    out = torch.empty(kv_heads, blocks, pages)
    arrays = ((q * factor).contiguous().numpy(), codes.numpy(), as_numpy(scale), as_numpy(minimum), out.numpy())
    if kv_heads * pages < _PARALLEL or torch.get_num_threads() == 1:
        for head in range(kv_heads):
            _pages(*(array[head] for array in arrays), 0, pages)
    else:
        with parallel_lock:
            _parallel(*arrays)
    return out


@jit(parallel=True)
def _parallel(q, codes, scale, minimum, out):
    heads, pages = out.shape[0], out.shape[2]
    tasks = (pages + _STEP - 1) // _STEP
    for task in prange(heads * tasks):
        head, first = task // tasks, task % tasks * _STEP
        _pages(q[head], codes[head], scale[head], minimum[head], out[head], first, min(first + _STEP, pages))


@jit()
def _pages(q, codes, scale, minimum, out, first, end):
    """Pages `first` to `end` - 1 of one head: q [blocks, rows, d], codes [pages, 64, d / 4], scale and minimum
    [pages, d]; out [blocks, :]."""
    blocks, rows, d = q.shape
    tokens, quarter = codes.shape[1:]
    steps = np.empty((tokens, d), np.float32)
    spread, base, query = np.empty(d, np.float32), np.empty(d, np.float32), np.empty(d, np.float32)
    logits = np.empty(tokens, np.float32)
    for page in range(first, end):
        for i in range(d):
            spread[i] = half(scale[page, i])
            base[i] = half(minimum[page, i])
        for token in range(tokens):
            for i in range(quarter):
                code = codes[page, token, i]
                steps[token, i] = np.float32(code & 3)
                steps[token, i + quarter] = np.float32((code >> 2) & 3)
                steps[token, i + 2 * quarter] = np.float32((code >> 4) & 3)
                steps[token, i + 3 * quarter] = np.float32(code >> 6)
        for block in range(blocks):
            for row in range(rows):
                shift = np.float32(0)
                for i in range(d):
                    query[i] = q[block, row, i] * spread[i]
                    shift += q[block, row, i] * base[i]
                largest = np.float32(-np.inf)
                for token in range(tokens):
                    logit = np.float32(0)
                    for i in range(d):
                        logit += query[i] * steps[token, i]
                    logits[token] = logit
                    largest = max(largest, logit)
                total = np.float32(0)
                for token in range(tokens):
                    total += exp_negative(logits[token] - largest)
                score = shift + largest + np.float32(math.log(total))
                if row == 0 or score > out[block, page]:
                    out[block, page] = score
