"""A coarse copy of a page's keys, 2 bits an entry: what a selector judges single tokens by.

The codes are those of 2-bit keys (`kernels.kv_codec.reference.quantize`): key = code * scale + minimum, with a scale
and a minimum for each page and channel.
"""

import torch

from kernels import triton_jit
from kernels.kv_codec.bits import pack_codes, unpack_codes
from kernels.kv_codec.formats import PAGE, check_head_dim
from kernels.kv_codec.reference import quantize

COARSE_BITS = 2


def coarse_keys(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """keys [..., pages, 64, d] of any float type -> codes uint8 [..., pages, 64, d / 4], scale and minimum float16
    [..., pages, d]."""
    check_head_dim(keys.shape[-1])
    if keys.ndim < 3 or keys.shape[-2] != PAGE:
        raise ValueError(f"keys: got shape {list(keys.shape)}, need [..., pages, {PAGE}, d]")
    codes, scale, minimum = quantize(keys, -2, COARSE_BITS)
    return pack_codes(codes, COARSE_BITS), scale, minimum


def coarse_codes(codes: torch.Tensor) -> torch.Tensor:
    """codes uint8 [..., d / 4] -> 0.0 to 3.0, float32 [..., d]."""
    return unpack_codes(codes, COARSE_BITS).float()


def logical_statistics(
    codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, logical: int = 16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Coarse keys [kv_heads, pages] -> mean and population standard deviation of every `logical` tokens, float16
    [kv_heads, pages, 64 / logical, d] each."""
    if triton_jit.available(codes.device):
        from kernels.kv_codec import triton_coarse

        heads, pages, d = scale.shape
        made = torch.empty(2, heads, pages, PAGE // logical, d, dtype=torch.float16, device=codes.device)
        rows = torch.arange(pages, device=codes.device)
        triton_coarse.logical_statistics(codes, scale, minimum, rows, logical, made[0], made[1])
        return made[0], made[1]
    steps = coarse_codes(codes).unflatten(-2, (-1, logical))
    scale, minimum, average = scale.float()[..., None, :], minimum.float()[..., None, :], steps.mean(-2)
    deviation = (steps.square_().mean(-2) - average**2).clamp_(min=0).sqrt_()
    return torch.addcmul(minimum, scale, average).half(), (scale * deviation).half()
