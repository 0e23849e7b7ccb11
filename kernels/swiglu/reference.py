"""SwiGLU in torch: silu(gate) * up, with gate and up side by side in one tensor."""

import torch
from torch.nn import functional


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [t, 2 * ffn] -> [t, ffn]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
