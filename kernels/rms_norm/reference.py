"""RMS norm in torch: x / sqrt(mean(x^2) + eps) * weight, computed in float32."""

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., d] of any float type and weight [d] float32 -> float32 [..., d]."""
    return functional.rms_norm(x.float(), weight.shape, weight, eps)


def add_rms_norm(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `kernels.rms_norm.add_rms_norm`."""
    if delta is not None:
        x = x + delta
    return x, rms_norm(x, weight, eps).to(dtype)
