"""Rotary frequencies: every scaling is resolved once, at the declared context, into fixed frequencies.

Cached keys stay valid because nothing here depends on how long a sequence has become.
"""

import math
from dataclasses import dataclass

import torch

from engine.config import ModelConfig, RopeScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """inv_freq float32 [head_dim / 2], in radians per token; cos and sin are multiplied by `amplitude`."""

    inv_freq: torch.Tensor
    amplitude: float

    def angles(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the positions start to end - 1, float32 [t, head_dim], as `kernels.rope` takes them."""
        return self.at(torch.arange(start, end, device=self.inv_freq.device))

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `angles`, of integer `positions` [t] on the device of the frequencies."""
        angles = positions.float()[:, None] * self.inv_freq
        cos, sin = angles.cos() * self.amplitude, angles.sin() * self.amplitude
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def resolve_rope(model: ModelConfig, scaling: RopeScaling, context: int, device: str = "cpu") -> Rope:
    """The frequencies of `model` under `scaling`, for a window of `context` tokens."""
    d, theta = model.head_dim, model.rope_theta
    original = scaling.original_context or model.native_context
    amplitude = 1.0 if scaling.attention_factor is None else scaling.attention_factor
    match scaling.kind:
        case "default":
            inv_freq = _frequencies(theta, d)
        case "linear":
            inv_freq = _frequencies(theta, d) / scaling.factor
        case "ntk":
            inv_freq = _frequencies(theta * scaling.factor ** (d / (d - 2)), d)
        case "dynamic":
            stretch = scaling.factor * max(context, original) / original - (scaling.factor - 1)
            inv_freq = _frequencies(theta * stretch ** (d / (d - 2)), d)
        case "llama3":
            inv_freq = _llama3(_frequencies(theta, d), scaling)
        case "yarn":
            inv_freq = _yarn(_frequencies(theta, d), theta, d, scaling, original)
            if scaling.attention_factor is None:
                amplitude = 0.1 * math.log(scaling.factor) + 1.0
        case "factors":
            inv_freq = _frequencies(theta, d) / torch.tensor(scaling.factors, dtype=torch.float32)
    return Rope(inv_freq.to(device), amplitude)


def ntk_factor(base_multiplier: float, head_dim: int) -> float:
    """The `factor` of kind "ntk" that multiplies the RoPE base by `base_multiplier`."""
    return base_multiplier ** ((head_dim - 2) / head_dim)


def _frequencies(theta: float, d: int) -> torch.Tensor:
    return 1.0 / theta ** (torch.arange(0, d, 2, dtype=torch.float32) / d)


def _llama3(inv_freq: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    low, high, original = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_context
    if low is None or high is None or original is None:
        raise ValueError(f"rope_scaling: got {scaling}, need the three llama3 fields")
    wavelength = 2 * math.pi / inv_freq
    smooth = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq


def _yarn(inv_freq: torch.Tensor, theta: float, d: int, scaling: RopeScaling, original: int) -> torch.Tensor:
    def dimension(rotations: float) -> float:
        """The dimension whose wavelength turns that often within the original context."""
        return d * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), d - 1)
    ramp = (torch.arange(d // 2, dtype=torch.float32) - low) / (high - low or 0.001)
    stretched = ramp.clamp(0, 1)
    return inv_freq / scaling.factor * stretched + inv_freq * (1 - stretched)
