"""Attention as the model sees it: write the new keys and values, choose KV pages by the policy, call the kernel."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch

from engine.cache import PAGE, KvCache, Sequence
from engine.evidence import PageMass
from engine.model import Angles
from engine.patterns import AttentionPolicy, BlockContext, Pattern, QueryBlocks, decode_queries, sample_queries
from engine.patterns.context import block_edges
from engine.patterns.policy import FIRST_LAYERS, SHARED_FROM, WindowPolicy
from engine.patterns.scorer import MASS
from kernels.block_index import BlockIndex, from_mask
from kernels.decode_attention import decode_attention
from kernels.kv_codec import hadamard
from kernels.prefill_attention import prefill_attention, sparse_prefill_attention

QUERY_BLOCK = 128  # tokens of a prompt that share a list of pages
EXACT = AttentionPolicy("exact")
NO_QUESTION = 1 << 62  # a position that no prompt has


@dataclass(slots=True)
class PagesRead:
    """Counts over layers and KV heads: pages that were listed, of those that could have been (`held`).

    What a device has counted, an integer tensor, is fetched when it is asked for, not before.
    """

    held: int = 0
    _read: int = 0
    _on_device: torch.Tensor | None = None

    def add(self, read: int | torch.Tensor, held: int) -> None:
        self.held += held
        if isinstance(read, int):
            self._read += read
        elif self._on_device is None:
            self._on_device = read.to(torch.int64, copy=True)
        else:
            self._on_device = self._on_device + read  # not in place: some steps count in inference mode, some outside

    @property
    def read(self) -> int:
        return self._read + (0 if self._on_device is None else int(self._on_device))

    @property
    def share(self) -> float:
        return self.read / self.held if self.held else 1.0


@dataclass(slots=True)
class AttentionCounts:
    """What was read while answering, in all layers and in those behind the first two, and while reading the prompt.

    For the prompt a page counts once for each query block that lists it.
    """

    answering: PagesRead = field(default_factory=PagesRead)
    selecting: PagesRead = field(default_factory=PagesRead)
    reading: PagesRead = field(default_factory=PagesRead)


@dataclass(slots=True)
class SharedLists:
    """Lists of pages that later positions of a group use again: by layer, the position of the maker and the list."""

    made: dict[int, tuple[int, BlockIndex]] = field(default_factory=dict)


@dataclass(slots=True)
class AttentionPlan:
    """How one turn attends. `reading`: its prompt; `answering`: its answer; `tail`: where the question begins, which
    reads everything. `evidence`: where the answer's steps look; None: nobody asks."""

    reading: AttentionPolicy = EXACT
    answering: AttentionPolicy = EXACT
    tail: int = NO_QUESTION
    counts: AttentionCounts = field(default_factory=AttentionCounts)
    shared: SharedLists = field(default_factory=SharedLists)
    evidence: PageMass | None = None


