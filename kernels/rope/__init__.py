"""Rotary position embedding of queries and keys."""

import torch

from kernels import cpu_jit
from kernels.rope import reference

__all__ = ["rope"]


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [t, heads, d] of a float type, cos and sin float32 [t, d] -> float32 [t, heads, d].

    Dimension i turns together with dimension i + d / 2 by the angle of its token: cos holds the d / 2 cosines twice,
    sin the negative sines and then the sines.
    """
    if cpu_jit.takes(x):
        from kernels.rope import cpu

        return cpu.rope(x, cos, sin)
    return reference.rope(x, cos, sin)
