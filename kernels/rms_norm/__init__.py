"""Root mean square norm over the last dimension, alone and after adding to the residual stream."""

import torch

from kernels import cpu_jit, triton_jit
from kernels.rms_norm import reference
from kernels.rms_norm.reference import rms_norm

__all__ = ["add_rms_norm", "rms_norm"]


def add_rms_norm(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """x float32 [t, d], delta [t, d] float32 or bfloat16, weight float32 [d] -> x + delta float32, its norm as `dtype`.

    `dtype`: float32 or bfloat16. Without `delta` the first result is x itself.
    """
    if dtype in cpu_jit.FLOATS and cpu_jit.takes(x, *(() if delta is None else (delta,))):
        from kernels.rms_norm import cpu

        return cpu.add_rms_norm(x, delta, weight, eps, dtype)
    if triton_jit.available(x.device):
        from kernels.rms_norm import triton

        return triton.add_rms_norm(x, delta, weight, eps, dtype)
    return reference.add_rms_norm(x, delta, weight, eps, dtype)
