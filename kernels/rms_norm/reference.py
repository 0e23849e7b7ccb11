"""RMS norm in torch: x / sqrt(mean(x^2) + eps) * weight, computed in float32."""

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., d] of any float type and weight [d] float32 -> float32 [..., d]."""
    return functional.rms_norm(x.float(), weight.shape, weight, eps)
