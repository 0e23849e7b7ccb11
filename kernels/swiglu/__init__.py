"""The gated activation of the feed-forward layer."""

import torch

from kernels import cpu_jit, triton_jit
from kernels.swiglu import reference

__all__ = ["swiglu"]


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [t, 2 * ffn] of a float type, the gate first -> silu(gate) * up, [t, ffn] of the same type."""
    if cpu_jit.takes(gate_up):
        from kernels.swiglu import cpu

        return cpu.swiglu(gate_up)
    if triton_jit.available(gate_up.device):
        from kernels.swiglu import triton

        return triton.swiglu(gate_up)
    return reference.swiglu(gate_up)
