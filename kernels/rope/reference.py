"""Rotary embedding in torch, with the two halves of a head as the rotated pairs (the Hugging Face layout)."""

import torch


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [t, heads, d], cos and sin [t, d / 2] -> [t, heads, d] in the type of x.

    Dimension i turns together with dimension i + d / 2 by the angle of its token.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
