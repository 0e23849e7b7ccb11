"""The tensors behind the KV cache: an exact pool, a packed pool, and the summaries that selectors score pages by.

A KV page holds 64 tokens of every layer. Each layer keeps its keys and values head-major, so neighbouring pages of the
exact pool read as one tensor without a copy. Memory of the whole capacity is reserved once and touched only where pages
are used.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch

from engine.config import ModelConfig, check_layers
from engine.patterns import CoarseKeys, Scorer, summary_layout
from kernels import cpu_jit
from kernels.append_kv import append_kv
from kernels.decode_attention import PAGE, PagedKv
from kernels.kv_codec import (
    FORMATS,
    PackedFormat,
    PackedPages,
    bytes_per_page,
    empty_pages,
    hadamard,
    layer_format,
    requantize_values,
    unpack_page_keys,
    unpack_page_values,
)
from kernels.kv_codec.paged import pack_into, unpack_into
from kernels.place_pages import PageRows

if TYPE_CHECKING:
    from kernels.place_pages.triton import PageTable

EXACT_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SCORERS: tuple[Scorer, ...] = (CoarseKeys(),)
_UNPACKED_AT_ONCE = 64  # KV pages of a layer between two looks at Stop
DEMOTED_BITS = 2  # of the values of demoted pages


class Store(NamedTuple):
    """One tensor that holds KV, [rows, units, ...]: `unit` tokens each, of the packed pool or of the exact one.

    `bytes`: what one unit takes in all rows.
    """

    tensor: torch.Tensor
    unit: int
    packed: bool
    bytes: int

    @classmethod
    def of(cls, tensor: torch.Tensor, unit: int, packed: bool) -> "Store":
        return cls(tensor, unit, packed, tensor.element_size() * tensor.shape[0] * math.prod(tensor.shape[2:]))


def kv_formats() -> tuple[str, ...]:
    """The names of all KV formats."""
    return (*EXACT_DTYPES, *FORMATS)


def bytes_per_token(
    model: ModelConfig,
    kv_format: str,
    scorers: SequenceOf[Scorer] = SCORERS,
    heads: SequenceOf[int] | None = None,
    demoted: bool = False,
    wide: SequenceOf[int] = (),
) -> int:
    """KV bytes that one token of a long sequence takes, with scales and summaries.

    `heads`: for each layer the KV heads that keep it, by default all. `demoted`: with demoted values. `wide`: layers
    with 8-bit keys, as in `layer_formats`.
    """
    d, heads = model.head_dim, heads or [model.kv_heads] * model.layers
    if kv_format in EXACT_DTYPES:
        pages = [2 * PAGE * d * EXACT_DTYPES[kv_format].itemsize] * model.layers
    else:
        formats = demoted_formats(model, kv_format, wide) if demoted else layer_formats(model, kv_format, wide)
        pages = [bytes_per_page(fmt, d) for fmt in formats]
    layouts = [part for layout in _layouts(scorers, d).values() for part in layout]
    summaries = sum(dtype.itemsize * math.prod(shape) for shape, dtype in layouts)
    return -(-sum(count * (page + summaries) for count, page in zip(heads, pages)) // PAGE)


def layer_formats(model: ModelConfig, kv_format: str, wide: SequenceOf[int] = ()) -> list[PackedFormat]:
    """What each layer's pages are packed as, nothing in exact formats. `wide`: layers that keep 8-bit keys."""
    check_layers("wide_key_layers", wide, model.layers)
    if kv_format in EXACT_DTYPES:
        return []
    return [layer_format(kv_format, layer, model.layers, wide) for layer in range(model.layers)]


def format_key(model: ModelConfig, kv_format: str, wide: SequenceOf[int] = ()) -> str:
    """Names what pages hold: two caches of a model read the same bytes alike if and only if theirs are equal.

    The format's name, with those of the layers in `wide` to which it makes a difference.
    """
    usual, formats = layer_formats(model, kv_format), layer_formats(model, kv_format, wide)
    wider = [str(layer) for layer, (a, b) in enumerate(zip(usual, formats)) if a != b]
    return f"{kv_format} with 8-bit keys in {','.join(wider)}" if wider else kv_format


def demoted_formats(model: ModelConfig, kv_format: str, wide: SequenceOf[int] = ()) -> list[PackedFormat]:
    """What each layer's pages become when their values are demoted; nothing where a format has none to demote."""
    if kv_format not in FORMATS or FORMATS[kv_format].float8 or FORMATS[kv_format].value_bits <= DEMOTED_BITS:
        return []
    return [PackedFormat(fmt.key_bits, DEMOTED_BITS) for fmt in layer_formats(model, kv_format, wide)]


def _layouts(scorers: SequenceOf[Scorer], d: int) -> dict[str, list[tuple[tuple[int, ...], torch.dtype]]]:
    """By the name of a summary, the (shape of one page, dtype) of its tensors."""
    return {scorer.summary: summary_layout(scorer, d) for scorer in scorers}


