"""KV prefixes as bytes: what is written when a conversation is left, and how it is read back.

A prefix is a chain of blocks, each a fixed number of KV pages in their final form, and one checkpoint with the rest:
the last pages, exact and incomplete ones included. Keys are SHA-256 chains over (parent, kind, token ids),
rooted in the engine's fingerprint; the kind tells pages made by prefill, dense and sparse decode, whose bytes differ.
A payload says what it holds and is checked against what was asked for, token ids included. Whoever finds a payload
that does not fit computes the tokens instead.
"""

import hashlib
import json
import struct
from array import array
from collections.abc import Container, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.cache import PAGE, KvCache, Lineage, Sequence
from engine.errors import SnapshotMismatchError
from engine.pages import runs
from engine.row_writer import write_rows
from engine.two_pools import TwoPoolCache

VERSION = 4
UNSOUND = 3
BLOCK_BYTES = 4 * 2**20
_MAGIC = b"UKV1"


@dataclass(frozen=True, slots=True)
class Copied:
    """KV copied out of the cache, uint8 [bytes] in host memory, not yet a payload: making one takes time."""

    header: dict[str, object]
    data: torch.Tensor

    def encode(self) -> bytes:
        """Header length, header as JSON, tensors."""
        text = json.dumps(self.header, separators=(",", ":")).encode()
        return b"".join((_MAGIC, struct.pack("<I", len(text)), text, self.data.numpy().data))


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """`first_token`: position of `token_ids[0]`; `parent`: the block before or the root.

    `payload` is made when it is asked for, in the thread that asks; `size`: about its bytes.
    """

    key: str
    parent: str
    first_token: int
    token_ids: tuple[int, ...]
    copied: Copied

    @property
    def size(self) -> int:
        return self.copied.data.numel()

    @property
    def payload(self) -> bytes:
        return self.copied.encode()


@dataclass(frozen=True, slots=True)
class SnapshotBlock(SnapshotRow):
    """A fixed number of KV pages."""


@dataclass(frozen=True, slots=True)
class SnapshotCheckpoint(SnapshotRow):
    """Everything from the end of block `parent` (or the root) to the end of the prefix.

    Its key begins with `reading_tag` of the policy that it was read by.
    """


class SnapshotReader(Protocol):
    """Where blocks and checkpoints come from. Nothing raises for a missing or damaged row.

    A payload that is given is byte for byte the one that was put: its reader has checked it. Only whether it fits is
    looked at here.
    """

    def known_blocks(self, keys: SequenceOf[str]) -> int:
        """Length of the leading run of keys that are stored."""
        ...

    def blocks_after(self, parent: str) -> list[tuple[str, tuple[int, ...]]]:
        """(key, token_ids) of every stored block of this parent."""
        ...

    def read_block(self, key: str) -> bytes | None:
        """The payload; None if missing or damaged."""
        ...

    def checkpoints(self, parents: SequenceOf[str]) -> list[tuple[str, str, tuple[int, ...]]]:
        """(key, parent, token_ids) of every stored checkpoint of these parents."""
        ...

    def read_checkpoint(self, key: str) -> bytes | None:
        """The payload; None if missing or damaged."""
        ...