class PrefillAttention:
    """The next `tokens` tokens of a prepared sequence attend to what `plan.reading` lists, in `dtype`.

    `policy`: in place of the plan's own. `gone`: how many more KV pages there once were, which counts of what could
    have been read include.
    """

    def __init__(
        self,
        cache: KvCache,
        sequence: Sequence,
        tokens: int,
        dtype: torch.dtype,
        poll: Callable[[], None],
        plan: AttentionPlan,
        policy: AttentionPolicy | WindowPolicy | None = None,
        gone: int = 0,
    ) -> None:
        self._cache, self._poll, self._dtype, self._plan = cache, poll, dtype, plan
        self._policy, self._counts = policy or plan.reading, plan.counts.reading
        self._scale = cache.model.head_dim**-0.5
        self._slots = cache.new_slots(sequence, tokens)
        self._length = sequence.length + tokens
        self._view = cache.view(sequence, self._length, dtype)
        self._blocks = QueryBlocks.chunk(sequence.length, self._length, QUERY_BLOCK, cache.device)
        self._edges = block_edges(sequence.length, self._length, QUERY_BLOCK)
        self._pages = sum(-(-end // PAGE) for _, end in self._edges)
        self._gone = gone * len(self._edges)
        self._summary_rows = cache.memory.summary_rows(cache.table(sequence, sequence.length // PAGE * PAGE))

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.memory.write(layer, self._slots, k, v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        keys, values = self._view.read(layer, self._poll)
        pattern, typed = self._policy.reading(layer), q.to(self._dtype)
        heads = keys.shape[0]
        only_question = self._edges[0][0] >= self._plan.tail and self._policy.streaming(layer) is None
        if pattern.is_dense(self._length) or only_question:
            out = prefill_attention(typed, keys, values, self._scale, self._poll)
            self._counts.add(heads * self._pages, heads * (self._pages + self._gone))
        else:
            index = from_mask(pattern.listed(self._context(layer, pattern, q)))
            out = sparse_prefill_attention(typed, keys, values, index, self._edges, self._scale, self._poll)
            self._counts.add(_listed(index), heads * (self._pages + self._gone))
        return hadamard(out) if self._cache.packs else out

    def _context(self, layer: int, pattern: Pattern, q: torch.Tensor) -> BlockContext:
        heads = self._cache.memory.heads[layer]
        return BlockContext(
            self._blocks,
            heads,
            layer,
            sample_queries(q, self._blocks, heads),
            _summaries(self._cache, layer, pattern, self._summary_rows),
            self._policy.streaming(layer),
            self._plan.tail,
        )


class CardPrefillAttention(PrefillAttention):
    """The same on a card: what goes before attention is one Triton launch."""

    def rotate_and_append(
        self, layer: int, qkv: torch.Tensor, norms: tuple[torch.Tensor | None, torch.Tensor | None], angles: Angles
    ) -> torch.Tensor:
        from kernels.append_kv.triton import rope_append

        kv, model = self._cache.memory.layers[layer], self._cache.model
        return rope_append(
            qkv, *norms, model.norm_eps, *angles, kv.keys, kv.values, self._slot, self._cache.packs, model.heads
        )

    @cached_property
    def _slot(self) -> torch.Tensor:
        """int64 [t]: the slot of each new token."""
        slots = torch.cat([torch.arange(slot, slot + count) for slot, count in self._slots])
        return slots.to(self._cache.device, non_blocking=True)


class DecodeAttention:
    """The next token of a prepared sequence attends to the pages that `plan.answering` lists.

    `policy` and `gone` as in `PrefillAttention`.
    """

    def __init__(
        self,
        cache: KvCache,
        sequence: Sequence,
        plan: AttentionPlan,
        policy: AttentionPolicy | WindowPolicy | None = None,
        gone: int = 0,
    ) -> None:
        self._cache, self._shared, self._counts, self._evidence = cache, plan.shared, plan.counts, plan.evidence
        if self._evidence is not None:
            self._evidence.begin()
        self._policy = policy or plan.answering
        self._scale = cache.model.head_dim**-0.5
        self._length = sequence.length + 1
        self._slots = cache.new_slots(sequence, 1)
        self._table = cache.table(sequence, self._length)
        self._gone = gone
        self._dense = {
            heads: _all_pages(heads, self._table.shape[0], cache.device) for heads in set(cache.memory.heads)
        }
        self.sparse = False  # whether any layer has read less than everything
        self._blocks: QueryBlocks | None = None
        self._summary_rows = cache.memory.summary_rows(self._table[: sequence.length // PAGE])
        self._drawn = cache.drawn(sequence, self._table.shape[0]) if cache.cold.size else None

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.memory.write(layer, self._slots, k, v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        kv, index = self._cache.memory.layers[layer], _trimmed(self._index(layer, q[0]))
        out, mass = decode_attention(q[0], kv, self._table, index, self._length, self._scale)
        listed = index.pages.shape[0]
        held = self._cache.memory.heads[layer] * (self._table.shape[0] + self._gone)
        self._counts.answering.add(listed, held)
        if layer >= FIRST_LAYERS:
            self._counts.selecting.add(listed, held)
        if self._evidence is not None:
            self._evidence.add(layer, index, mass)
        if self._drawn is not None:
            self._drawn.index_add_(0, index.pages, mass)
        if MASS in self._cache.memory.summaries:
            self._add_mass(layer, index, mass)
        return (hadamard(out) if self._cache.packs else out)[None]

    def _index(self, layer: int, q: torch.Tensor) -> BlockIndex:
        position = self._length - 1
        maker = self._policy.selection_position(position)
        pattern = self._policy.answering(layer, maker + 1)
        if pattern.is_dense(self._length):
            return self._dense[self._cache.memory.heads[layer]]
        earlier = self._shared.made.get(layer)
        self.sparse = True
        if earlier is not None and earlier[0] == maker:
            return earlier[1]
        if self._blocks is None:
            self._blocks = QueryBlocks.decode(position, self._cache.device)
        heads = self._cache.memory.heads[layer]
        index = from_mask(
            pattern.listed(
                BlockContext(
                    self._blocks,
                    heads,
                    layer,
                    decode_queries(q, heads),
                    _summaries(self._cache, layer, pattern, self._summary_rows),
                    self._policy.streaming(layer),
                )
            )
        )
        if position >= SHARED_FROM and position == maker:
            self._shared.made[layer] = position, index
        return index

    def _add_mass(self, layer: int, index: BlockIndex, mass: torch.Tensor) -> None:
        """Attention drawn by complete pages, for the scorer that goes by it."""
        known, counts = self._summary_rows.shape[0], index.offsets.diff().long()
        head = torch.arange(counts.shape[0], device=mass.device).repeat_interleave(counts)
        pages = index.pages.long()
        complete = pages < known
        (masses,) = self._cache.memory.summaries[MASS]
        total = self._cache.memory.of_layer(masses, layer)
        total[head[complete], self._summary_rows[pages[complete]].long()] += mass[complete]


def _summaries(
    cache: KvCache, layer: int, pattern: Pattern, rows: torch.Tensor
) -> dict[str, torch.Tensor | tuple[torch.Tensor, ...]]:
    """What the scorers of `pattern` need about the pages at `rows`, as far as the cache keeps it."""
    found: dict[str, torch.Tensor | tuple[torch.Tensor, ...]] = {}
    for scorer in pattern.scorers():
        if scorer.summary in cache.memory.summaries:
            parts = cache.memory.read_summaries(layer, scorer.summary, rows)
            found[scorer.summary] = parts[0] if len(parts) == 1 else parts
    return found


def _listed(index: BlockIndex) -> int | torch.Tensor:
    """How many pages `index` lists in all; a device is not waited for."""
    return index.pages.shape[0] if index.pages.device.type == "cpu" else index.offsets[-1]


def _trimmed(index: BlockIndex) -> BlockIndex:
    """`index` without the entries that mean nothing, which there are on a device only. Waits for it."""
    if index.pages.device.type == "cpu":
        return index
    return BlockIndex(index.offsets, index.pages[: int(index.offsets[-1])])


def _all_pages(kv_heads: int, pages: int, device: torch.device) -> BlockIndex:
    """The index in which every KV head reads every page."""
    offsets = torch.arange(kv_heads + 1, dtype=torch.int32, device=device) * pages
    return BlockIndex(offsets, torch.arange(pages, dtype=torch.int32, device=device).repeat(kv_heads))
