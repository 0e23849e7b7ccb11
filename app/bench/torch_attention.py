"""Dense attention by torch's own kernels in our engine: what sparse and packed attention is to be compared with.

Only attention is replaced, in prefill and in recorded decode steps; every other kernel stays ours. bf16 KV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from app.bench.context import filled, make_cache
from app.bench.decode import step_milliseconds
from app.bench.prefill import TtftRow, measure_ttft
from engine import attention
from engine.attention import EXACT, AttentionPlan
from engine.model import Decoder


def torch_prefill(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, poll: Callable[[], None] | None = None
) -> torch.Tensor:
    """As `kernels.prefill_attention.prefill_attention`."""
    bias: Any = causal_lower_right(q.shape[0], k.shape[1])
    out = scaled_dot_product_attention(q.transpose(0, 1)[None], k[None], v[None], bias, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)


def torch_decode(
    q: torch.Tensor,
    kv: Any,
    table: torch.Tensor,
    lists: object,
    length: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    *rest: object,
    tokens: int,
    weights: torch.Tensor | None = None,
) -> None:
    """As `kernels.decode_attention.triton.paged_decode`, `kv` being a `PagedKv`, for a sequence of `tokens` tokens in
    the first pages of the pool, in order, and one query."""
    k, v = kv.keys[None, :, :tokens], kv.values[None, :, :tokens]
    q = q.to(k.dtype)
    out.copy_(scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, scale=scale, enable_gqa=True)[0, :, 0][None])


@contextmanager
def replaced(module: Any, name: str, by: object) -> Iterator[None]:
    """`module.name` is `by` in the block."""
    own = getattr(module, name)
    setattr(module, name, by)
    try:
        yield
    finally:
        setattr(module, name, own)


def torch_tpot(decoder: Decoder, length: int) -> float:
    """Milliseconds of a recorded step on the device."""
    from engine.cuda import graph_decode
    from engine.kv_memory import SCORERS

    device = decoder.embed.device
    cache = make_cache(decoder.config, "bf16", length + 64, device)
    with replaced(graph_decode, "paged_decode", partial(torch_decode, tokens=length + 1)):
        graphs = graph_decode.GraphDecoder(decoder, cache, SCORERS[0], length + 64)
        graphs.capture()  # takes pages of its own for a while
    sequence = filled(cache, length)
    cache.prepare(sequence, length + 64)
    if sequence.table != list(range(len(sequence.table))):
        raise RuntimeError("table: got pages apart, need the first ones in order")
    return step_milliseconds(graphs, sequence, AttentionPlan(answering=EXACT))


def torch_ttft(decoder: Decoder, length: int, chunk: int) -> TtftRow:
    """A whole prompt by torch's flash attention; its last token through our own decode."""
    with replaced(attention, "prefill_attention", torch_prefill):
        return measure_ttft(decoder, "bf16", length, "exact", chunk)
