"""Chunked prefill attention in torch: blocks of 512 queries, each to what lies before it, without a mask, and causally
to itself; the two are merged.

To the past the query heads of one KV head go as rows of one matrix: torch's kernel then takes 256 rows at a time
against the same keys instead of 64. To itself a block goes head by head, with keys repeated through a view, not a copy.
"""

from collections.abc import Callable

import torch

from kernels.partial_attention import merge_attention, partial_attention

_QUERY_BLOCK = 512
_PAST_KEYS = 8192  # keys per part of the past: how often `poll` is called


def prefill_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, poll: Callable[[], None] | None = None
) -> torch.Tensor:
    """q [t, heads, d]; k and v [kv_heads, n, d] with the chunk's own t tokens last, of one dtype -> [t, heads, d].

    `poll` is called between parts and may raise to give up.
    """
    tokens, past = q.shape[0], k.shape[1] - q.shape[0]
    out = torch.empty_like(q)
    for first in range(0, tokens, _QUERY_BLOCK):
        end = min(first + _QUERY_BLOCK, tokens)
        out[first:end] = _block(q[first:end], k[:, : past + end], v[:, : past + end], scale, poll)
    return out


def _block(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, poll: Callable[[], None] | None
) -> torch.Tensor:
    tokens, heads = q.shape[:2]
    kv_heads, past = k.shape[0], k.shape[1] - tokens
    grouped = q.transpose(0, 1).unflatten(0, (kv_heads, heads // kv_heads))  # [kv_heads, group, t, d]
    own_k, own_v = (x[:, None, past:].expand(-1, grouped.shape[1], -1, -1) for x in (k, v))
    parts = [partial_attention(grouped, own_k, own_v, scale, causal=True)]
    packed = grouped.flatten(1, 2) if past else grouped  # [kv_heads, group * t, d]
    for first in range(0, past, _PAST_KEYS):
        if poll:
            poll()
        keys = slice(first, min(first + _PAST_KEYS, past))
        out, lse = partial_attention(packed, k[:, keys], v[:, keys], scale)
        parts.append((out.unflatten(1, grouped.shape[1:3]), lse.unflatten(1, grouped.shape[1:3])))
    return merge_attention(parts).flatten(0, 1).transpose(0, 1)
