"""RoPE settings of Hugging Face and GGUF, brought to one `RopeScaling`; what is unknown is refused by name."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engine.config import RopeScaling
from engine.errors import UnsupportedModelError

SUPPORTED_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
KNOWN_FIELDS = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"},
}
COMMON_FIELDS = {"type", "rope_type", "rope_theta", "original_max_position_embeddings", "partial_rotary_factor"}
# What the llama3 converters wrote: (low_freq_factor, high_freq_factor, original_context).
PUBLISHED_LLAMA3 = ((1.0, 4.0, 8192),)


def refuse(what: str, name: str) -> UnsupportedModelError:
    """The error for a setting that changes the model's outputs and that this engine does not compute."""
    return UnsupportedModelError(
        f"{name} asks for {what}, which this engine does not compute.",
        "Supported are Llama 2 and 3, SmolLM2, Mistral, Qwen2, Qwen2.5 and Qwen3 models with full attention and "
        "default, linear, dynamic, llama3 or YaRN RoPE scaling.",
    )


def from_huggingface(settings: Mapping[str, Any], max_position: int, name: str) -> RopeScaling:
    """`settings`: `rope_scaling` or `rope_parameters` of config.json. ValueError for impossible numbers."""
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in SUPPORTED_KINDS:
        raise refuse(f"rope type {kind!r}", name)
    if settings.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise refuse("partial_rotary_factor", name)
    for key, value in settings.items():
        if key not in COMMON_FIELDS | KNOWN_FIELDS[kind] and value is not None:
            raise refuse(f"the rope setting {key!r} with type {kind!r}", name)
    if settings.get("truncate") not in (None, True):
        raise refuse("the rope setting 'truncate' = false", name)
    if kind == "default":
        return RopeScaling()
    original = settings.get("original_max_position_embeddings") or max_position
    factor = settings.get("factor")
    if factor is None and kind == "yarn":
        factor = max_position / original
    attention = settings.get("attention_factor")
    mscale, mscale_all = settings.get("mscale"), settings.get("mscale_all_dim")
    if kind == "yarn" and attention is None and mscale and mscale_all:
        attention = yarn_attention(factor, mscale) / yarn_attention(factor, mscale_all)
    return RopeScaling(
        kind=kind,
        factor=factor,  # type: ignore[arg-type]  # RopeScaling itself refuses None
        original_context=max_position if kind == "dynamic" else original,
        low_freq_factor=settings.get("low_freq_factor"),
        high_freq_factor=settings.get("high_freq_factor"),
        beta_fast=settings.get("beta_fast") or 32.0,
        beta_slow=settings.get("beta_slow") or 1.0,
        attention_factor=attention,
    )


def yarn_attention(factor: Any, mscale: float = 1.0) -> float:
    """YaRN's multiplier of cos and sin."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def from_factors(factors: Sequence[float], theta: float, head_dim: int) -> RopeScaling:
    """The scaling behind GGUF's `rope_freqs.weight` (head_dim / 2 divisors): llama3 if it is a published one."""
    values = tuple(float(factor) for factor in factors)
    if all(value == 1.0 for value in values):
        return RopeScaling()
    for low, high, original in PUBLISHED_LLAMA3:
        candidate = RopeScaling(
            "llama3",
            factor=max(1.0, *values),
            original_context=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
        expected = llama3_factors(candidate, theta, head_dim)
        if len(expected) == len(values) and all(abs(a - b) <= 1e-5 * b for a, b in zip(expected, values)):
            return candidate
    return RopeScaling("factors", factors=values)


def llama3_factors(scaling: RopeScaling, theta: float, head_dim: int) -> list[float]:
    """The divisors of the inverse frequencies that llama3 scaling stands for."""
    low, high, original = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_context
    if low is None or high is None or original is None:
        raise ValueError(f"scaling: got {scaling}, need one of kind llama3")
    factors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        smooth = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return factors


def native_context(max_position: int, scaling: RopeScaling) -> int:
    """Tokens that the model handles with its own scaling.

    Published configs give `max_position_embeddings` before linear, dynamic or YaRN scaling, or (YaRN) already after it.
    """
    if scaling.kind in ("linear", "dynamic", "yarn"):
        return max(max_position, int((scaling.original_context or max_position) * scaling.factor))
    return max_position
