"""Rotary embedding in torch, with the two halves of a head as the rotated pairs (the Hugging Face layout)."""

import torch


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x float32 [t, heads, d], cos and sin float32 [t, d / 2] -> [t, heads, d].

    Dimension i turns together with dimension i + d / 2 by the angle of its token.
    """
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return torch.addcmul(x * torch.cat((cos, cos), -1)[:, None], swapped, torch.cat((-sin, sin), -1)[:, None])
