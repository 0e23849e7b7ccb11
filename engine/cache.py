"""The paged KV cache: sequences of token ids, their KV pages, and how pages are shared between them.

Formats: f32 and bf16 keep what was computed. The others pack a page (kernels.kv_codec) once it is complete and 128
newer tokens have followed; the sink page (page 0) stays exact. Under memory pressure the values of packed pages can be
demoted to fewer bits (`engine.demotion` chooses them). Where the bytes lie is `engine.kv_memory`'s business.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import torch

from engine.config import ModelConfig
from engine.errors import EngineError
from engine.kv_memory import PAGE, SCORERS, KvMemory, format_key
from engine.pages import PagePool, runs
from engine.patterns import Scorer
from kernels import triton_jit

EXACT_RECENT = 128  # tokens that packed formats never pack at the end of a sequence
PREFILL, DECODE, SPARSE_DECODE = 0, 1, 2  # what made a token's KV
KeysValues = tuple[torch.Tensor, torch.Tensor]
Lineage = tuple[tuple[int, int, int], ...]


@dataclass(slots=True, eq=False)
class Sequence:
    """Token ids with valid KV, and the pages that hold it.

    `table`: for each KV page its number in the exact pool, or ~number (negative) in the packed pool and, counting on,
    in that of demoted pages.
    `made_by`: one byte per token: PREFILL, DECODE, or SPARSE_DECODE if its query read less than everything.
    `packed`: in packed formats, how many leading pages have their final form (exact sink, packed ones), or 0.
    `reserve`: packed pages taken in advance.
    `drawn`: float32, for the first pages the attention that they drew while answering; only where it is of use.
    `window`: what streaming heads keep, where they have a pool of their own (`engine.two_pools`).
    `sound_until`: so many leading tokens were computed before any of the pages was demoted.
    `reading`: the key of the policy that prefill attended by; the first `dense_until` tokens are as under "dense".
    `lineage`: where reading began or went on (start, end, question): tokens from `start` on were read as part of those
    up to `end`, of which those from `question` on read everything. Only where it is of use (`engine.two_pools`).
    """

    ids: array = field(default_factory=lambda: array("i"))
    made_by: bytearray = field(default_factory=bytearray)
    table: list[int] = field(default_factory=list)
    packed: int = 0
    reserve: list[int] = field(default_factory=list)
    drawn: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    window: "Sequence | None" = None
    reading: str = "dense"
    dense_until: float = math.inf
    sound_until: float = math.inf
    lineage: Lineage = ()

    @property
    def length(self) -> int:
        return len(self.ids)

    def lineage_in(self, first: int, end: int) -> Lineage:
        """What of the lineage begins at tokens `first` to `end` - 1."""
        return tuple(read for read in self.lineage if first <= read[0] < end)


class KvCache:
    """All KV memory of an engine, and the operations on sequences.

    `pages`: capacity in KV pages. In packed formats so many packed pages, `exact_pages` that are not packed (yet), and
    `cold_pages` that are demoted. `heads`: for each layer how many KV heads the cache is for, by default all. `wide`:
    layers that keep 8-bit keys in formats with fewer. `format`: what its pages hold, as `format_key` names it.
    ValueError for cold pages of a format whose values cannot be demoted.
    """

    def __init__(
        self,
        model: ModelConfig,
        kv_format: str,
        pages: int,
        exact_pages: int = 0,
        device: str = "cpu",
        scorers: SequenceOf[Scorer] = SCORERS,
        cold_pages: int = 0,
        heads: SequenceOf[int] | None = None,
        wide: SequenceOf[int] = (),
    ) -> None:
        self.model, self.kv_format, self.device = model, kv_format, torch.device(device)
        self.wide, self.format = tuple(wide), format_key(model, kv_format, wide)
        self.memory = KvMemory(model, kv_format, pages, exact_pages, self.device, scorers, cold_pages, heads, wide)
        self.packs, self.dtype = self.memory.packs, self.memory.dtype
        self.exact = PagePool(exact_pages if self.packs else pages)
        self.packed = PagePool(pages if self.packs else 0)
        self.cold = PagePool(cold_pages)

    # Sequences

    def prepare(self, sequence: Sequence, length: int, final_length: int | None = None) -> None:
        """Take pages so that `sequence` can grow to `length` tokens, and set room aside for `final_length`."""
        final = final_length or length
        if self.packs:
            self.set_aside(sequence, final)
        needed = -(-(length if self.packs else final) // PAGE) - len(sequence.table)
        if needed > 0:
            last = sequence.table[-1] if sequence.table and sequence.table[-1] >= 0 else None
            sequence.table += self.exact.take(needed, last)

    def set_aside(self, sequence: Sequence, final_length: int) -> None:
        """Take the packed pages that `final_length` tokens need; where pages can be demoted, as many as are free."""
        wanted = -(-final_length // PAGE) - sequence.packed - len(sequence.reserve)
        wanted = min(wanted, self.packed.free) if self.cold.size else wanted
        if wanted > 0:
            full = (~page for page in reversed(sequence.table) if page < 0 and not self.is_demoted(page))
            last = sequence.reserve[-1] if sequence.reserve else next(full, None)
            sequence.reserve += self.packed.take(wanted, last)

    def is_complete(self, sequence: Sequence) -> bool:
        """Whether attention can go on from its end; not so where a restore broke off and heads lack what they keep."""
        return True

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
        sequence.drawn = sequence.drawn[:0]
        del sequence.ids[:], sequence.made_by[:]

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
            self.memory.copy_page(sequence.table[complete], copies[0], rest)
        self._share(table)
        table += copies
        packed = min(sequence.packed, complete)
        return Sequence(
            sequence.ids[:length],
            sequence.made_by[:length],
            table,
            packed if packed > 1 else 0,
            drawn=sequence.drawn[:complete].clone(),
            reading=sequence.reading,
            dense_until=sequence.dense_until,
            sound_until=sequence.sound_until if length > sequence.sound_until else math.inf,
            lineage=sequence.lineage_in(0, length),
        )

    def commit(self, sequence: Sequence, ids: SequenceOf[int], made_by: int) -> None:
        """Declare the KV of `ids`, already written by all layers, part of the sequence; pack what has become old."""
        complete = sequence.length // PAGE
        sequence.ids.extend(ids)
        sequence.made_by.extend(bytes([made_by]) * len(ids))
        if sequence.length // PAGE > complete:
            self.memory.summarize(sequence.table[complete : sequence.length // PAGE])
        if self.packs:
            self._pack_old(sequence)

    def adopt(
        self, sequence: Sequence, ids: SequenceOf[int], made_by: bytes, packed: SequenceOf[bool]
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
        sequence.made_by.extend(made_by)
        return runs(sequence.table, PAGE, start, sequence.length)

    def drop(self, sequence: Sequence, first: int, end: int) -> None:
        """Give up the KV pages `first` to `end` - 1 for good: what follows moves up. Not where old pages are packed."""
        self._release(sequence.table[first:end])
        del sequence.table[first:end]
        del sequence.ids[first * PAGE : end * PAGE], sequence.made_by[first * PAGE : end * PAGE]

    def _share(self, table: list[int]) -> None:
        for pool, pages in self._by_pool(table):
            pool.share(pages)

    def _release(self, table: list[int]) -> None:
        for pool, pages in self._by_pool(table) if table else ():
            pool.release(pages)

    def _by_pool(self, table: list[int]) -> Iterator[tuple[PagePool, list[int]]]:
        """The pages at these places, by the pool that they belong to and with its numbers."""
        yield self.exact, [page for page in table if page >= 0]
        yield self.packed, [~page for page in table if page < 0 and not self.is_demoted(page)]
        yield self.cold, [~page - self.packed.size for page in table if self.is_demoted(page)]

    # Demotion

    def is_demoted(self, place: int) -> bool:
        return ~place >= self.packed.size

    def demoted(self, sequence: Sequence, first: int = 0, end: int | None = None) -> int:
        """How many of its KV pages from `first` on (before `end`) are demoted."""
        return sum(map(self.is_demoted, sequence.table[first:end]))

    def demote(self, pages: SequenceOf[int], holders: Iterable[Sequence]) -> None:
        """Re-pack the values of packed pages with 2 bits, for all who hold them; keys stay as they are.

        ValueError if one of them is held by others than `holders`, EngineError if there are too few cold pages.
        """
        holders = list(holders)
        held = Counter(place for holder in holders for place in holder.table)
        for page in pages:
            if not held[~page] or held[~page] != self.packed.references(page):
                raise ValueError(f"holders: got {held[~page]} of packed page {page}, need all who hold it")
        taken = self.cold.take(len(pages))
        new = [self.packed.size + page for page in taken]
        self.memory.demote(pages, new)
        moved = {~old: ~page for old, page in zip(pages, new)}
        for holder in holders:
            mine = [place for place in holder.table if place in moved]
            self._share([moved[place] for place in mine])
            self._release(mine)
            holder.table[:] = [moved.get(place, place) for place in holder.table]
            holder.sound_until = min(holder.sound_until, holder.length)
        self.cold.release(taken)

    def pages_to_pack(self, sequence: Sequence, length: int) -> int:
        """How many pages `commit` packs on the way to `length` tokens."""
        return max(0, (length - EXACT_RECENT) // PAGE - max(1, sequence.packed)) if self.packs else 0

    def drawn(self, sequence: Sequence, pages: int) -> torch.Tensor:
        """float32 [at least `pages`]: attention drawn by the pages of `sequence`, to be added to."""
        missing = pages - sequence.drawn.shape[0]
        if missing > 0:
            more = torch.zeros(missing + 64, device=self.device)
            sequence.drawn = torch.cat((sequence.drawn.to(self.device), more))
        return sequence.drawn

    # Tensors

    def new_slots(self, sequence: Sequence, tokens: int) -> list[tuple[int, int]]:
        """Where the next `tokens` tokens of a prepared sequence go, as runs of (first slot, tokens)."""
        found = runs(sequence.table, PAGE, sequence.length, sequence.length + tokens)
        return [(slot, count) for _, slot, count in found]

    def table(self, sequence: Sequence, length: int) -> torch.Tensor:
        """int32 [pages]: the places of the pages that hold the first `length` tokens."""
        return torch.tensor(sequence.table[: -(-length // PAGE)], dtype=torch.int32, device=self.device)

    def view(self, sequence: Sequence, length: int, dtype: torch.dtype) -> "View":
        """How to read the first `length` tokens of all layers as `dtype`."""
        return View(self, sequence, length, dtype)

    def _pack_old(self, sequence: Sequence) -> None:
        """Pack every page but the sink that is complete and has at least 128 newer tokens behind it."""
        done = max(1, sequence.packed)
        end = done + self.pages_to_pack(sequence, sequence.length)
        if end == done:
            return
        old = sequence.table[done:end]
        new, sequence.reserve = sequence.reserve[: len(old)], sequence.reserve[len(old) :]
        if len(new) < len(old):
            raise EngineError("The KV cache has no page left to pack into.", "Close a conversation.")
        self.memory.pack(old, new)
        self.exact.release(old)
        sequence.table[done:end] = [~page for page in new]
        sequence.packed = end


class View:
    """The keys and values of one sequence, layer by layer; made once for all layers of a chunk.

    A view into memory where the pages are neighbours and have the wanted type, else a copy.
    """

    def __init__(self, cache: KvCache, sequence: Sequence, length: int, dtype: torch.dtype) -> None:
        self.length, self.dtype = length, dtype
        self._memory = cache.memory
        self._runs = runs(sequence.table, PAGE, 0, length)
        self._copies = len(self._runs) > 1 or dtype != cache.dtype or self._runs[0][0]
        self._places: torch.Tensor | None = None
        if self._copies and triton_jit.available(cache.device):
            self._places = cache.table(sequence, length)
        self._workspace: KeysValues | None = None

    def read(self, layer: int, poll: Callable[[], None]) -> KeysValues:
        """Keys and values [kv_heads, length, d]; valid until the next read. `poll` is called in between."""
        memory = self._memory
        if not self._copies:
            slots = slice(self._runs[0][1], self._runs[0][1] + self.length)
            return memory.layers[layer].keys[:, slots], memory.layers[layer].values[:, slots]
        if self._workspace is None:
            room = -(-self.length // PAGE) * PAGE
            keys = torch.empty(max(memory.heads), room, memory.keys.shape[-1], dtype=self.dtype, device=memory.device)
            self._workspace = keys, torch.empty_like(keys)
        keys, values = (x[: memory.heads[layer]] for x in self._workspace)
        if self._places is not None:
            poll()
            memory.read_all(layer, self._places, keys, values)
            return keys[:, : self.length], values[:, : self.length]
        keys, values = keys[:, : self.length], values[:, : self.length]
        memory.read(layer, self._runs, keys, values, poll)
        return keys, values
