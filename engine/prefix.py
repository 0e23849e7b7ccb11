"""The longest prefix of a prompt whose KV exists: in memory, or in a snapshot.

One rule for both, so that a conversation that was left and restored goes on with the same tokens as one that never was:
re-use starts where a state was kept exactly (the end of a sequence, or a checkpoint), else at the end of a block; where
old pages are packed, far enough before the branch point that the 128 tokens before it are computed exactly.
"""

import logging
import math
from array import array
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from engine.cache import DECODE, EXACT_RECENT, PAGE, PREFILL, SPARSE_DECODE, KvCache, Sequence
from engine.errors import EngineError
from engine.patterns import AttentionPolicy
from engine.row_loader import BATCH_BYTES, CARD_BATCH_BYTES, Batch, Loaded, Upload, Wanted, load_rows, upload_to
from engine.snapshot import (
    UNSOUND,
    SnapshotReader,
    adopt,
    block_key,
    block_sizes,
    fit,
    reading_of,
    reading_tag,
    write,
)

log = logging.getLogger(__name__)

OTHER_KINDS = (DECODE, SPARSE_DECODE, *(UNSOUND + made_by for made_by in (PREFILL, DECODE, SPARSE_DECODE)))


def common_prefix(first: array, second: array) -> int:
    """How many leading token ids agree."""
    n = min(len(first), len(second))
    if n == 0:
        return 0
    differ = np.frombuffer(first, dtype=np.int32, count=n) != np.frombuffer(second, dtype=np.int32, count=n)
    return int(differ.argmax()) if differ.any() else n


