"""Attention as the model sees it: write the new keys and values, read the sequence's pages, call the kernel."""

from collections.abc import Callable

import torch

from engine.cache import KvCache, Sequence
from engine.model import Attend
from kernels.decode_attention import decode_attention
from kernels.kv_codec import hadamard
from kernels.prefill_attention import prefill_attention


def prefill_attend(
    cache: KvCache, sequence: Sequence, tokens: int, dtype: torch.dtype, poll: Callable[[], None]
) -> Attend:
    """Attention of the next `tokens` tokens to the past and causally to themselves, computed in `dtype`."""
    slots = cache.new_slots(sequence, tokens)
    view = cache.view(sequence, sequence.length + tokens, dtype)
    scale = cache.model.head_dim**-0.5

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        cache.append(layer, slots, k, v)
        ((keys, values),) = view.read(layer)
        out = prefill_attention(q.to(dtype), keys, values, scale, poll)
        return hadamard(out) if cache.packs else out

    return attend


def decode_attend(cache: KvCache, sequence: Sequence, poll: Callable[[], None]) -> tuple[Attend, int]:
    """Attention of the next token to everything; also the number of KV pages that it reads in each layer."""
    slots = cache.new_slots(sequence, 1)
    view = cache.view(sequence, sequence.length + 1)
    scale = cache.model.head_dim**-0.5

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        poll()
        cache.append(layer, slots, k, v)
        out = decode_attention(q[0], view.read(layer), scale)
        return (hadamard(out) if cache.packs else out)[None]

    return attend, view.pages
