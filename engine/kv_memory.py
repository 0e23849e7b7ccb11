"""The tensors behind the KV cache: an exact pool, a packed pool, and the summaries that selectors score pages by.

A KV page holds 64 tokens of every layer. Each layer keeps its keys and values head-major, so neighbouring pages of the
exact pool read as one tensor without a copy. Memory of the whole capacity is reserved once and touched only where pages
are used.
"""

import math
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import torch

from engine.config import ModelConfig
from engine.patterns import MeanStd, Scorer, summary_layout
from kernels.append_kv import append_kv
from kernels.decode_attention import PAGE, PagedKv
from kernels.kv_codec import (
    FORMATS,
    PackedPages,
    bytes_per_page,
    empty_pages,
    hadamard,
    layer_format,
    pack_pages,
    unpack_page_keys,
    unpack_page_values,
)

EXACT_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SCORERS: tuple[Scorer, ...] = (MeanStd(),)


class Store(NamedTuple):
    """One tensor that holds KV, [rows, units, ...]: `unit` tokens each, of the packed pool or of the exact one."""

    tensor: torch.Tensor
    unit: int
    packed: bool


def kv_formats() -> tuple[str, ...]:
    """The names of all KV formats."""
    return (*EXACT_DTYPES, *FORMATS)


def bytes_per_token(model: ModelConfig, kv_format: str, scorers: SequenceOf[Scorer] = SCORERS) -> int:
    """KV bytes that one token of a long sequence takes, with scales and summaries."""
    d = model.head_dim
    if kv_format in EXACT_DTYPES:
        pages = model.layers * 2 * PAGE * d * EXACT_DTYPES[kv_format].itemsize
    else:
        pages = sum(bytes_per_page(layer_format(kv_format, i, model.layers), d) for i in range(model.layers))
    layouts = [part for layout in _layouts(scorers, d).values() for part in layout]
    summaries = sum(dtype.itemsize * math.prod(shape) for shape, dtype in layouts)
    return -(-model.kv_heads * (pages + model.layers * summaries) // PAGE)


def _layouts(scorers: SequenceOf[Scorer], d: int) -> dict[str, list[tuple[tuple[int, ...], torch.dtype]]]:
    """By the name of a summary, the (shape of one page, dtype) of its tensors."""
    return {scorer.summary: summary_layout(scorer, d) for scorer in scorers}


class KvMemory:
    """`pages` of the format; for packed formats `pages` packed ones and `exact_pages` that are not packed (yet).

    `keys` and `values`: the exact pool, [layers, kv_heads, slots, d]. `packed`: for each layer its packed pool. Where
    there is one, values are rotated, in exact pages too. `summaries`: by the name that a scorer gives them, tensors
    [layers, kv_heads, exact pages + packed pages, ...], made from the exact keys when a page is complete.
    """

    def __init__(
        self,
        model: ModelConfig,
        kv_format: str,
        pages: int,
        exact_pages: int,
        device: torch.device,
        scorers: SequenceOf[Scorer],
    ) -> None:
        layers, heads, d = model.layers, model.kv_heads, model.head_dim
        self.device, self.packs = device, kv_format not in EXACT_DTYPES
        self.dtype = EXACT_DTYPES.get(kv_format, torch.bfloat16)
        self.exact_pages = exact_pages if self.packs else pages
        self.keys = torch.empty(layers, heads, self.exact_pages * PAGE, d, dtype=self.dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.formats = [layer_format(kv_format, layer, layers) for layer in range(layers)] if self.packs else []
        self.packed = [empty_pages(fmt, (heads, pages), d, device) for fmt in self.formats]
        self._scorers = {scorer.summary: scorer for scorer in scorers}
        total = self.exact_pages + (pages if self.packs else 0)
        self.summaries = {
            name: tuple(
                torch.zeros(layers, heads, total, *shape, dtype=dtype, device=device) for shape, dtype in layout
            )
            for name, layout in _layouts(scorers, d).items()
        }
        self.layers = [
            PagedKv(self.keys[i], self.values[i], self.packed[i], self.formats[i])
            if self.packs
            else PagedKv(self.keys[i], self.values[i])
            for i in range(layers)
        ]

    def write(self, layer: int, slots: SequenceOf[tuple[int, int]], k: torch.Tensor, v: torch.Tensor) -> None:
        """k and v [t, kv_heads, d] into the exact pool, at runs of (first slot, tokens)."""
        append_kv(self.keys[layer], self.values[layer], slots, k, hadamard(v) if self.packs else v)

    def copy_page(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` tokens of an exact page."""
        a, b = source * PAGE, target * PAGE
        for pool in (self.keys, self.values):
            pool[:, :, b : b + tokens] = pool[:, :, a : a + tokens]

    def pack(self, old: SequenceOf[int], new: SequenceOf[int]) -> None:
        """Exact pages `old`, all complete, into packed pages `new`; their summaries go with them."""
        source, target = torch.tensor(old, device=self.device), torch.tensor(new, device=self.device)
        for layer, (pool, fmt) in enumerate(zip(self.packed, self.formats)):
            keys, values = (x[layer].unflatten(1, (-1, PAGE))[:, source] for x in (self.keys, self.values))
            for stored, part in zip(pool, pack_pages(keys, values, fmt)):
                stored[:, target] = part
        for tensors in self.summaries.values():
            for stored in tensors:
                stored[:, :, self.exact_pages + target] = stored[:, :, source]

    def summarize(self, pages: SequenceOf[int]) -> None:
        """Make the summaries of exact pages that have become complete."""
        target = torch.tensor(pages, device=self.device)
        for layer in range(len(self.layers)):
            keys = self.keys[layer].unflatten(1, (-1, PAGE))[:, target]
            for name, scorer in self._scorers.items():
                made = scorer.summarize(keys)
                for stored, part in zip(self.summaries[name], made if isinstance(made, tuple) else (made,)):
                    stored[layer][:, target] = part

    def summary_rows(self, table: torch.Tensor) -> torch.Tensor:
        """Where the summaries of the pages at places `table` lie."""
        return torch.where(table >= 0, table, self.exact_pages + ~table)

    def read_summaries(self, layer: int, name: str, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Summaries `name` of the pages at `rows`, [kv_heads, pages, ...] each."""
        return tuple(stored[layer].index_select(1, rows) for stored in self.summaries[name])

    def read(
        self, layer: int, runs: SequenceOf[tuple[bool, int, int]], keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Tokens at `runs` of (packed?, first slot, tokens) into keys and values [kv_heads, n, d], in order."""
        done = 0
        for packed, slot, tokens in runs:
            into = slice(done, done + tokens)
            if packed:
                first, fmt = slot // PAGE, self.formats[layer]
                part = PackedPages(*(x[:, first : first + tokens // PAGE] for x in self.packed[layer]))
                unpack_page_keys(part, fmt, keys[:, into].unflatten(1, (-1, PAGE)))
                unpack_page_values(part, fmt, values[:, into].unflatten(1, (-1, PAGE)))
            else:
                keys[:, into] = self.keys[layer, :, slot : slot + tokens]
                values[:, into] = self.values[layer, :, slot : slot + tokens]
            done += tokens

    def stores(self) -> list[Store]:
        """Every tensor that holds KV, in an order that depends on the format alone."""
        stores = [Store(pool.flatten(0, 1), 1, False) for pool in (self.keys, self.values)]
        stores += [Store(part, PAGE, True) for pool in self.packed for part in pool]
        for name in sorted(self.summaries):
            for part in self.summaries[name]:
                stores.append(Store(part[:, :, : self.exact_pages].flatten(0, 1), PAGE, False))
                if self.packs:
                    stores.append(Store(part[:, :, self.exact_pages :].flatten(0, 1), PAGE, True))
        return stores
