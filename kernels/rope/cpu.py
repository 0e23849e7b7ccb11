"""Rotary embedding in one pass."""

import torch
from numba import prange

from kernels.cpu_floats import widen
from kernels.cpu_jit import ROWS, as_numpy, by_rows, jit


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `kernels.rope.rope`; float32 or bfloat16 on the CPU."""
    out = torch.empty(x.shape)
    by_rows(x.shape[0], _rope, _rope_rows, as_numpy(x.contiguous()), cos.numpy(), sin.numpy(), out.numpy())
    return out


@jit()
def _rope(x, cos, sin, out):
    tokens, heads, d = x.shape
    half = d // 2
    for token in range(tokens):
        for head in range(heads):
            for i in range(half):
                low, high = widen(x[token, head, i]), widen(x[token, head, i + half])
                out[token, head, i] = low * cos[token, i] + high * sin[token, i]
                out[token, head, i + half] = high * cos[token, i + half] + low * sin[token, i + half]


@jit(parallel=True)
def _rope_rows(x, cos, sin, out):
    for part in prange((x.shape[0] + ROWS - 1) // ROWS):
        at = slice(part * ROWS, (part + 1) * ROWS)
        _rope(x[at], cos[at], sin[at], out[at])
