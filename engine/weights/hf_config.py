"""config.json of a Hugging Face folder, brought to a `ModelConfig`.

A field that changes the model's outputs is honoured or refused by name. Fields whose name suggests such an effect and
that are not known here are refused too, unless their value switches them off.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

from engine.config import FAMILIES, Family, ModelConfig
from engine.errors import ModelFileError, UnsupportedModelError
from engine.weights.rope_settings import from_huggingface, native_context, refuse

ARCHITECTURES = {f"{family.capitalize()}ForCausalLM": family for family in FAMILIES}
SUSPICIOUS = re.compile(
    "attn|attention|rope|rotary|window|sink|softcap|logit|scal|multiplier|expert|moe|bias|norm|layer_type|chunk|residual"
    "|clamp|clip|qk|kv|quantization|alibi|head|mlp|parallel|temperature_tuning|adapter"
)
READ = {
    "attention_bias",
    "head_dim",
    "hidden_act",
    "layer_types",
    "max_window_layers",
    "mlp_bias",
    "num_attention_heads",
    "num_key_value_heads",
    "partial_rotary_factor",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "use_sliding_window",
}
WITHOUT_EFFECT = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_flash_attn_2_enabled",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_implementation",
    "attn_pdrop",
    "forced_bos_token_id",
    "output_attentions",
    "tie_encoder_decoder",
    "use_flash_attn",
}
SWITCHED_OFF: tuple[Any, ...] = (None, False, 0, "", [], {})


def parse_config(fields: Mapping[str, Any], generation: Mapping[str, Any], name: str) -> ModelConfig:
    """`fields`: config.json, `generation`: generation_config.json (may be empty), `name`: the folder, for messages."""
    family = read_family(fields, name)
    hidden, heads = whole(fields, "hidden_size", name), whole(fields, "num_attention_heads", name)
    max_position = whole(fields, "max_position_embeddings", name)
    layers = whole(fields, "num_hidden_layers", name)
    refuse_unknown(fields, name)
    refuse_windows(fields, family, layers, max_position, name)
    head_dim = fields.get("head_dim") or (128 if family == "qwen3" else hidden // heads)
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ModelFileError(f"config.json of {name} has rope settings that are not an object.", "Get the file again.")
    try:
        original = fields.get("original_max_position_embeddings")
        if original is not None and rope:
            rope = {**rope, "original_max_position_embeddings": original}
        scaling = from_huggingface(rope, max_position, name)
        return ModelConfig(
            family=family,
            hidden_size=hidden,
            layers=layers,
            heads=heads,
            kv_heads=fields.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            ffn_size=whole(fields, "intermediate_size", name),
            vocab_size=whole(fields, "vocab_size", name),
            norm_eps=fields.get("rms_norm_eps", 1e-6),
            rope_theta=rope.get("rope_theta") or fields.get("rope_theta") or 10000.0,
            rope_scaling=scaling,
            native_context=native_context(max_position, scaling),
            tied_embeddings=bool(fields.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            eos_ids=tuple(sorted({*ids(fields, "eos_token_id", name), *ids(generation, "eos_token_id", name)})),
            bos_id=next(iter(ids(fields, "bos_token_id", name)), None),
        )
    except (ValueError, TypeError) as error:
        raise ModelFileError(
            f"config.json of {name} does not describe a possible model ({error}).", "Get the model's folder again."
        ) from error


def read_family(fields: Mapping[str, Any], name: str) -> Family:
    """From `architectures`, or from `model_type` where that is missing."""
    listed = fields.get("architectures")
    if isinstance(listed, list) and listed:
        family = ARCHITECTURES.get(str(listed[0]))
        told = str(listed[0])
    else:
        told = str(fields.get("model_type"))
        family = told if told in FAMILIES else None
    if family is None or fields.get("model_type", family) != family:
        raise UnsupportedModelError(
            f"{name} is a {told} model of type {fields.get('model_type')!r}, which this engine does not run.",
            "Choose a Llama, SmolLM2, Mistral, Qwen2, Qwen2.5 or Qwen3 model.",
        )
    return cast(Family, family)


def refuse_unknown(fields: Mapping[str, Any], name: str) -> None:
    """Refuses biases, other activations, and every unknown field that may change the outputs."""
    if fields.get("hidden_act", "silu") not in ("silu", "swish"):
        raise refuse(f"hidden_act {fields['hidden_act']!r}", name)
    for key in ("attention_bias", "mlp_bias"):
        if fields.get(key):
            raise refuse(key, name)
    if fields.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise refuse("partial_rotary_factor", name)
    for key, value in fields.items():
        if key in READ or key in WITHOUT_EFFECT or not SUSPICIOUS.search(key):
            continue
        if not any(value == off for off in SWITCHED_OFF):
            raise refuse(f"the setting {key!r}", name)


def refuse_windows(fields: Mapping[str, Any], family: Family, layers: int, context: int, name: str) -> None:
    """Refuses sliding-window attention, unless no layer uses it or the window is never shorter than the context."""
    window = fields.get("sliding_window", 4096 if family == "mistral" else None)
    types = fields.get("layer_types")
    if types is not None:
        windowed = [kind for kind in types if kind != "full_attention"]
        unknown = [kind for kind in windowed if kind != "sliding_attention"]
        if unknown:
            raise refuse(f"layer_types with {unknown[0]!r}", name)
        if windowed and (window is None or window < context):
            raise refuse("layer_types with 'sliding_attention'", name)
    if family in ("qwen2", "qwen3"):
        first = fields.get("max_window_layers", 28)
        if not fields.get("use_sliding_window", False) or types is not None or first >= layers:
            return
    if window is not None and window < context:
        raise refuse(f"sliding_window {window}, shorter than its context of {context},", name)


def whole(fields: Mapping[str, Any], key: str, name: str) -> int:
    """A field that must be there and be a positive whole number."""
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelFileError(
            f"config.json of {name} has {key} = {value!r} where a positive whole number belongs.",
            "Get the model's folder again.",
        )
    return value


def ids(fields: Mapping[str, Any], key: str, name: str) -> tuple[int, ...]:
    """A token id, a list of them, or nothing."""
    value = fields.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in values):
        raise ModelFileError(f"{name} has {key} = {value!r} where token ids belong.", "Get the model's folder again.")
    return tuple(values)
