"""The paged KV cache: sequences of token ids, their KV pages, and how pages are shared between them.

A KV page holds 64 tokens of every layer. Each layer keeps its keys and values head-major, [kv_heads, slots, head_dim],
and a page is a slice of 64 slots, so neighbouring pages read as one tensor without a copy. Memory of the whole
capacity is reserved once and touched only where pages are used.

Formats: f32 and bf16 keep what was computed. k8v4 packs a page (kernels.kv_codec) once it is complete and 128 newer
tokens have followed; the sink page (page 0) stays exact, and values are stored rotated, exact pages included.
"""

from array import array
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import torch

from engine.config import ModelConfig
from engine.errors import EngineError
from engine.pages import PagePool, runs
from kernels.append_kv import append_kv
from kernels.kv_codec import PackedKeys, PackedValues, hadamard, pack_keys, pack_values, unpack_keys, unpack_values

PAGE = 64
EXACT_RECENT = 128  # tokens that k8v4 never packs at the end of a sequence
EXACT_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "k8v4": torch.bfloat16}
KeysValues = tuple[torch.Tensor, torch.Tensor]


@dataclass(slots=True)
class Sequence:
    """Token ids with valid KV, and the pages that hold it.

    `table`: for each KV page its number in the exact pool, or ~number (negative) in the packed pool.
    `by_decode`: one byte per token, 1 where decode made the KV and 0 where prefill did.
    `packed`: in k8v4, how many leading pages have their final form (the sink, exact, and the packed ones), or 0.
    `reserve`: packed pages taken in advance.
    """

    ids: array = field(default_factory=lambda: array("i"))
    by_decode: bytearray = field(default_factory=bytearray)
    table: list[int] = field(default_factory=list)
    packed: int = 0
    reserve: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.ids)


def bytes_per_token(model: ModelConfig, kv_format: str) -> int:
    """KV bytes that one token of a long sequence takes, scales included."""
    d = model.head_dim
    match kv_format:
        case "f32":
            head = 2 * 4 * d
        case "bf16":
            head = 2 * 2 * d
        case _:
            head = d + d // 2 + 4 + -(-4 * d // PAGE)  # key and value codes, value scale, a share of the key scales
    return model.layers * model.kv_heads * head


