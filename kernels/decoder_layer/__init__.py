"""One token through everything of a decoder layer but attention, in one call from one attention to the next.

Only on a CPU, where starting a dozen operations a layer costs more than many of them compute. What it computes is
`linear`, `rms_norm`, `rope` and `swiglu` of this package in the order of `engine.model.Decoder.hidden`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from kernels import cpu_jit
from kernels.cpu_jit import as_numpy, parallel_lock
from kernels.linear import Int8Weight, NibbleWeight, Weight

__all__ = ["LayerStep", "StepState", "layer_step", "next_queries"]

_NOTHING = np.zeros(0, np.float32)


class Layer(Protocol):
    """The weights of a layer; qkv: rows of q, then k, then v. gate_up: rows of gate, then up. Norms float32."""

    @property
    def attn_norm(self) -> torch.Tensor: ...
    @property
    def qkv(self) -> Weight: ...
    @property
    def o(self) -> Weight: ...
    @property
    def ffn_norm(self) -> torch.Tensor: ...
    @property
    def gate_up(self) -> Weight: ...
    @property
    def down(self) -> Weight: ...
    @property
    def q_norm(self) -> torch.Tensor | None: ...
    @property
    def k_norm(self) -> torch.Tensor | None: ...


@dataclass(frozen=True)
class LayerStep:
    """The arrays of a layer: those used before attention and those used after it."""

    before: tuple[Any, ...]
    after: tuple[Any, ...]


@dataclass(frozen=True)
class StepState:
    """One token on its way: the residual stream x [1, hidden], then q [1, heads, d], k and v [1, kv_heads, d], all
    float32, each overwritten from layer to layer; cos and sin [1, d]."""

    x: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return tuple(part.numpy() for part in (self.x, self.q, self.k, self.v, self.cos, self.sin))


def layer_step(layer: Layer) -> LayerStep | None:
    """None where the compiled kernels are missing or cannot take this layer's weights."""
    after = (layer.o, layer.gate_up, layer.down)
    packed = all(isinstance(weight, Int8Weight | NibbleWeight) for weight in (layer.qkv, *after))
    if not packed or any(weight.bias is not None for weight in after) or not cpu_jit.available():
        return None
    extras = (layer.qkv.bias, layer.q_norm, layer.k_norm)
    return LayerStep(
        (layer.attn_norm.numpy(), _arrays(layer.qkv), *(_NOTHING if x is None else x.float().numpy() for x in extras)),
        (_arrays(layer.o), layer.ffn_norm.numpy(), _arrays(layer.gate_up), _arrays(layer.down)),
    )


def next_queries(
    state: StepState, eps: float, finished: LayerStep | None, attended: torch.Tensor | None, begun: LayerStep | None
) -> None:
    """Finish one layer with what its attention gave, float32 [1, heads, d], and begin the next: x is updated and q, k
    and v become those of `begun`, rotated. The first call finishes none, the last one begins none."""
    from kernels.decoder_layer import cpu

    x, *begin_with = state.arrays
    with parallel_lock:
        if finished is not None and attended is not None:
            cpu.finish(x, attended.contiguous().view(1, -1).numpy(), *finished.after, np.float32(eps))
        if begun is not None:
            cpu.begin(x, *begun.before, np.float32(eps), *begin_with)


def _arrays(weight: Weight) -> tuple[np.ndarray, ...]:
    if isinstance(weight, NibbleWeight):
        return weight.arrays
    if isinstance(weight, Int8Weight):
        return weight.codes.numpy(), as_numpy(weight.scales)
    raise TypeError(f"weight: got {type(weight).__name__}, need Int8Weight or NibbleWeight")