@dataclass(frozen=True, slots=True)
class Blocks:
    """The size of blocks, and where re-use may start when no exact state was kept."""

    pages: int
    packs: bool
    exact_only: bool = False  # re-use starts at states that were kept, nowhere else (engine.two_pools)

    @property
    def tokens(self) -> int:
        return self.pages * PAGE

    def boundary(self, common: int) -> int:
        """The last position at which re-use of `common` agreeing tokens may start."""
        if self.exact_only:
            return 0
        if self.packs:
            common -= EXACT_RECENT
        return max(0, common // self.tokens) * self.tokens


def read_alike(state: Sequence, policy: AttentionPolicy) -> float:
    """How many leading tokens of `state` are as `policy` would have read them."""
    return math.inf if state.reading == policy.key else min(state.dense_until, policy.dense_until)


def find_in_memory(
    states: Iterable[Sequence], prompt: array, blocks: Blocks, policy: AttentionPolicy
) -> tuple[Sequence | None, int]:
    """(state, tokens): the state that saves most, the first of equals; (None, 0) if none saves anything."""
    best, most = None, 0
    for state in states:
        common = int(min(common_prefix(state.ids, prompt), read_alike(state, policy)))
        length = common if common == state.length else blocks.boundary(common)
        if blocks.packs and length < state.length and length > state.packed * PAGE:
            length = state.packed // blocks.pages * blocks.tokens
        if length > most:
            best, most = state, length
    return best, most


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """The keys of blocks to read, in order, then perhaps of a checkpoint; together `tokens` tokens."""

    blocks: tuple[str, ...]
    checkpoint: str | None
    tokens: int


def find_in_snapshots(
    reader: SnapshotReader, root: str, prompt: array, blocks: Blocks, policy: AttentionPolicy
) -> StoredPrefix:
    """The longest stored prefix of `prompt` that was read by `policy`."""
    if blocks.exact_only:
        return _find_kept(reader, root, prompt, blocks.tokens, policy)
    chain = _known_chain(reader, root, prompt, blocks.tokens, policy)
    positions = {root: 0} | {key: (i + 1) * blocks.tokens for i, key in enumerate(chain)}
    last, stored = (chain[-1] if chain else root), len(chain) * blocks.tokens
    checkpoints = _checkpoints(reader, positions, policy)
    # How far the prompt agrees with what is stored: into rows that it leaves in the middle, too.
    rows = [ids for _, parent, ids in checkpoints if parent == last]
    if blocks.packs:
        rows += _blocks_after(reader, last, stored + blocks.tokens, policy)
    agrees = stored + max((common_prefix(array("i", ids), prompt[stored:]) for ids in rows), default=0)
    best = min(stored, blocks.boundary(agrees))
    found = StoredPrefix(tuple(chain[: best // blocks.tokens]), None, best)
    for key, parent, ids in checkpoints:
        first = positions[parent]
        end = first + len(ids)
        if end > found.tokens and end <= len(prompt) and prompt[first:end].tolist() == list(ids):
            found = StoredPrefix(tuple(chain[: first // blocks.tokens]), key, end)
    return found


def _find_kept(reader: SnapshotReader, root: str, prompt: array, size: int, policy: AttentionPolicy) -> StoredPrefix:
    """The longest stored checkpoint that is a prefix of `prompt`, of equals one that the reader names first. Blocks of
    the same tokens can have several lineages: all of them are followed."""
    parents, positions, waiting = {}, {root: 0}, [root]
    for parent in waiting:
        end = positions[parent] + size
        wanted = tuple(prompt[positions[parent] : end])
        for key, ids in reader.blocks_after(parent):
            if ids == wanted:
                parents[key], positions[key] = parent, end
                waiting.append(key)
    tokens, checkpoint, last = 0, None, root
    for key, parent, ids in _checkpoints(reader, positions, policy):
        first, end = positions[parent], positions[parent] + len(ids)
        if end > tokens and prompt[first:end].tolist() == list(ids):
            tokens, checkpoint, last = end, key, parent
    chain: list[str] = []
    while last != root:
        chain.append(last)
        last = parents[last]
    return StoredPrefix(tuple(reversed(chain)), checkpoint, tokens)


def _checkpoints(
    reader: SnapshotReader, positions: dict[str, int], policy: AttentionPolicy
) -> list[tuple[str, str, tuple[int, ...]]]:
    """The stored checkpoints behind these blocks, whose ends are given, that were read by `policy`."""
    return [
        (key, parent, ids)
        for key, parent, ids in reader.checkpoints(list(positions))
        if key.startswith(reading_tag(reading_of(policy.key, policy.dense_until, positions[parent] + len(ids))))
    ]


def _blocks_after(reader: SnapshotReader, parent: str, end: int, policy: AttentionPolicy) -> list[tuple[int, ...]]:
    """Token ids of the stored blocks behind `parent`, up to position `end`, that were read by `policy`."""
    reading = reading_of(policy.key, policy.dense_until, end)
    return [
        ids
        for key, ids in reader.blocks_after(parent)
        if any(key == block_key(parent, ids, kind, reading) for kind in (PREFILL, *OTHER_KINDS))
    ]


def _known_chain(reader: SnapshotReader, root: str, prompt: array, size: int, policy: AttentionPolicy) -> list[str]:
    """Keys of stored blocks from the root on: prefill-made ones as far as they go, then others, in turn."""
    chain: list[str] = []
    total = len(prompt) // size

    def key_of(parent: str, index: int, made_by: int) -> str:
        end = (index + 1) * size
        reading = reading_of(policy.key, policy.dense_until, end)
        return block_key(parent, prompt[index * size : end], made_by, reading)

    while len(chain) < total:
        parent = chain[-1] if chain else root
        candidates: list[str] = []
        for index in range(len(chain), total):
            parent = key_of(parent, index, PREFILL)
            candidates.append(parent)
        known = reader.known_blocks(candidates)
        chain += candidates[:known]
        if len(chain) == total:
            break
        parent = chain[-1] if chain else root
        others = (key_of(parent, len(chain), kind) for kind in OTHER_KINDS)
        found = next((key for key in others if reader.known_blocks([key])), None)
        if found is None:
            break
        chain.append(found)
    return chain


def restore(
    cache: KvCache,
    sequence: Sequence,
    reader: SnapshotReader,
    stored: StoredPrefix,
    prompt: array,
    blocks: Blocks,
    make_room: Callable[[int], None] = lambda tokens: None,
    poll: Callable[[], None] = lambda: None,
    upload: Upload | None = None,
) -> int:
    """Append `stored` to a prepared sequence, from its first block that the sequence lacks -> tokens read.

    Rows are read by several threads, ahead of the copies. `make_room(tokens)` is called before each payload and may
    raise an EngineError; `poll` is called between copies and may raise what it likes: what was appended stays.

    Stops before the first payload that is missing, damaged, different or without room; what follows has to be computed.
    """
    start = sequence.length
    wanted = [Wanted(key, blocks.tokens, reader.read_block) for key in stored.blocks[start // blocks.tokens :]]
    if stored.checkpoint is not None:
        rest = stored.tokens - start - len(wanted) * blocks.tokens
        wanted.append(Wanted(stored.checkpoint, rest, reader.read_checkpoint))
    row_bytes = block_sizes(cache, blocks.pages)
    # Where pages can be demoted, one at a time: making room for a row may re-pack the one before, so it must be there.
    batch_bytes = CARD_BATCH_BYTES if cache.device.type == "cuda" else BATCH_BYTES
    at_once = 1 if cache.cold.size else max(1, batch_bytes // row_bytes)
    with closing(load_rows(wanted, row_bytes, at_once, upload or upload_to(cache.device))) as batches:
        for batch in batches:
            poll()
            if not _append(cache, sequence, prompt, batch, make_room):
                break
    return sequence.length - start


def _append(cache: KvCache, sequence: Sequence, prompt: array, batch: Batch, make_room: Callable[[int], None]) -> bool:
    """Append the rows of a batch up to the first that cannot be -> whether all could."""
    adopted: list[Loaded] = []
    first, form = sequence.length, None

    def write_adopted() -> None:
        nonlocal first
        try:
            if adopted and form is not None:
                write(cache, sequence, first, batch.data(adopted), form)
        except BaseException:
            cache.free(sequence)  # it has tokens without KV now, and would be taken for what it says it is
            raise
        adopted.clear()
        first = sequence.length

    try:
        for row in batch:
            key, at = row.wanted.key, sequence.length
            if row.opened is None:
                log.warning("Snapshot row %s: %s; its tokens are computed anew.", key, row.problem)
                return False
            if row.alone is not None:
                write_adopted()
            try:
                make_room(row.wanted.tokens)
                ids = prompt[at : at + row.wanted.tokens]
                fitted = fit(cache, sequence, ids, row.opened)
                if form is not None and fitted.packed != form.packed:
                    write_adopted()
                adopt(cache, sequence, ids, fitted)
            except EngineError as error:  # it does not fit, or there is no room
                log.warning("Snapshot row %s: %s", key, error)
                return False
            form = fitted
            adopted.append(row)
            if row.alone is not None:
                write_adopted()
        return True
    finally:
        write_adopted()  # whatever ends this: tokens that were adopted must have their KV
