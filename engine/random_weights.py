"""Shapes of well-known models, to be filled with random weights: speed does not depend on what is in them."""

from collections.abc import Callable

import torch

from engine.card_weights import pack_layer
from engine.config import ModelConfig, RopeScaling
from engine.model import Decoder, LayerWeights
from engine.rope import resolve_rope
from kernels.linear import DenseWeight, pack_fp8

CONTEXT = 1 << 20


def _shape(
    hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, ffn: int, vocab: int, qwen: bool = False
) -> ModelConfig:
    return ModelConfig(
        family="qwen3" if qwen else "llama",
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_size=ffn,
        vocab_size=vocab,
        norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=RopeScaling(),
        native_context=CONTEXT,
        tied_embeddings=False,
        qkv_bias=False,
        qk_norm=qwen,
        eos_ids=(),
        bos_id=None,
    )


SHAPES: dict[str, ModelConfig] = {
    "smollm2-135m": _shape(576, 30, 9, 3, 64, 1536, 49152),
    "llama-3.2-1b": _shape(2048, 16, 32, 8, 64, 8192, 128256),
    "qwen3-4b": _shape(2560, 36, 32, 8, 128, 9728, 151936, qwen=True),
    "llama-3-8b": _shape(4096, 32, 32, 8, 128, 14336, 128256),
}


def random_decoder(
    shape: ModelConfig, weights: str, device: torch.device, progress: Callable[[float], None] = lambda share: None
) -> Decoder:
    """`shape` with weights that keep activations near their size; packed layer by layer as `weights` says (bf16, fp8,
    int4), so that no more than one layer is there twice."""
    made = torch.Generator(device=device).manual_seed(0)

    def matrix(rows: int, columns: int) -> DenseWeight:
        weight = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
        return DenseWeight(weight.normal_(0, columns**-0.5, generator=made))

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, device=device)

    d, hidden = shape.head_dim, shape.hidden_size
    layers: list[LayerWeights] = []
    for number in range(shape.layers):
        layer = LayerWeights(
            attn_norm=ones(hidden),
            qkv=matrix((shape.heads + 2 * shape.kv_heads) * d, hidden),
            o=matrix(hidden, shape.heads * d),
            ffn_norm=ones(hidden),
            gate_up=matrix(2 * shape.ffn_size, hidden),
            down=matrix(hidden, shape.ffn_size),
            q_norm=ones(d) if shape.qk_norm else None,
            k_norm=ones(d) if shape.qk_norm else None,
        )
        layers.append(layer if weights == "bf16" else pack_layer(layer, weights))
        progress((number + 1) / shape.layers)
    embed, head = matrix(shape.vocab_size, hidden).weight, matrix(shape.vocab_size, hidden)
    rope = resolve_rope(shape, shape.rope_scaling, CONTEXT, str(device))
    packed = head if weights == "bf16" else pack_fp8(head.weight)
    return Decoder(shape, rope, embed, layers, layers, ones(hidden), packed)
