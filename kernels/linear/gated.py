"""The first half of a feed-forward layer: a product whose rows are gates and ups, and the gated activation after it."""

import torch

from kernels import triton_jit
from kernels.linear.fp8 import FEW_ROWS, Fp8Weight
from kernels.linear.reference import Weight, linear
from kernels.swiglu import swiglu


def gate_up_swiglu(x: torch.Tensor, w: Weight) -> torch.Tensor:
    """x [t, in], w [2 * ffn, in], the gates first -> silu(gate) * up, [t, ffn] of the type that `linear` gives.

    Up to 8 rows of fp8 weights are one launch, without rounding gate and up to bfloat16 in between.
    """
    if (
        isinstance(w, Fp8Weight)
        and x.shape[0] <= FEW_ROWS
        and w.codes.shape[1] % 4 == 0
        and triton_jit.available(x.device)
    ):
        from kernels.linear import triton

        return triton.matvec(x.to(torch.bfloat16), w.codes, w.scales, w.bias, gated=True)
    return swiglu(linear(x, w))
