"""Chunked prefill attention in torch: the past needs no mask, the chunk itself is causal; the two are merged.

Queries of one KV head are stacked into one long query block over the past, so that its keys are read once and never
copied per query head.
"""

from collections.abc import Callable

import torch

from kernels.partial_attention import merge_attention, partial_attention

_PAST_KEYS = 8192  # keys per part of the past: how often `poll` is called


def prefill_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, poll: Callable[[], None] | None = None
) -> torch.Tensor:
    """q [t, heads, d]; k and v [kv_heads, n, d] with the chunk's own t tokens last, of one dtype -> [t, heads, d].

    `poll` is called between parts and may raise to give up.
    """
    tokens, heads, d = q.shape
    kv_heads, past = k.shape[0], k.shape[1] - tokens
    group = heads // kv_heads
    q = q.transpose(0, 1)  # [heads, t, d]
    own_k, own_v = (x[:, past:].repeat_interleave(group, 0) for x in (k, v))
    parts = [partial_attention(q, own_k, own_v, scale, causal=True)]
    stacked = q.reshape(kv_heads, group * tokens, d)
    for first in range(0, past, _PAST_KEYS):
        if poll:
            poll()
        end = min(first + _PAST_KEYS, past)
        out, lse = partial_attention(stacked, k[:, first:end], v[:, first:end], scale)
        parts.append((out.reshape(heads, tokens, d), lse.reshape(heads, tokens)))
    return merge_attention(parts).to(q.dtype).transpose(0, 1)
