"""The decoder: Llama, SmolLM2, Mistral, Qwen2 and Qwen3 are one computation with three flags.

    x = embed[ids]
    for each layer:  x += o(attention(rope(q, k), v)) of rms_norm(x)
                     x += down(silu(gate) * up) of rms_norm(x)
    logits = head(rms_norm(x))

The flags: a bias on q, k and v (Qwen2), an RMS norm on the heads of q and k (Qwen3), tied embeddings. The residual
stream is float32. Where keys and values are kept is the caller's business: it passes an `Attention`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from engine.config import ModelConfig
from engine.rope import Rope
from kernels.decoder_layer import LayerStep, StepState, next_queries
from kernels.linear import Weight, activation_dtype, linear
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu

Angles = tuple[torch.Tensor, torch.Tensor]


class Attention(Protocol):
    """Keeps the keys and values of t new tokens and attends with their queries; queries and keys come rotated."""

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """k and v [t, kv_heads, d]."""
        ...

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """q [t, heads, d] -> [t, heads, d], after `append` for the same layer."""
        ...


@runtime_checkable
class FusedAttention(Attention, Protocol):
    """One that rotates and appends in one launch, on a card."""

    def rotate_and_append(
        self, layer: int, qkv: torch.Tensor, norms: tuple[torch.Tensor | None, torch.Tensor | None], angles: Angles
    ) -> torch.Tensor:
        """qkv [t, (heads + 2 kv_heads) * d]; norms of q's and k's heads; cos and sin [t, d] -> q [t, heads, d]."""
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. qkv: rows of q, then k, then v. gate_up: rows of gate, then up. Norm weights are float32."""

    attn_norm: torch.Tensor
    qkv: Weight
    o: Weight
    ffn_norm: torch.Tensor
    gate_up: Weight
    down: Weight
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Decoder:
    """All weights of a model: `layers` serve prefill, `decode_layers` and `head` serve decode (packed, or the same).

    `steps`: on a CPU, `decode_layers` for the compiled kernel that takes one token from attention to attention.
    """

    config: ModelConfig
    rope: Rope
    embed: torch.Tensor  # [vocab, hidden]
    layers: Sequence[LayerWeights]
    decode_layers: Sequence[LayerWeights]
    norm: torch.Tensor
    head: Weight
    steps: Sequence[LayerStep] | None = None

    def hidden(
        self,
        ids: torch.Tensor,
        start: int,
        layers: Sequence[LayerWeights],
        attention: Attention,
        poll: Callable[[], None],
        kv_only: bool = False,
    ) -> torch.Tensor:
        """ids [t] at positions from `start` on -> float32 [t, hidden]. `poll` runs between steps and may raise.

        `kv_only`: nothing is wanted but keys and values; the result then lacks the last layer.
        """
        eps = self.config.norm_eps
        angles = self.rope.angles(start, start + ids.shape[0])
        x, delta = self.embed[ids].float(), None
        fused = attention if isinstance(attention, FusedAttention) else None  # looked at once: the check is slow
        for index, layer in enumerate(layers):
            x, normed = add_rms_norm(x, delta, layer.attn_norm, eps, activation_dtype(layer.qkv))
            if fused is not None:
                norms = layer.q_norm, layer.k_norm
                q = fused.rotate_and_append(index, linear(normed, layer.qkv), norms, angles)
            else:
                q, k, v = self.qkv(layer, normed, angles)
                attention.append(index, k, v)
            if kv_only and index == len(layers) - 1:
                return x
            delta = linear(attention.attend(index, q).flatten(1), layer.o)
            poll()
            x, normed = add_rms_norm(x, delta, layer.ffn_norm, eps, activation_dtype(layer.gate_up))
            delta = linear(swiglu(linear(normed, layer.gate_up)), layer.down)
            poll()
        return x if delta is None else x + delta

    def next_hidden(self, token: int, position: int, attention: Attention, poll: Callable[[], None]) -> torch.Tensor:
        """`hidden` of one token through `decode_layers`, float32 [1, hidden]."""
        if self.steps is None:
            ids = torch.tensor([token], device=self.embed.device)
            return self.hidden(ids, position, self.decode_layers, attention, poll)
        config, eps = self.config, self.config.norm_eps
        q, k, v = torch.empty(1, config.heads + 2 * config.kv_heads, config.head_dim).split(
            (config.heads, config.kv_heads, config.kv_heads), dim=1
        )
        x = self.embed[token].float()[None].clone()
        state = StepState(x, q, k, v, *self.rope.angles(position, position + 1))
        finished = attended = None
        for index, begun in enumerate(self.steps):
            next_queries(state, eps, finished, attended, begun)
            poll()
            attention.append(index, k, v)
            finished, attended = begun, attention.attend(index, q)
            poll()
        next_queries(state, eps, finished, attended, None)
        return x

    def qkv(
        self, layer: LayerWeights, x: torch.Tensor, angles: Angles
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [t, heads, d], k and v [t, kv_heads, d] from the normed x [t, hidden]; q and k rotated."""
        config = self.config
        heads = (config.heads, config.kv_heads)
        qkv = linear(x, layer.qkv).unflatten(1, (-1, config.head_dim))
        qk, v = qkv.split((sum(heads), config.kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split(heads, dim=1)
            qk = torch.cat(
                (rms_norm(q, layer.q_norm, config.norm_eps), rms_norm(k, layer.k_norm, config.norm_eps)), dim=1
            )
        q, k = rope(qk, *angles).split(heads, dim=1)
        return q, k, v

    def logits(self, hidden: torch.Tensor, head: Weight | None = None) -> torch.Tensor:
        """hidden [t, hidden] -> float32 [t, vocab]."""
        return linear(rms_norm(hidden, self.norm, self.config.norm_eps), head or self.head).float()
