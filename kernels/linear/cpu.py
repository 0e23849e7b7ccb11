"""Products of few rows with int8 weights: codes become float32 in registers, so the work is one pass over them.

On AVX2 this takes about a quarter of the time of torch's packed product, and activations stay float32.
"""

import numpy as np
import torch
from numba import prange

from kernels.cpu_floats import widen
from kernels.cpu_jit import as_numpy, jit, parallel_lock

_BLOCK = 64  # output rows in a task


def int8_linear(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """x float32 [t, in], codes int8 [out, in], scales bfloat16 [out] -> float32 [t, out]."""
    out = torch.empty(x.shape[0], codes.shape[0])
    with parallel_lock:
        int8_product(x.contiguous().numpy(), codes.numpy(), as_numpy(scales), out.numpy())
    return out


@jit()
def _rows(x, codes, scales, out, first, end):
    tokens, inner = x.shape
    for row in range(first, end):
        for token in range(tokens):
            total = np.float32(0)
            for i in range(inner):
                total += np.float32(codes[row, i]) * x[token, i]
            out[token, row] = total * widen(scales[row])


@jit(parallel=True)
def int8_product(x, codes, scales, out):
    rows = codes.shape[0]
    for block in prange((rows + _BLOCK - 1) // _BLOCK):
        _rows(x, codes, scales, out, block * _BLOCK, min(rows, block * _BLOCK + _BLOCK))
