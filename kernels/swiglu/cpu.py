"""SwiGLU in one pass, computed in float32."""

import numpy as np
import torch
from numba import prange

from kernels.cpu_floats import exp_negative, narrow, widen
from kernels.cpu_jit import ROWS, as_numpy, by_rows, jit


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """As `kernels.swiglu.swiglu`; float32 or bfloat16 on the CPU."""
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    by_rows(out.shape[0], gated, _gated_rows, as_numpy(gate_up.contiguous()), as_numpy(out))
    return out


@jit()
def gated(gate_up, out):
    rows, ffn = out.shape
    for row in range(rows):
        for i in range(ffn):
            gate = widen(gate_up[row, i])
            small = exp_negative(-abs(gate))
            share = (small if gate < 0 else np.float32(1)) / (np.float32(1) + small)
            out[row, i] = narrow(out, gate * share * widen(gate_up[row, i + ffn]))


@jit(parallel=True)
def _gated_rows(gate_up, out):
    for part in prange((out.shape[0] + ROWS - 1) // ROWS):
        at = slice(part * ROWS, (part + 1) * ROWS)
        gated(gate_up[at], out[at])
