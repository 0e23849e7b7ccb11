"""Rotary embedding of few tokens in one pass."""

import torch

from kernels.cpu_floats import widen
from kernels.cpu_jit import as_numpy, jit


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `kernels.rope.rope`; float32 or bfloat16 on the CPU."""
    out = torch.empty(x.shape)
    _rope(as_numpy(x.contiguous()), cos.numpy(), sin.numpy(), out.numpy())
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
