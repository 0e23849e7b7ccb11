"""Rotary embedding in torch, with the two halves of a head as the rotated pairs (the Hugging Face layout)."""

import torch


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x float32 [t, heads, d], cos and sin float32 [t, d] -> [t, heads, d].

    Dimension i turns together with dimension i + d / 2 by the angle of its token: cos holds the d / 2 cosines twice,
    sin the negative sines and then the sines.
    """
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return torch.addcmul(x * cos[:, None], swapped, sin[:, None])