def block_pages(bytes_per_token: int) -> int:
    """KV pages in a block: about 4 MB, at least one page."""
    return max(1, BLOCK_BYTES // (PAGE * bytes_per_token))


def block_key(parent: str, ids: SequenceOf[int], made_by: int, reading: str = "dense", lineage: Lineage = ()) -> str:
    """The key of a block. `made_by`: as `block_kind` says; `reading`: as `reading_of` says; `lineage`: of a sequence
    that has one, what begins in this block: what began before it has by its parent."""
    return _key(parent, (b"p", b"d", b"s", b"P", b"D", b"S")[made_by], ids, reading, lineage)


def key_in(sequence: Sequence, first: int, end: int, parent: str) -> str:
    """The key of the block of tokens `first` to `end` - 1 of `sequence`."""
    reading = reading_of(sequence.reading, sequence.dense_until, end)
    kind, lineage = block_kind(sequence, first, end), sequence.lineage_in(first, end)
    return block_key(parent, sequence.ids[first:end], kind, reading, lineage)


def block_kind(sequence: Sequence, first: int, end: int) -> int:
    """The largest of its tokens' (PREFILL, DECODE, SPARSE_DECODE), 3 more if one was computed over demoted pages."""
    return max(sequence.made_by[first:end]) + (UNSOUND if end > sequence.sound_until else 0)


def reading_of(reading: str, dense_until: float, end: int) -> str:
    """The policy that tokens up to `end` were read by, as far as it matters: all policies begin densely."""
    return "dense" if end <= dense_until else reading


def reading_tag(reading: str) -> str:
    """16 digits for a reading policy."""
    return hashlib.sha256(reading.encode()).hexdigest()[:16]


def _key(parent: str, kind: bytes, ids: SequenceOf[int], reading: str, lineage: Lineage) -> str:
    policy = b"" if reading == "dense" else hashlib.sha256(reading.encode()).digest()
    began = json.dumps(lineage).encode() if lineage else b""
    text = parent.encode() + kind + policy + began + array("i", ids).tobytes()
    return hashlib.sha256(text).hexdigest()


def export_rows(
    cache: KvCache, sequence: Sequence, root: str, pages_per_block: int, known: Container[str]
) -> Iterator[SnapshotBlock | SnapshotCheckpoint]:
    """The rows of `sequence`, from its first token to its last, without those whose key is `known`.

    Rows hold the full format: where a page of a new one is demoted, they end, since later rows could not be reached.
    What was computed over demoted pages has keys of its own.
    """
    size = pages_per_block * PAGE
    final = sequence.packed if cache.packs else sequence.length // PAGE
    parent = root
    for first in range(0, final // pages_per_block * size, size):
        key = key_in(sequence, first, first + size, parent)
        if key not in known:
            if cache.demoted(sequence, first // PAGE, (first + size) // PAGE):
                return
            ids = tuple(sequence.ids[first : first + size])
            yield SnapshotBlock(key, parent, first, ids, copy_out(cache, sequence, first, first + size))
        parent = key
    first = final // pages_per_block * size
    ids = sequence.ids[first:]
    reading = reading_of(sequence.reading, sequence.dense_until, sequence.length)
    lineage = sequence.lineage_in(first, sequence.length)
    sound = b"c" if sequence.length <= sequence.sound_until else b"C"
    key = reading_tag(reading) + _key(parent, sound + bytes(sequence.made_by[first:]), ids, reading, lineage)[16:]
    if key not in known and not cache.demoted(sequence, first // PAGE):
        window = cache if isinstance(cache, TwoPoolCache) else None
        copied = copy_out(cache, sequence, first, sequence.length, window)
        yield SnapshotCheckpoint(key, parent, first, tuple(ids), copied)


def _shape(cache: KvCache) -> dict[str, object]:
    model = cache.model
    return {
        "version": VERSION,
        "format": cache.format,
        "layers": model.layers,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "page": PAGE,
        "summaries": sorted(cache.memory.summaries),
    }


def copy_out(cache: KvCache, sequence: Sequence, first: int, end: int, window: TwoPoolCache | None = None) -> Copied:
    """Tokens `first` (a multiple of 64) to `end` - 1 of `sequence`; nothing that happens to them later changes it.

    `window`: with what streaming heads keep of the whole sequence, in their pool of this cache.
    """
    parts = _tensors(cache, runs(sequence.table, PAGE, first, end))
    if window is not None:
        parts += _tensors(window.window, window.window_runs(sequence))
    data = torch.cat(parts).cpu() if parts else torch.empty(0, dtype=torch.uint8)  # one copy from the card
    header = _shape(cache) | {
        "first": first,
        "ids": sequence.ids[first:end].tolist(),
        "made_by": sequence.made_by[first:end].hex(),
        "packed": [page < 0 for page in sequence.table[first // PAGE : -(-end // PAGE)]],
        "reading": reading_of(sequence.reading, sequence.dense_until, end),
        "sound": end <= sequence.sound_until,
    }
    if window is not None:
        header["window"] = True
    if lineage := sequence.lineage_in(first, end):
        header["lineage"] = lineage
    return Copied(header, data)


def encode(cache: KvCache, sequence: Sequence, first: int, end: int) -> bytes:
    """The payload of these tokens, as `copy_out` takes them."""
    return copy_out(cache, sequence, first, end).encode()


def _tensors(cache: KvCache, slots: list[tuple[bool, int, int]]) -> list[torch.Tensor]:
    """What lies in `slots`, store by store, uint8."""
    parts: list[torch.Tensor] = []
    for stored, unit, packed, _ in cache.memory.stores:
        chosen = [
            stored[:, slot // unit : slot // unit + n // unit] for is_packed, slot, n in slots if is_packed == packed
        ]
        if chosen:
            whole = chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=1)
            parts.append(whole.contiguous().view(torch.uint8).flatten())
    return parts


def _sizes(cache: KvCache, packed: int, exact: int) -> list[int]:
    """Bytes of so many packed and exact tokens in each store."""
    return [store.bytes * ((packed if store.packed else exact) // store.unit) for store in cache.memory.stores]


@dataclass(frozen=True, slots=True)
class Opened:
    """A payload taken apart; what it holds is told by `header`, `data` are its tensors."""

    header: dict
    data: memoryview


@dataclass(frozen=True, slots=True)
class Fitted:
    """What an opened payload brings: for each token what made it, for each page whether it is packed, and its sizes.

    `sizes`: bytes in each store; `in_window`: the same for the window of streaming heads, empty if it brings none.
    """

    made_by: bytes
    packed: tuple[bool, ...]
    sound: bool
    sizes: tuple[int, ...]
    in_window: tuple[int, ...]
    lineage: Lineage


def open_payload(payload: bytes) -> Opened:
    """Take a payload apart. SnapshotMismatchError if it has another form."""
    view = memoryview(payload)
    if len(view) < 8 or bytes(view[:4]) != _MAGIC:
        raise _mismatch("is not in our format")
    (length,) = struct.unpack("<I", view[4:8])
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
    except ValueError as error:
        raise _mismatch("has a damaged header") from error
    if not isinstance(header, dict):
        raise _mismatch("has a damaged header")
    return Opened(header, view[8 + length :])


def fit(cache: KvCache, sequence: Sequence, ids: SequenceOf[int], opened: Opened) -> Fitted:
    """Check that a payload continues `sequence` with `ids`. SnapshotMismatchError if not; no KV has changed then."""
    header = opened.header
    reading = reading_of(sequence.reading, sequence.dense_until, sequence.length + len(ids))
    expected = _shape(cache) | {"first": sequence.length, "ids": list(ids), "reading": reading}
    for name, value in expected.items():
        if header.get(name) != value:
            raise _mismatch(f"does not fit, its {name} is another")
    try:
        made_by = bytes.fromhex(header["made_by"])
        packed = tuple(bool(value) for value in header["packed"])
        window = bool(header.get("window", False))
        lineage = tuple((int(start), int(stop), int(question)) for start, stop, question in header.get("lineage", ()))
    except (KeyError, TypeError, ValueError) as error:
        raise _mismatch("has a damaged header") from error
    if len(made_by) != len(ids) or len(packed) != -(-len(ids) // PAGE) or (any(packed) and not cache.packs):
        raise _mismatch("has a damaged header")
    if any(not 0 <= start - sequence.length < len(ids) for start, _, _ in lineage):
        raise _mismatch("does not fit, its lineage is another")
    sizes = _sizes(cache, sum(packed) * PAGE, len(ids) - sum(packed) * PAGE)
    in_window = []
    if window:
        if not isinstance(cache, TwoPoolCache):
            raise _mismatch("has another kind of heads")
        in_window = _sizes(cache.window, 0, cache.make_window_room(sequence, sequence.length + len(ids)))
    if sum(sizes) + sum(in_window) != len(opened.data):
        raise _mismatch("has the wrong size")
    return Fitted(made_by, packed, header.get("sound") is True, tuple(sizes), tuple(in_window), lineage)


def adopt(cache: KvCache, sequence: Sequence, ids: SequenceOf[int], fitted: Fitted) -> None:
    """Make a fitted payload's tokens part of `sequence`; `write` must follow before anything reads them.

    EngineError if pages are missing; `sequence` is then as before.
    """
    first = sequence.length
    cache.adopt(sequence, list(ids), fitted.made_by, fitted.packed)
    sequence.lineage += fitted.lineage
    if not fitted.sound:
        sequence.sound_until = min(sequence.sound_until, first)


def write(cache: KvCache, sequence: Sequence, first: int, rows: torch.Tensor, fitted: Fitted) -> None:
    """Put the data of adopted payloads of one form, uint8 [payloads, bytes], into the pages from token `first` on.

    A payload with a window comes alone, and last.
    """
    kept = sum(fitted.sizes)
    write_rows(cache.memory, runs(sequence.table, PAGE, first, sequence.length), rows[:, :kept], fitted.sizes)
    if fitted.in_window and isinstance(cache, TwoPoolCache):
        write_rows(cache.window.memory, cache.adopt_window(sequence), rows[:, kept:], fitted.in_window)


def decode_into(cache: KvCache, sequence: Sequence, ids: SequenceOf[int], payload: bytes) -> None:
    """Append one payload's tokens to `sequence`, which must end where the payload begins.

    SnapshotMismatchError if it is damaged, of another shape, or holds other tokens than `ids`; `sequence` is then as
    before.
    """
    opened, first = open_payload(payload), sequence.length
    fitted = fit(cache, sequence, ids, opened)
    adopt(cache, sequence, ids, fitted)
    rows = torch.frombuffer(bytearray(opened.data), dtype=torch.uint8)[None] if len(opened.data) else torch.empty(1, 0)
    write(cache, sequence, first, rows.to(cache.device), fitted)


def block_sizes(cache: KvCache, pages: int) -> int:
    """Bytes of data in a block of `pages` pages, all in their final form."""
    tokens = pages * PAGE
    return sum(_sizes(cache, tokens if cache.packs else 0, 0 if cache.packs else tokens))


def _mismatch(what: str) -> SnapshotMismatchError:
    return SnapshotMismatchError(f"A stored KV prefix {what}.", "It is computed anew.")
