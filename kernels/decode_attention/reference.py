"""Decode attention in torch over runs of consecutive KV pages: zero-copy views, one part each, merged in order.

A long run is cut in two halves that are computed side by side, which keeps two cores busy where the number of KV heads
is odd. The cut depends on the length alone, so a result never depends on the number of threads.
"""

from collections.abc import Sequence

import torch

from kernels.partial_attention import merge_attention, partial_attention

_SPLIT_FROM = 1024  # tokens


def decode_attention(q: torch.Tensor, runs: Sequence[tuple[torch.Tensor, torch.Tensor]], scale: float) -> torch.Tensor:
    """q [heads, d]; runs of (keys, values), each [kv_heads, n, d] -> float32 [heads, d].

    The query is rounded to the type of the keys.
    """
    heads, d = q.shape
    kv_heads = runs[0][0].shape[0]
    q = q.reshape(kv_heads, heads // kv_heads, d).to(runs[0][0].dtype)  # the heads of a group as query rows
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    for k, v in runs:
        if k.shape[1] >= _SPLIT_FROM:
            parts += _two_halves(q, k, v, scale)
        else:
            parts.append(partial_attention(q, k, v, scale))
    return merge_attention([(out.float(), lse) for out, lse in parts]).reshape(heads, d)


def _two_halves(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    kv_heads, tokens = k.shape[:2]
    half = tokens // 2
    halves = [x[:, : 2 * half].unflatten(1, (2, half)).flatten(0, 1) for x in (k, v)]
    out, lse = partial_attention(q.repeat_interleave(2, 0), halves[0], halves[1], scale)
    out, lse = out.unflatten(0, (kv_heads, 2)), lse.unflatten(0, (kv_heads, 2))
    parts = [(out[:, 0], lse[:, 0]), (out[:, 1], lse[:, 1])]
    if tokens % 2:
        parts.append(partial_attention(q, k[:, -1:], v[:, -1:], scale))
    return parts
