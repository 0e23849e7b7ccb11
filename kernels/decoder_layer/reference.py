"""The two halves of a decoder layer around its attention, in the operations of this package one by one."""

from typing import TYPE_CHECKING

import torch

from kernels.linear import linear
from kernels.rms_norm import reference as norms
from kernels.rope import reference as turning
from kernels.swiglu import reference as gating

if TYPE_CHECKING:
    from kernels.decoder_layer import Layer


def begin(
    x: torch.Tensor, layer: "Layer", eps: float, heads: tuple[int, int], angles: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x float32 [1, hidden]; heads: of q, and of k or v; cos and sin [1, d] -> q, k and v [1, heads, d], q and k
    normed where the layer has norms for them, and rotated."""
    rows = linear(norms.rms_norm(x, layer.attn_norm, eps), layer.qkv).unflatten(1, (-1, angles[0].shape[1]))
    q, k, v = rows.split((heads[0], heads[1], heads[1]), dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = norms.rms_norm(q, layer.q_norm, eps), norms.rms_norm(k, layer.k_norm, eps)
    return turning.rope(q, *angles), turning.rope(k, *angles), v


def finish(x: torch.Tensor, attended: torch.Tensor, layer: "Layer", eps: float) -> torch.Tensor:
    """x float32 [1, hidden] and what attention gave, [1, heads, d] -> x float32 behind the layer."""
    x = x + linear(attended.flatten(1), layer.o)
    return x + linear(gating.swiglu(linear(norms.rms_norm(x, layer.ffn_norm, eps), layer.gate_up)), layer.down)
