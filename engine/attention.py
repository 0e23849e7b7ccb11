"""Attention as the model sees it: write the new keys and values, read the sequence's pages, call the kernel."""

from collections.abc import Callable

import torch

from engine.cache import KvCache, Sequence
from kernels.decode_attention import SEGMENT, decode_attention, segments_are_independent
from kernels.kv_codec import hadamard
from kernels.prefill_attention import prefill_attention


class PrefillAttention:
    """The next `tokens` tokens of a prepared sequence attend to the past and causally to themselves, in `dtype`."""

    def __init__(
        self, cache: KvCache, sequence: Sequence, tokens: int, dtype: torch.dtype, poll: Callable[[], None]
    ) -> None:
        length = sequence.length + tokens
        self._cache, self._poll, self._dtype = cache, poll, dtype
        self._slots = cache.new_slots(sequence, tokens)
        self._view = cache.view(sequence, length, length, dtype)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.append(layer, self._slots, k, v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        ((keys, values),) = self._view.read(layer)
        out = prefill_attention(q.to(self._dtype), keys, values, self._cache.model.head_dim**-0.5, self._poll)
        return hadamard(out) if self._cache.packs else out


class DecodeAttention:
    """The next token of a prepared sequence attends to everything. `pages`: KV pages that it reads in each layer."""

    def __init__(self, cache: KvCache, sequence: Sequence) -> None:
        length = sequence.length + 1
        self._cache = cache
        self._slots = cache.new_slots(sequence, 1)
        self._view = cache.view(sequence, length, SEGMENT if _layout_is_free(cache) else length)
        self.pages = self._view.pages

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.append(layer, self._slots, k, v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        out = decode_attention(q[0], self._view.read(layer), self._cache.model.head_dim**-0.5)
        return (hadamard(out) if self._cache.packs else out)[None]


def _layout_is_free(cache: KvCache) -> bool:
    """Whether decode attention gives the same bits when its pieces are cut where pages stop being neighbours."""
    model = cache.model
    return cache.device.type == "cpu" and segments_are_independent(
        model.kv_heads, model.heads // model.kv_heads, model.head_dim, cache.dtype, torch.get_num_threads()
    )
