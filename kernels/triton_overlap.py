"""Programmatic dependent launch (compute capability 9.0 on): a kernel's programs start while the kernel before it ends.

A kernel launched with `options(True)` calls `let_next_start` first and, in every program, `wait_for_earlier` before it
writes anything or reads what earlier kernels have written. Until then it may read what never changes: weights. As each
kernel waits for the one before it, none sees less than in a plain launch.

Kernels launched plainly may stand between: they start when the one before has ended, however early that one let others
start. Attention, page scores and selection are plain: overlapping made them slower (docs/performance.md).
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kernels import card


def overlaps(device: torch.device) -> bool:
    """Whether kernels on `device` are launched so."""
    return card.overlap_is_wanted() and card.capability(device) >= (9, 0)


def options(overlap: bool) -> dict[str, Any]:
    """What a launch is given besides."""
    return {"launch_pdl": True} if overlap else {}


@triton.jit
def let_next_start(OVERLAP: tl.constexpr):
    """Once all programs of this kernel have come here, the next kernel's may be started."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()  # pyright: ignore[reportAttributeAccessIssue]


@triton.jit
def wait_for_earlier(OVERLAP: tl.constexpr):
    """Until all earlier kernels have ended and what they wrote is seen."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # pyright: ignore[reportAttributeAccessIssue]
