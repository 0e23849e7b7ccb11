"""Rotary embedding in torch, with the two halves of a head as the rotated pairs (the Hugging Face layout)."""

import torch


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `kernels.rope.rope`."""
    x, half = x.float(), x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return torch.addcmul(x * cos[:, None], swapped, sin[:, None])
