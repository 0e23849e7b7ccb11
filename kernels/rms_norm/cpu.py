"""Adding and RMS norm in one pass over few rows, where starting each torch operation costs more than its work."""

import math

import numpy as np
import torch

from kernels.cpu_floats import narrow, widen
from kernels.cpu_jit import as_numpy, jit


def add_rms_norm(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `kernels.rms_norm.add_rms_norm`; contiguous tensors on the CPU."""
    normed = torch.empty_like(x, dtype=dtype)
    if delta is None:
        norm(x.numpy(), weight.numpy(), np.float32(eps), as_numpy(normed))
        return x, normed
    total = torch.empty_like(x)
    add_norm(x.numpy(), as_numpy(delta), weight.numpy(), np.float32(eps), total.numpy(), as_numpy(normed))
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
