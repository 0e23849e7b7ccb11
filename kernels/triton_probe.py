"""The smallest kernel that shows that Triton works: doubles a few numbers."""

import torch
import triton
import triton.language as tl

_NUMBERS = 128


@triton.jit
def _double(x, y, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(y + at, 2 * tl.load(x + at))


def probe() -> str:
    """ "" if the kernel compiled and computed what it should, else what it did."""
    x = torch.arange(_NUMBERS, dtype=torch.float32, device="cuda")
    y = torch.full_like(x, -1)
    _double[(1,)](x, y, _NUMBERS)  # type: ignore[reportIndexIssue]
    return "" if torch.equal(y, 2 * x) else "Triton compiles, but its kernels compute wrong numbers"
