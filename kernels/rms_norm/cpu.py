"""Adding and RMS norm in one pass."""

import math

import numpy as np
import torch
from numba import prange

from kernels.cpu_floats import narrow, widen
from kernels.cpu_jit import ROWS, as_numpy, by_rows, jit


def add_rms_norm(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `kernels.rms_norm.add_rms_norm`; contiguous tensors on the CPU."""
    normed = torch.empty_like(x, dtype=dtype)
    if delta is None:
        by_rows(x.shape[0], norm, _norm_rows, x.numpy(), weight.numpy(), np.float32(eps), as_numpy(normed))
        return x, normed
    total = torch.empty_like(x)
    arrays = x.numpy(), as_numpy(delta), weight.numpy(), np.float32(eps), total.numpy(), as_numpy(normed)
    by_rows(x.shape[0], add_norm, _add_norm_rows, *arrays)
    return total, normed


@jit()
def norm(x, weight, eps, normed):
    rows, d = x.shape
    for row in range(rows):
        squares = np.float32(0)
        for i in range(d):
            squares += x[row, i] * x[row, i]
        factor = np.float32(1 / math.sqrt(squares / np.float32(d) + eps))
        for i in range(d):
            normed[row, i] = narrow(normed, x[row, i] * factor * weight[i])


@jit()
def add_norm(x, delta, weight, eps, total, normed):
    rows, d = x.shape
    for row in range(rows):
        for i in range(d):
            total[row, i] = x[row, i] + widen(delta[row, i])
    norm(total, weight, eps, normed)


@jit(parallel=True)
def _norm_rows(x, weight, eps, normed):
    for part in prange((x.shape[0] + ROWS - 1) // ROWS):
        at = slice(part * ROWS, (part + 1) * ROWS)
        norm(x[at], weight, eps, normed[at])


@jit(parallel=True)
def _add_norm_rows(x, delta, weight, eps, total, normed):
    for part in prange((x.shape[0] + ROWS - 1) // ROWS):
        at = slice(part * ROWS, (part + 1) * ROWS)
        add_norm(x[at], delta[at], weight, eps, total[at], normed[at])
