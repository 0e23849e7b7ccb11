"""Decode attention in torch: segments of 1024 tokens, each attended to by itself, then merged in order.

The cut depends on positions alone, so the result need not depend on where the KV pages lie. Segments that are
neighbours in memory are computed side by side in one call; where that changes their last bits, which it does for some
types and libraries, `segments_are_independent` says so and the caller passes one piece instead.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch

from kernels.partial_attention import partial_attention

SEGMENT = 1024  # tokens


def decode_attention(
    q: torch.Tensor, pieces: Sequence[tuple[torch.Tensor, torch.Tensor]], scale: float
) -> torch.Tensor:
    """q [heads, d]; pieces of (keys, values), each [kv_heads, n, d], in order -> float32 [heads, d].

    Every piece but the last holds a multiple of 1024 tokens. The query is rounded to the type of the keys.
    """
    heads, d = q.shape
    kv_heads = pieces[0][0].shape[0]
    q = q.reshape(kv_heads, heads // kv_heads, d).to(pieces[0][0].dtype)  # the heads of a group as query rows
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []  # output [kv_heads, segments, group, d] and log-sum-exp
    for k, v in pieces:
        whole = k.shape[1] // SEGMENT * SEGMENT
        if whole:
            parts.append(_segments(q, k[:, :whole], v[:, :whole], scale))
        if whole < k.shape[1]:
            out, lse = partial_attention(q, k[:, whole:], v[:, whole:], scale)
            parts.append((out[:, None], lse[:, None]))
    out = torch.cat([out for out, _ in parts], dim=1).float()  # [kv_heads, segments, group, d]
    if out.shape[1] > 1:
        lse = torch.cat([lse for _, lse in parts], dim=1)
        weights = (lse - lse.amax(dim=1, keepdim=True)).exp_()[..., None]  # torch's softmax is slow over this dimension
        out = out.mul_(weights).sum(dim=1) / weights.sum(dim=1)
    return out.reshape(heads, d)


@lru_cache
def segments_are_independent(kv_heads: int, group: int, d: int, dtype: torch.dtype, threads: int) -> bool:
    """Whether segments computed together and one by one agree bit for bit in these shapes, with so many threads."""
    del threads  # part of the cache's key: the number that torch uses now
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(kv_heads, 3 * SEGMENT, d, generator=generator).to(dtype) for _ in range(2))
    q = torch.randn(kv_heads * group, d, generator=generator)
    alone = [(k[:, at : at + SEGMENT], v[:, at : at + SEGMENT]) for at in range(0, 3 * SEGMENT, SEGMENT)]
    return torch.equal(decode_attention(q, [(k, v)], d**-0.5), decode_attention(q, alone, d**-0.5))


def _segments(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    kv_heads, count = k.shape[0], k.shape[1] // SEGMENT
    if count == 1:
        out, lse = partial_attention(q, k, v, scale)
        return out[:, None], lse[:, None]
    # [kv_heads, segments, 1024, d]: a view, and the segments are heads to the kernel.
    out, lse = partial_attention(
        q[:, None].expand(-1, count, -1, -1), k.unflatten(1, (count, SEGMENT)), v.unflatten(1, (count, SEGMENT)), scale
    )
    return out.view(kv_heads, count, *q.shape[1:]), lse.view(kv_heads, count, q.shape[1])
