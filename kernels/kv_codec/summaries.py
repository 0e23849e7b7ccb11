"""What a selector keeps of a logical page's keys: mean and standard deviation, or Quest's bounds.

Made once, from the exact keys of a complete KV page. As in packed pages, keys beyond the range of float16 count as
+-65504, so that a summary is never infinite; a NaN shows in its own logical page and channel only.
"""

import torch

from kernels.kv_codec.formats import PAGE

_LARGEST = 65504.0  # of float16


def summarize(keys: torch.Tensor, logical: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """keys [..., pages, 64, d] of any float type -> mean and population standard deviation of every `logical` tokens,
    float16 [..., pages, 64 / logical, d] each, computed in float32."""
    keys = _logical_pages(keys, logical)
    mean = keys.mean(-2, keepdim=True)
    return mean.squeeze(-2).half(), (keys - mean).square_().mean(-2).sqrt_().half()


def bounds(keys: torch.Tensor, logical: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """keys [..., pages, 64, d] of any float type -> minimum and maximum of every `logical` tokens, float16
    [..., pages, 64 / logical, d] each, rounded outward: they still hold when keys are not in float16."""
    minimum, maximum = torch.aminmax(_logical_pages(keys, logical), dim=-2)
    return _half_above(minimum.neg_()).neg_(), _half_above(maximum)


def _logical_pages(keys: torch.Tensor, logical: int) -> torch.Tensor:
    """-> float32 [..., pages, 64 / logical, logical, d]"""
    if keys.ndim < 3 or keys.shape[-2] != PAGE:
        raise ValueError(f"keys: got shape {list(keys.shape)}, need [..., pages, {PAGE}, d]")
    if logical < 1 or PAGE % logical:
        raise ValueError(f"logical: got {logical}, need a divisor of {PAGE}")
    return keys.float().clamp(-_LARGEST, _LARGEST).unflatten(-2, (-1, logical))


def _half_above(x: torch.Tensor) -> torch.Tensor:
    """The smallest float16 that is not below x, for float32 x within the range of float16."""
    nearest = x.half()
    bits = nearest.view(torch.int16)
    following = torch.where(nearest < 0, bits - 1, bits + 1).view(torch.float16)
    return torch.where(nearest.float() < x, following, nearest)