class KvCache:
    """All KV memory of an engine, and the operations on sequences.

    `pages`: capacity in KV pages. In k8v4 so many packed pages, and `exact_pages` more that are not packed (yet).
    """

    def __init__(
        self, model: ModelConfig, kv_format: str, pages: int, exact_pages: int = 0, device: str = "cpu"
    ) -> None:
        self.model, self.kv_format, self.device = model, kv_format, torch.device(device)
        self.packs = kv_format == "k8v4"
        self.dtype = EXACT_DTYPES[kv_format]
        layers, heads, d = model.layers, model.kv_heads, model.head_dim
        exact = exact_pages if self.packs else pages
        self.exact = PagePool(exact)
        self.keys = torch.empty(layers, heads, exact * PAGE, d, dtype=self.dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.packed = PagePool(pages if self.packs else 0)
        if self.packs:

            def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
                return torch.empty(layers, heads, *shape, dtype=dtype, device=device)

            half = torch.float16
            self.packed_keys = PackedKeys(
                empty(pages, PAGE, d, dtype=torch.uint8), empty(pages, d, dtype=half), empty(pages, d, dtype=half)
            )
            self.packed_values = PackedValues(
                empty(pages * PAGE, d // 2, dtype=torch.uint8),
                empty(pages * PAGE, dtype=half),
                empty(pages * PAGE, dtype=half),
            )

    # Sequences

    def prepare(self, sequence: Sequence, length: int, final_length: int | None = None) -> None:
        """Take pages so that `sequence` can grow to `length` tokens, and set room aside for `final_length`."""
        needed = -(-length // PAGE) - len(sequence.table)
        if self.packs:
            wanted = -(-(final_length or length) // PAGE) - sequence.packed - len(sequence.reserve)
            if wanted > 0:
                last = sequence.reserve[-1] if sequence.reserve else self._last_packed(sequence)
                sequence.reserve += self.packed.take(wanted, last)
        else:
            needed = -(-(final_length or length) // PAGE) - len(sequence.table)
        if needed > 0:
            last = sequence.table[-1] if sequence.table and sequence.table[-1] >= 0 else None
            sequence.table += self.exact.take(needed, last)

    @staticmethod
    def _last_packed(sequence: Sequence) -> int | None:
        return next((~page for page in reversed(sequence.table) if page < 0), None)

    def trim(self, sequence: Sequence) -> None:
        """Give back pages behind the last token and those set aside."""
        keep = -(-sequence.length // PAGE)
        self._release(sequence.table[keep:])
        del sequence.table[keep:]
        self.packed.release(sequence.reserve)
        sequence.reserve.clear()

    def free(self, sequence: Sequence) -> None:
        """Give back everything; the sequence is empty afterwards."""
        self.packed.release(sequence.reserve)
        self._release(sequence.table)
        sequence.table.clear()
        sequence.reserve.clear()
        sequence.packed = 0
        del sequence.ids[:], sequence.by_decode[:]

    def fork(self, sequence: Sequence, length: int) -> Sequence:
        """A second sequence with the first `length` tokens: complete pages are shared, an incomplete one is copied.

        The copy belongs to the fork, so the pages of the original stay one run. EngineError if no page is free for it.
        """
        complete, rest = divmod(length, PAGE)
        table = sequence.table[:complete]
        copies = []
        if rest:
            if sequence.table[complete] < 0:
                raise ValueError(f"length: got {length}, which cuts a packed page, need a multiple of {PAGE}")
            copies = self.exact.take(1)
            source, target = sequence.table[complete] * PAGE, copies[0] * PAGE
            for store in (self.keys, self.values):
                store[:, :, target : target + rest] = store[:, :, source : source + rest]
        self._share(table)
        table += copies
        packed = min(sequence.packed, complete)
        return Sequence(sequence.ids[:length], sequence.by_decode[:length], table, packed if packed > 1 else 0)

    def commit(self, sequence: Sequence, ids: SequenceOf[int], by_decode: bool) -> None:
        """Declare the KV of `ids`, already written by all layers, part of the sequence; pack what has become old."""
        sequence.ids.extend(ids)
        sequence.by_decode.extend(bytes([by_decode]) * len(ids))
        if self.packs:
            self._pack_old(sequence)

    def adopt(
        self, sequence: Sequence, ids: SequenceOf[int], by_decode: bytes, packed: SequenceOf[bool]
    ) -> list[tuple[bool, int, int]]:
        """Add tokens whose KV comes from elsewhere: `packed` says for each new page which pool it belongs to.

        `sequence` ends at a page edge and is prepared for its final length. -> the slots to fill, as `pages.runs` does.
        EngineError if the pages do not suffice; the sequence is then as before.
        """
        start, pages = sequence.length, sequence.length // PAGE
        if self.packs:
            exact = len(packed) - sum(packed)
            if exact > self.exact.free + len(sequence.table) - pages or sum(packed) > len(sequence.reserve):
                raise EngineError("The KV cache has too few free pages to restore into.", "Close a conversation.")
            self._release(sequence.table[pages:])
            del sequence.table[pages:]
            for is_packed in packed:
                sequence.table += [~sequence.reserve.pop(0)] if is_packed else self.exact.take(1)
            if any(packed):
                sequence.packed = pages + len(packed) - list(reversed(packed)).index(True)
        sequence.ids.extend(ids)
        sequence.by_decode.extend(by_decode)
        return runs(sequence.table, PAGE, start, sequence.length)

    def _share(self, table: list[int]) -> None:
        self.exact.share(page for page in table if page >= 0)
        self.packed.share(~page for page in table if page < 0)

    def _release(self, table: list[int]) -> None:
        self.exact.release(page for page in table if page >= 0)
        self.packed.release(~page for page in table if page < 0)

    # Tensors

    def append(self, layer: int, slots: list[tuple[int, int]], k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k and v [t, kv_heads, d] into the slots that `slots` (from `new_slots`) names."""
        if self.packs:
            v = hadamard(v)
        append_kv(self.keys[layer], self.values[layer], slots, k, v)

    def new_slots(self, sequence: Sequence, tokens: int) -> list[tuple[int, int]]:
        """Where the next `tokens` tokens of a prepared sequence go."""
        found = runs(sequence.table, PAGE, sequence.length, sequence.length + tokens)
        return [(slot, count) for _, slot, count in found]

    def view(self, sequence: Sequence, length: int, piece: int, dtype: torch.dtype | None = None) -> "View":
        """How to read the first `length` tokens, in pieces as `dtype`; None: float32 if any is packed, else as kept."""
        return View(self, sequence, length, piece, dtype or (torch.float32 if sequence.packed else self.dtype))

    def _pack_old(self, sequence: Sequence) -> None:
        """Pack every page but the sink that is complete and has at least 128 newer tokens behind it."""
        done = max(1, sequence.packed)
        end = max(0, sequence.length - EXACT_RECENT) // PAGE
        if end <= done:
            return
        old = sequence.table[done:end]
        new, sequence.reserve = sequence.reserve[: len(old)], sequence.reserve[len(old) :]
        if len(new) < len(old):
            raise EngineError("The KV cache has no page left to pack into.", "Close a conversation.")
        source = torch.tensor(old, device=self.device)
        target = torch.tensor(new, device=self.device)
        for layer in range(self.model.layers):
            pages = [store[layer].unflatten(1, (-1, PAGE))[:, source] for store in (self.keys, self.values)]
            for stored, part in zip(self.packed_keys, pack_keys(pages[0])):
                stored[layer][:, target] = part
            for stored, part in zip(self.packed_values, pack_values(pages[1])):
                stored[layer].unflatten(1, (-1, PAGE))[:, target] = part
        self.exact.release(old)
        sequence.table[done:end] = [~page for page in new]
        sequence.packed = end


class View:
    """The keys and values of one sequence, layer by layer; made once for all layers of a step or chunk.

    Pieces are cut at multiples of `piece` tokens and read as views where their pages are neighbours, else copied.
    """

    def __init__(self, cache: KvCache, sequence: Sequence, length: int, piece: int, dtype: torch.dtype) -> None:
        self.length, self.dtype = length, dtype
        self._cache, self._table = cache, sequence.table
        copies = dtype != cache.dtype or sequence.packed > 0
        self._pieces = [(0, length, True)] if copies else self._cut(length, piece)
        self._runs = {first: runs(self._table, PAGE, first, end) for first, end, _ in self._pieces}
        self._workspace: dict[int, KeysValues] = {}

    @property
    def pages(self) -> int:
        """KV pages that a read of this view touches in each layer."""
        return -(-self.length // PAGE)

    def read(self, layer: int) -> list[KeysValues]:
        """(keys, values), each [kv_heads, n, d], that together hold all tokens in order; valid until the next read.

        Every piece but the last holds a multiple of `piece` tokens.
        """
        return [
            self._copy(layer, first, end) if copied else self._read_exact(layer, *self._runs[first][0][1:])
            for first, end, copied in self._pieces
        ]

    def _cut(self, length: int, piece: int) -> list[tuple[int, int, bool]]:
        """(first token, end, to be copied?): long views, and a copy of each piece that has a break inside."""
        pieces: list[tuple[int, int, bool]] = []
        position = 0
        for _, _, tokens in runs(self._table, PAGE, 0, length):
            end = position + tokens
            start = pieces[-1][1] if pieces else 0
            if start < position:  # the piece that the last run began ends in this run, or further on
                cut = min(-(-position // piece) * piece, length)
                if end < cut:
                    position = end
                    continue
                pieces.append((start, cut, True))
                start = cut
            whole = length if end == length else end // piece * piece
            if whole > start:
                pieces.append((start, whole, False))
            position = end
        return pieces

    def _copy(self, layer: int, first: int, end: int) -> KeysValues:
        if first not in self._workspace:
            model = self._cache.model
            keys = torch.empty(model.kv_heads, end - first, model.head_dim, dtype=self.dtype, device=self._cache.device)
            self._workspace[first] = keys, torch.empty_like(keys)
        keys, values = self._workspace[first]
        done = 0
        for packed, slot, tokens in self._runs[first]:
            into = keys[:, done : done + tokens], values[:, done : done + tokens]
            if packed:
                self._unpack(layer, slot, tokens, *into)
            else:
                for target, source in zip(into, self._read_exact(layer, slot, tokens)):
                    target.copy_(source)
            done += tokens
        return keys, values

    def _read_exact(self, layer: int, slot: int, tokens: int) -> KeysValues:
        cache = self._cache
        return cache.keys[layer, :, slot : slot + tokens], cache.values[layer, :, slot : slot + tokens]

    def _unpack(self, layer: int, slot: int, tokens: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        cache, first, last = self._cache, slot // PAGE, (slot + tokens) // PAGE
        packed_keys = PackedKeys(*(part[layer, :, first:last] for part in cache.packed_keys))
        packed_values = PackedValues(*(part[layer, :, slot : slot + tokens] for part in cache.packed_values))
        unpack_keys(packed_keys, out=keys.unflatten(1, (-1, PAGE)))
        unpack_values(packed_values, out=values)
