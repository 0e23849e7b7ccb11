"""GGUF metadata, brought to a `ModelConfig`. What changes the outputs is honoured or refused by name.

All keys of the architecture are known here; an unknown one is refused unless its value switches it off.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.config import Family, ModelConfig, RopeScaling
from engine.errors import ModelFileError, UnsupportedModelError
from engine.weights.rope_settings import from_factors, native_context, refuse, yarn_attention

ARCHITECTURES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
AGAIN = "Get the file again, or another conversion of the model."
READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "vocab_size",
}
WITHOUT_EFFECT = {"rope.scaling.finetuned", "tensor_data_layout"}
# Settings of which another value than zero means "as always".
NEUTRAL = {"attention.causal": True, "logit_scale": 1.0, "residual_scale": 1.0, "embedding_scale": 1.0}


class Metadata:
    """Typed access to the metadata of one architecture; a missing or wrongly typed entry is a ModelFileError."""

    def __init__(self, values: Mapping[str, Any], arch: str, file: str) -> None:
        self.values, self.arch, self.file = values, arch, file

    def get(self, key: str) -> Any:
        return self.values.get(f"{self.arch}.{key}")

    def whole(self, key: str, default: int | None = None) -> int:
        """A positive whole number; a per-layer list counts if all layers agree."""
        value = self.get(key)
        if value is None:
            value = default
        if isinstance(value, np.ndarray) and len(value) and value.dtype.kind in "iu":
            if (value != value[0]).any():
                raise refuse(f"a {key} that differs between layers", self.file)
            value = int(value[0])
        if type(value) is not int or value <= 0:
            raise ModelFileError(f"{self.file} has {self.arch}.{key} = {value!r}, not a positive whole number.", AGAIN)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number, whole or not."""
        value = self.get(key)
        if value is None:
            value = default
        if type(value) not in (int, float):
            raise ModelFileError(f"{self.file} has {self.arch}.{key} = {value!r}, not a number.", AGAIN)
        return float(value)  # type: ignore[arg-type]


def parse_metadata(
    values: Mapping[str, Any], tensor_names: Sequence[str], factors: Sequence[float] | None, file: str
) -> ModelConfig:
    """`factors`: the contents of rope_freqs.weight where there is one. `file`: the name for messages."""
    arch = values.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file} holds a model of architecture {str(arch)[:40]!r}, which this engine does not run.",
            "Choose a Llama, SmolLM2, Mistral, Qwen2, Qwen2.5 or Qwen3 model.",
        )
    if values.get("split.count", 0) not in (0, 1):
        raise UnsupportedModelError(
            f"{file} is one of {values['split.count']} parts of a model.", "Merge the parts into one file first."
        )
    meta = Metadata(values, arch, file)
    refuse_unknown(meta)
    hidden, heads = meta.whole("embedding_length"), meta.whole("attention.head_count")
    head_dim = meta.whole("attention.key_length", hidden // heads)
    context = meta.whole("context_length")
    for key in ("attention.value_length", "rope.dimension_count"):
        if meta.whole(key, head_dim) != head_dim:
            raise refuse(f"a {key} of {meta.get(key)} with heads of {head_dim}", file)
    window = meta.get("attention.sliding_window")
    if window and not (type(window) is int and window >= context):
        raise refuse(f"attention.sliding_window {window}, shorter than its context of {context},", file)
    theta = meta.number("rope.freq_base", 10000.0)
    tokens = values.get("tokenizer.ggml.tokens")
    try:
        scaling = read_scaling(meta, context)
        if factors is not None:
            if scaling.kind != "default":
                raise refuse(f"{scaling.kind} RoPE scaling together with rope_freqs.weight", file)
            scaling = from_factors(factors, theta, head_dim)
        return ModelConfig(
            family=ARCHITECTURES[arch],
            hidden_size=hidden,
            layers=meta.whole("block_count"),
            heads=heads,
            kv_heads=meta.whole("attention.head_count_kv", heads),
            head_dim=head_dim,
            ffn_size=meta.whole("feed_forward_length"),
            vocab_size=meta.whole("vocab_size", len(tokens) if isinstance(tokens, list) else None),
            norm_eps=meta.number("attention.layer_norm_rms_epsilon"),
            rope_theta=theta,
            rope_scaling=scaling,
            native_context=native_context(context, scaling),
            tied_embeddings="output.weight" not in tensor_names,
            qkv_bias=arch == "qwen2",
            qk_norm=arch == "qwen3",
            eos_ids=token_ids(values, ("eos_token_id", "eot_token_id", "eom_token_id")),
            bos_id=next(iter(token_ids(values, ("bos_token_id",))), None),
        )
    except ValueError as error:
        raise ModelFileError(f"{file} does not describe a possible model ({error}).", AGAIN) from error


def refuse_unknown(meta: Metadata) -> None:
    """Refuses keys of the architecture that are not known, unless their value switches them off."""
    for full, value in meta.values.items():
        key = full.removeprefix(f"{meta.arch}.")
        if key == full or key in READ or key in WITHOUT_EFFECT:
            continue
        if isinstance(value, (list, np.ndarray)):
            off = not any(value)
        else:
            off = value == NEUTRAL[key] if key in NEUTRAL else not value
        if not off:
            raise refuse(f"the setting {full[:120]!r}", meta.file)


def read_scaling(meta: Metadata, context: int) -> RopeScaling:
    """RoPE scaling by metadata (llama3 scaling is not there but in rope_freqs.weight)."""
    kind = meta.get("rope.scaling.type") or "none"
    if meta.get("rope.scaling.type") is None and meta.get("rope.scale_linear"):
        return RopeScaling("linear", factor=meta.number("rope.scale_linear"), original_context=context)
    if kind == "none":
        return RopeScaling()
    if kind not in ("linear", "yarn"):
        raise refuse(f"rope.scaling.type {str(kind)[:40]!r}", meta.file)
    factor = meta.number("rope.scaling.factor")
    original = meta.whole("rope.scaling.original_context_length", context)
    attention = meta.number("rope.scaling.attn_factor", 1.0) * meta.number("rope.scaling.yarn_attn_factor", 1.0)
    if kind == "linear":
        if attention != 1.0:
            raise refuse("rope.scaling.attn_factor with linear scaling", meta.file)
        return RopeScaling("linear", factor=factor, original_context=original)
    if meta.number("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        raise refuse("rope.scaling.yarn_ext_factor", meta.file)
    return RopeScaling(
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=meta.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=meta.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=None if attention == 1.0 else attention * yarn_attention(factor),
    )


def token_ids(values: Mapping[str, Any], keys: Sequence[str]) -> tuple[int, ...]:
    """The ids under tokenizer.ggml.*, those that are there."""
    found = (values.get(f"tokenizer.ggml.{key}") for key in keys)
    return tuple(sorted({value for value in found if type(value) is int}))
