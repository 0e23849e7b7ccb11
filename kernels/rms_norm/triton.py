"""Adding to the residual stream and RMS norm in one launch, a row for each program, computed in float32."""

import torch
import triton
import triton.language as tl

from kernels.triton_overlap import let_next_start, options, overlaps, wait_for_earlier

_FEW_ROWS = 8  # of a decode step
_ELEMENTS = 8  # of a row in each thread: few, because the single row of a decode step is bound by latency


def add_rms_norm(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `kernels.rms_norm.add_rms_norm`; elements of a row adjacent."""
    rows, d = x.shape
    normed = torch.empty(rows, d, dtype=dtype, device=x.device)
    added = delta is not None
    total = torch.empty(rows, d, dtype=torch.float32, device=x.device) if added else x
    block = triton.next_power_of_2(d)
    overlap = rows <= _FEW_ROWS and overlaps(x.device)
    _add_rms_norm_kernel[(rows,)](
        x, delta if added else x, weight, total, normed, d, x.stride(0), delta.stride(0) if added else 0, eps,
        ADDED=added, BLOCK=block, OVERLAP=overlap,
        num_warps=min(max(block // (32 * _ELEMENTS), 1), 16), **options(overlap),  # type: ignore[reportCallIssue]
    )  # fmt: skip
    return total, normed


@triton.jit
def _add_rms_norm_kernel(
    x, delta, weight, total, normed, d, x_stride, delta_stride, eps, ADDED: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < d
    let_next_start(OVERLAP)
    weights = tl.load(weight + at, inside, 0.0)
    wait_for_earlier(OVERLAP)
    values = tl.load(x + row * x_stride + at, inside, 0.0)
    if ADDED:
        values += tl.load(delta + row * delta_stride + at, inside, 0.0).to(tl.float32)
        tl.store(total + row * d + at, values, inside)
    factor = 1 / tl.sqrt(tl.sum(values * values, 0) / d + eps)
    scaled = values * factor * weights
    tl.store(normed + row * d + at, scaled.to(normed.dtype.element_ty), inside)
