"""SwiGLU in one launch, computed in float32."""

# pyright: reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl

from kernels.triton_overlap import let_next_start, options, overlaps, wait_for_earlier

_FEW_ROWS = 8  # of a decode step
_BLOCK = 1024


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """As `kernels.swiglu.swiglu`; elements of a row adjacent."""
    rows, ffn = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, ffn, dtype=gate_up.dtype, device=gate_up.device)
    blocks = triton.cdiv(ffn, _BLOCK)
    overlap = rows <= _FEW_ROWS and overlaps(gate_up.device)
    _swiglu_kernel[(rows * blocks,)](
        gate_up, out, ffn, blocks, gate_up.stride(0), BLOCK=_BLOCK, OVERLAP=overlap, **options(overlap)
    )
    return out


@triton.jit
def silu(x):
    """x float32 -> x * sigmoid(x); its exponential may overflow to infinity, which gives the right zero."""
    return x / (1 + tl.exp(-x))


@triton.jit
def _swiglu_kernel(gate_up, out, ffn, blocks, stride, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    let_next_start(OVERLAP)
    wait_for_earlier(OVERLAP)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = at < ffn
    gate = tl.load(gate_up + row * stride + at, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + ffn + at, inside, 0.0).to(tl.float32)
    tl.store(out + row * ffn + at, (silu(gate) * up).to(out.dtype.element_ty), inside)
