"""Attention as the model sees it: write the new keys and values, read the sequence's pages, call the kernel."""

from collections.abc import Callable

import torch

from engine.cache import PAGE, KvCache, Sequence
from kernels.block_index import BlockIndex
from kernels.decode_attention import decode_attention
from kernels.kv_codec import hadamard
from kernels.prefill_attention import prefill_attention


class PrefillAttention:
    """The next `tokens` tokens of a prepared sequence attend to the past and causally to themselves, in `dtype`."""

    def __init__(
        self, cache: KvCache, sequence: Sequence, tokens: int, dtype: torch.dtype, poll: Callable[[], None]
    ) -> None:
        self._cache, self._poll, self._dtype = cache, poll, dtype
        self._slots = cache.new_slots(sequence, tokens)
        self._view = cache.view(sequence, sequence.length + tokens, dtype)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.memory.write(layer, self._slots, k, v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        keys, values = self._view.read(layer)
        out = prefill_attention(q.to(self._dtype), keys, values, self._cache.model.head_dim**-0.5, self._poll)
        return hadamard(out) if self._cache.packs else out


class DecodeAttention:
    """The next token of a prepared sequence attends to its pages.

    `pages_read`: KV pages listed so far, over layers and KV heads.
    """

    def __init__(self, cache: KvCache, sequence: Sequence) -> None:
        self._cache = cache
        self._length = sequence.length + 1
        self._slots = cache.new_slots(sequence, 1)
        self._table = cache.table(sequence, self._length)
        self._dense = _all_pages(cache.model.kv_heads, -(-self._length // PAGE), cache.device)
        self.pages_read = 0

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.memory.write(layer, self._slots, k, v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        kv, index = self._cache.memory.layers[layer], self._dense
        out, _ = decode_attention(q[0], kv, self._table, index, self._length, self._cache.model.head_dim**-0.5)
        self.pages_read += index.pages.shape[0]
        return (hadamard(out) if self._cache.packs else out)[None]


def _all_pages(kv_heads: int, pages: int, device: torch.device) -> BlockIndex:
    """The index in which every KV head reads every page."""
    offsets = torch.arange(kv_heads + 1, dtype=torch.int32, device=device) * pages
    return BlockIndex(offsets, torch.arange(pages, dtype=torch.int32, device=device).repeat(kv_heads))