class KvMemory:
    """`pages` of the format; for packed formats `pages` packed ones and `exact_pages` that are not packed (yet).

    `heads`: for each layer how many KV heads it is for, by default all of the model's; then [layers, kv_heads] below
    becomes [1, all of these heads], and `of_layer` tells layers apart. `wide`: layers that keep 8-bit keys in formats
    with fewer.
    `keys` and `values`: the exact pool, [layers, kv_heads, slots, d]. `packed`: for each layer its packed pool. Where
    there is one, values are rotated, in exact pages too. `cold`: for each layer its pool of `cold_pages` whose values
    were demoted; packed pages and these are numbered together, `packed_pages` being the first of these.
    `summaries`: by the name that a scorer gives them, tensors [layers, kv_heads, exact pages + packed pages + cold
    pages, ...], made from the exact keys when a page is complete.
    """

    def __init__(
        self,
        model: ModelConfig,
        kv_format: str,
        pages: int,
        exact_pages: int,
        device: torch.device,
        scorers: SequenceOf[Scorer],
        cold_pages: int = 0,
        heads: SequenceOf[int] | None = None,
        wide: SequenceOf[int] = (),
    ) -> None:
        layers, d = model.layers, model.head_dim
        self.heads = list(heads) if heads is not None else [model.kv_heads] * layers
        shape = (layers, model.kv_heads) if heads is None else (1, sum(heads))
        self._firsts = None if heads is None else [0, *accumulate(heads)]
        self.device, self.packs = device, kv_format not in EXACT_DTYPES
        self.dtype = EXACT_DTYPES.get(kv_format, torch.bfloat16)
        self._compiled = device.type == "cpu" and cpu_jit.available()
        self.exact_pages = exact_pages if self.packs else pages
        self.packed_pages = pages if self.packs else 0
        self.keys = torch.empty(*shape, self.exact_pages * PAGE, d, dtype=self.dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.formats = layer_formats(model, kv_format, wide)
        self.packed = [empty_pages(fmt, (n, pages), d, device) for n, fmt in zip(self.heads, self.formats)]
        self.cold_formats = demoted_formats(model, kv_format, wide) if cold_pages else []
        if cold_pages and not self.cold_formats:
            raise ValueError(f"cold_pages: got {cold_pages}, need 0 for {kv_format}, whose values cannot be demoted")
        self.cold = [empty_pages(fmt, (n, cold_pages), d, device) for n, fmt in zip(self.heads, self.cold_formats)]
        self._scorers = {scorer.summary: scorer for scorer in scorers}
        total = self.exact_pages + self.packed_pages + cold_pages
        self.summaries = {
            name: tuple(torch.zeros(*shape, total, *part, dtype=dtype, device=device) for part, dtype in layout)
            for name, layout in _layouts(scorers, d).items()
        }
        self._page_tables: dict[bool, PageTable | None] = {}
        nothing = [(None, None)] * layers
        packed = zip(self.packed, self.formats) if self.packed else nothing
        cold = zip(self.cold, self.cold_formats) if self.cold else nothing
        exact = ((self.of_layer(self.keys, i), self.of_layer(self.values, i)) for i in range(layers))
        self.layers = [PagedKv(*pools[0], *pools[1], *pools[2]) for pools in zip(exact, packed, cold)]

    def of_layer(self, tensor: torch.Tensor, layer: int) -> torch.Tensor:
        """The part of `keys`, `values` or a summary that belongs to `layer`, [its kv_heads, ...]."""
        if self._firsts is None:
            return tensor[layer]
        return tensor[0, self._firsts[layer] : self._firsts[layer + 1]]

    def write(self, layer: int, slots: SequenceOf[tuple[int, int]], k: torch.Tensor, v: torch.Tensor) -> None:
        """k and v [t, kv_heads, d] into the exact pool, at runs of (first slot, tokens)."""
        kv, v = self.layers[layer], hadamard(v) if self.packs else v
        if self._compiled and k.shape[0] == 1 and k.dtype == v.dtype == torch.float32:
            from kernels.append_kv.cpu import append_one

            append_one(kv.arrays[0], kv.arrays[1], slots[0][0], k, v)
        else:
            append_kv(kv.keys, kv.values, slots, k, v)

    def copy_page(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` tokens of an exact page."""
        a, b = source * PAGE, target * PAGE
        for pool in (self.keys, self.values):
            pool[:, :, b : b + tokens] = pool[:, :, a : a + tokens]

    def pack(self, old: SequenceOf[int], new: SequenceOf[int]) -> None:
        """Exact pages `old`, all complete, into packed pages `new`; their summaries go with them."""
        source, target = torch.tensor(old, device=self.device), torch.tensor(new, device=self.device)
        for kv, packed, fmt in zip(self.layers, self.packed, self.formats):
            pack_into(kv.keys, kv.values, source, packed, fmt, target)
        for tensors in self.summaries.values():
            for stored in tensors:
                stored[:, :, self.exact_pages + target] = stored[:, :, source]

    def demote(self, old: SequenceOf[int], new: SequenceOf[int]) -> None:
        """Packed pages `old` into cold pages `new`, both by their common numbers; their summaries go with them."""
        source, target = torch.tensor(old, device=self.device), torch.tensor(new, device=self.device)
        for pool, fmt, cold in zip(self.packed, self.formats, self.cold):
            chosen = PackedPages(*(part[:, source] for part in pool))
            for stored, part in zip(cold, requantize_values(chosen, fmt, DEMOTED_BITS)[0]):
                stored[:, target - self.packed_pages] = part
        for tensors in self.summaries.values():
            for stored in tensors:
                stored[:, :, self.exact_pages + target] = stored[:, :, self.exact_pages + source]

    def summarize(self, pages: SequenceOf[int]) -> None:
        """Make the summaries of exact pages that have become complete."""
        target = torch.tensor(pages, device=self.device)
        for layer in range(len(self.layers)):
            if not self.heads[layer]:
                continue
            for name, scorer in self._scorers.items():
                stored = [self.of_layer(part, layer) for part in self.summaries[name]]
                scorer.keep(self.layers[layer].keys, target, stored)

    def summary_rows(self, table: torch.Tensor) -> torch.Tensor:
        """Where the summaries of the pages at places `table` lie."""
        return torch.where(table >= 0, table, self.exact_pages + ~table)

    def read_summaries(self, layer: int, name: str, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Summaries `name` of the pages at `rows`, [kv_heads, pages, ...] each."""
        return tuple(self.of_layer(stored, layer).index_select(1, rows) for stored in self.summaries[name])

    def read_all(self, layer: int, table: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """All pages at places `table` into keys and values [kv_heads, at least 64 * pages, d], on a card."""
        unpack_into(self.layers[layer], table, table.shape[0], keys, values)

    def read(
        self,
        layer: int,
        runs: SequenceOf[tuple[bool, int, int]],
        keys: torch.Tensor,
        values: torch.Tensor,
        poll: Callable[[], None],
    ) -> None:
        """Tokens at `runs` of (packed?, first slot, tokens) into keys and values [kv_heads, n, d], in order."""
        done = 0
        for packed, slot, tokens in runs:
            into = slice(done, done + tokens)
            if packed:
                first, end = slot // PAGE, (slot + tokens) // PAGE
                pages = [x[:, into].unflatten(1, (-1, PAGE)) for x in (keys, values)]
                for some in range(first, end, _UNPACKED_AT_ONCE):
                    poll()
                    last = min(some + _UNPACKED_AT_ONCE, end)
                    self._unpack(layer, some, last, *(x[:, some - first : last - first] for x in pages))
            else:
                keys[:, into] = self.layers[layer].keys[:, slot : slot + tokens]
                values[:, into] = self.layers[layer].values[:, slot : slot + tokens]
            done += tokens

    def _unpack(self, layer: int, first: int, end: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Pages `first` to `end` - 1, packed or cold ones, into keys and values [kv_heads, end - first, 64, d]."""
        kv, hot = self.layers[layer], self.packed_pages
        for pool, fmt, start, low, high in (
            (kv.packed, kv.format, 0, first, min(end, hot)),
            (kv.cold, kv.cold_format, hot, max(first, hot), end),
        ):
            if pool is None or fmt is None or low >= high:
                continue
            part = PackedPages(*(x[:, low - start : high - start] for x in pool))
            unpack_page_keys(part, fmt, keys[:, low - first : high - first])
            unpack_page_values(part, fmt, values[:, low - first : high - first])

    @cached_property
    def stores(self) -> list[Store]:
        """Every tensor that holds KV in its full format, in an order that depends on the format alone."""
        stores = [Store.of(pool.flatten(0, 1), 1, False) for pool in (self.keys, self.values)]
        stores += [Store.of(part, PAGE, True) for pool in self.packed for part in pool]
        for name in sorted(self.summaries):
            for part in self.summaries[name]:
                stores.append(Store.of(part[:, :, : self.exact_pages].flatten(0, 1), PAGE, False))
                if self.packs:
                    end = self.exact_pages + self.packed_pages
                    stores.append(Store.of(part[:, :, self.exact_pages : end].flatten(0, 1), PAGE, True))
        return stores

    def page_table(self, packed: bool) -> "PageTable | None":
        """Where whole pages of a pool lie, for one launch; None where they do not begin at whole words."""
        if packed not in self._page_tables:
            from kernels.place_pages.triton import PageTable

            places = [PageRows(store.tensor, PAGE // store.unit) for store in self.stores if store.packed == packed]
            try:
                self._page_tables[packed] = PageTable(places)
            except ValueError:
                self._page_tables[packed] = None
        return self._page_tables[packed]
