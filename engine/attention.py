"""Attention as the model sees it: write the new keys and values, read the sequence's pages, call the kernel."""

from collections.abc import Callable

import torch

from engine.cache import KvCache, Sequence
from engine.model import Attend
from kernels.decode_attention import SEGMENT, decode_attention, segments_are_independent
from kernels.kv_codec import hadamard
from kernels.prefill_attention import prefill_attention


def prefill_attend(
    cache: KvCache, sequence: Sequence, tokens: int, dtype: torch.dtype, poll: Callable[[], None]
) -> Attend:
    """Attention of the next `tokens` tokens to the past and causally to themselves, computed in `dtype`."""
    slots = cache.new_slots(sequence, tokens)
    length = sequence.length + tokens
    view = cache.view(sequence, length, length, dtype)
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
    length = sequence.length + 1
    view = cache.view(sequence, length, SEGMENT if _layout_is_free(cache) else length)
    scale = cache.model.head_dim**-0.5

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        poll()
        cache.append(layer, slots, k, v)
        out = decode_attention(q[0], view.read(layer), scale)
        return (hadamard(out) if cache.packs else out)[None]

    return attend, view.pages


def _layout_is_free(cache: KvCache) -> bool:
    """Whether decode attention gives the same bits when its pieces are cut where pages stop being neighbours."""
    model = cache.model
    return cache.device.type == "cpu" and segments_are_independent(
        model.kv_heads, model.heads // model.kv_heads, model.head_dim, cache.dtype, torch.get_num_threads()
    )
