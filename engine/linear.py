"""Turning a model file's tensors into the weights that prefill and decode multiply with."""

from collections.abc import Callable

import torch

from engine.model import Decoder, LayerWeights
from engine.rope import Rope
from engine.weights.source import GroupQuantized, ModelSource
from kernels.decoder_layer import layer_step
from kernels.linear import INT4_GROUPS, DenseWeight, Weight, pack_int4, pack_int8

Progress = Callable[[float], None]
MATRICES = {"qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
NORMS = ("attn_norm", "ffn_norm", "q_norm", "k_norm")


def load_decoder(
    source: ModelSource,
    rope: Rope,
    dtype: torch.dtype,
    device: str,
    progress: Progress = lambda share: None,
    pack: Callable[[LayerWeights], LayerWeights] = lambda layer: layer,
) -> Decoder:
    """All weights in `dtype`, for prefill and decode alike; fused matrices are concatenated rows. `pack`: what becomes
    of each layer before the next one is read."""
    config = source.config

    def get(name: str, dtype: torch.dtype) -> torch.Tensor:
        return _read(source, name).to(device=device, dtype=dtype)

    def dense(prefix: str, parts: tuple[str, ...]) -> DenseWeight:
        rows = [_read(source, prefix + part).to(dtype) for part in parts]
        weight = (torch.cat(rows) if len(rows) > 1 else rows[0]).to(device)
        return DenseWeight(weight, _bias(source, prefix, parts, device, dtype))

    embed = get("embed", dtype)
    layers = []
    for index in range(config.layers):
        prefix = f"layers.{index}."
        norms = {part: get(prefix + part, torch.float32) for part in NORMS if prefix + part in source.names}
        layers.append(pack(_layer({name: dense(prefix, parts) for name, parts in MATRICES.items()}, norms)))
        progress((index + 1) / config.layers)
    head = DenseWeight(embed if config.tied_embeddings else get("lm_head", dtype))
    return Decoder(config, rope, embed, layers, layers, get("norm", torch.float32), head)


def _read(source: ModelSource, name: str) -> torch.Tensor:
    """A tensor; stored 4-bit and 8-bit groups are expanded here, which torch does faster than the file's reader."""
    stored = source.quantized(name)
    return source.tensor(name) if stored is None else stored.dequantize()


def _layer(matrices: dict[str, Weight], norms: dict[str, torch.Tensor]) -> LayerWeights:
    return LayerWeights(
        attn_norm=norms["attn_norm"],
        qkv=matrices["qkv"],
        o=matrices["o"],
        ffn_norm=norms["ffn_norm"],
        gate_up=matrices["gate_up"],
        down=matrices["down"],
        q_norm=norms.get("q_norm"),
        k_norm=norms.get("k_norm"),
    )


def _bias(
    source: ModelSource, prefix: str, parts: tuple[str, ...], device: str, dtype: torch.dtype
) -> torch.Tensor | None:
    names = [f"{prefix}{part}_bias" for part in parts]
    if names[0] not in source.names:
        return None
    return torch.cat([source.tensor(name) for name in names]).to(device=device, dtype=dtype)


def pack_layers(source: ModelSource, dense: Decoder, int4: bool, progress: Progress = lambda share: None) -> Decoder:
    """`dense` with packed weights for decode: int8, or int4 where `int4` is set and the file has 4-bit codes."""
    layers = []
    for index, layer in enumerate(dense.layers):
        packed: dict[str, Weight] = {
            name: _pack(source, [f"layers.{index}.{part}" for part in parts], getattr(layer, name), int4)
            for name, parts in MATRICES.items()
        }
        layers.append(_layer(packed, {name: getattr(layer, name) for name in NORMS}))
        progress((index + 1) / len(dense.layers))
    head_name = "embed" if dense.config.tied_embeddings else "lm_head"
    head = _pack(source, [head_name], dense.head, int4)
    steps = [step for layer in layers if (step := layer_step(layer)) is not None]
    whole = steps if len(steps) == len(layers) else None
    return Decoder(dense.config, dense.rope, dense.embed, dense.layers, layers, dense.norm, head, whole)


def _pack(source: ModelSource, names: list[str], dense: Weight, int4: bool) -> Weight:
    if not isinstance(dense, DenseWeight):
        raise TypeError(f"dense: got {type(dense).__name__}, need DenseWeight")
    stored = [source.quantized(name) for name in names] if int4 else []
    four_bit = [s for s in stored if s is not None and s.bits == 4 and s.group_size in INT4_GROUPS]
    if len(four_bit) == len(names) and len({s.group_size for s in four_bit}) == 1 and _shape_fits(dense.weight):
        return pack_int4(
            torch.cat([s.codes for s in four_bit]),
            torch.cat([s.scales for s in four_bit]),
            torch.cat([s.minimums for s in four_bit]),
            four_bit[0].group_size,
            dense.bias,
        )
    return pack_int8(dense.weight, dense.bias)


def _shape_fits(weight: torch.Tensor) -> bool:
    """torch's int4 layout needs whole blocks of 16 rows and an even number of columns."""
    return weight.shape[0] % 16 == 0 and weight.shape[1] % 2 == 0


def four_bit_share(source: ModelSource) -> float:
    """The share of layer matrices that the file stores in 4-bit groups, judged by the first layer."""
    names = [f"layers.0.{part}" for parts in MATRICES.values() for part in parts]
    stored: list[GroupQuantized | None] = [source.quantized(name) for name in names]
    return sum(s is not None and s.bits == 4 for s in stored) / len(names)
