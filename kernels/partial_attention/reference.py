"""Softmax attention that also returns its log-sum-exp, so that parts can be merged into the attention over all keys.

On the CPU torch's own flash kernel gives both. It is a private operator, so its signature and its result are checked
once, when this module is first used; without it, and on other devices, plain matrix products do the same work.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch

_PRODUCT_KEYS = 4096  # keys per step of the plain path: bounds the score matrix


def partial_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [..., heads, t, d], k and v [..., heads, n, d] of one dtype -> output like q, log-sum-exp [..., heads, t].

    At most one more leading dimension. `causal`: query i sees keys 0 to i; t and n are then the same. n is at least 1.
    """
    if q.device.type == "cpu" and flash_is_available():
        if q.dim() == 3:
            out, lse = _flash(q[None], k[None], v[None], scale, causal)
            return out[0], lse[0]
        return _flash(q, k, v, scale, causal)
    return _by_products(q, k, v, scale, causal)


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=causal, scale=scale)
    return out, lse.float()


def merge_attention(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Merge (output, log-sum-exp) of disjoint sets of keys, in the order given -> [..., heads, t, d]."""
    if len(parts) == 1:
        return parts[0][0]
    lse = torch.stack([part[1] for part in parts])  # [parts, ..., heads, t]
    weights = torch.softmax(lse, dim=0).unsqueeze(-1)
    out = parts[0][0] * weights[0]
    for (part, _), weight in zip(parts[1:], weights[1:]):
        out = torch.addcmul(out, part.to(out.dtype), weight)
    return out


def _by_products(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    parts = []
    for first in range(0, k.shape[-2], _PRODUCT_KEYS):
        keys, values = (x[..., first : first + _PRODUCT_KEYS, :].float() for x in (k, v))
        scores = q.float() @ keys.transpose(-2, -1) * scale
        if causal:
            position = torch.arange(first, first + keys.shape[-2], device=q.device)
            scores.masked_fill_(position[None, :] > torch.arange(q.shape[-2], device=q.device)[:, None], -math.inf)
        lse = scores.logsumexp(-1)
        # A query that sees no key of this part has a log-sum-exp of minus infinity: its weight in the merge is 0.
        weights = torch.nan_to_num(torch.exp(scores - lse[..., None]), nan=0.0)
        parts.append((weights @ values, lse))
    return merge_attention(parts).to(q.dtype), torch.stack([lse for _, lse in parts]).logsumexp(0)


@lru_cache
def flash_is_available() -> bool:
    """Whether torch's CPU flash attention exists, takes our arguments and agrees with plain products."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, 16, generator=generator) for n in (5, 9, 9))
    try:
        out, lse = _flash(q[None], k[None], v[None], 0.25, False)
        expected, expected_lse = _by_products(q, k, v, 0.25, False)
        return torch.allclose(out[0], expected, atol=1e-5) and torch.allclose(lse[0], expected_lse, atol=1e-5)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
