"""KV prefixes as bytes: what is written when a conversation is left, and how it is read back.

A prefix is a chain of blocks, each a fixed number of KV pages in their final form, and one checkpoint with the rest:
the last pages, exact and incomplete ones included. Keys are SHA-256 chains over (parent, kind, token ids),
rooted in the engine's fingerprint; the kind tells pages made by prefill, dense and sparse decode, whose bytes differ.
A payload says what it holds and is checked against what was asked for, token ids included. Whoever finds a payload
that does not fit computes the tokens instead.
"""

import hashlib
import json
import math
import struct
import zlib
from array import array
from collections.abc import Container, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.cache import PAGE, KvCache, Sequence
from engine.errors import SnapshotMismatchError
from engine.pages import runs
from engine.two_pools import TwoPoolCache

VERSION = 3
UNSOUND = 3
BLOCK_BYTES = 4 * 2**20
_MAGIC = b"UKV1"


@dataclass(frozen=True, slots=True)
class SnapshotBlock:
    """A fixed number of KV pages. `first_token`: position of `token_ids[0]`; `parent`: the block before or the root."""

    key: str
    parent: str
    first_token: int
    token_ids: tuple[int, ...]
    payload: bytes


@dataclass(frozen=True, slots=True)
class SnapshotCheckpoint:
    """Everything from the end of block `parent` (or the root) to the end of the prefix.

    Its key begins with `reading_tag` of the policy that it was read by.
    """

    key: str
    parent: str
    first_token: int
    token_ids: tuple[int, ...]
    payload: bytes


class SnapshotReader(Protocol):
    """Where blocks and checkpoints come from. Nothing raises for a missing or damaged row."""

    def known_blocks(self, keys: SequenceOf[str]) -> int:
        """Length of the leading run of keys that are stored."""
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


def block_key(parent: str, ids: SequenceOf[int], made_by: int, reading: str = "dense") -> str:
    """The key of a block. `made_by`: as `block_kind` says; `reading`: as `reading_of` says."""
    return _key(parent, (b"p", b"d", b"s", b"P", b"D", b"S")[made_by], ids, reading)


def block_kind(sequence: Sequence, first: int, end: int) -> int:
    """The largest of its tokens' (PREFILL, DECODE, SPARSE_DECODE), 3 more if one was computed over demoted pages."""
    return max(sequence.made_by[first:end]) + (UNSOUND if end > sequence.sound_until else 0)


def reading_of(reading: str, dense_until: float, end: int) -> str:
    """The policy that tokens up to `end` were read by, as far as it matters: all policies begin densely."""
    return "dense" if end <= dense_until else reading


def reading_tag(reading: str) -> str:
    """16 digits for a reading policy."""
    return hashlib.sha256(reading.encode()).hexdigest()[:16]


def _key(parent: str, kind: bytes, ids: SequenceOf[int], reading: str) -> str:
    policy = b"" if reading == "dense" else hashlib.sha256(reading.encode()).digest()
    return hashlib.sha256(parent.encode() + kind + policy + array("i", ids).tobytes()).hexdigest()


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
        ids = sequence.ids[first : first + size]
        reading = reading_of(sequence.reading, sequence.dense_until, first + size)
        key = block_key(parent, ids, block_kind(sequence, first, first + size), reading)
        if key not in known:
            if cache.demoted(sequence, first // PAGE, (first + size) // PAGE):
                return
            payload = encode(cache, sequence, first, first + size)
            yield SnapshotBlock(key, parent, first, tuple(ids), payload)
        parent = key
    first = final // pages_per_block * size
    ids = sequence.ids[first:]
    reading = reading_of(sequence.reading, sequence.dense_until, sequence.length)
    sound = b"c" if sequence.length <= sequence.sound_until else b"C"
    key = reading_tag(reading) + _key(parent, sound + bytes(sequence.made_by[first:]), ids, reading)[16:]
    if key not in known and not cache.demoted(sequence, first // PAGE):
        window = cache if isinstance(cache, TwoPoolCache) else None
        payload = encode(cache, sequence, first, sequence.length, window)
        yield SnapshotCheckpoint(key, parent, first, tuple(ids), payload)


def _shape(cache: KvCache) -> dict[str, object]:
    model = cache.model
    return {
        "version": VERSION,
        "format": cache.kv_format,
        "layers": model.layers,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "page": PAGE,
        "summaries": sorted(cache.memory.summaries),
    }


def encode(cache: KvCache, sequence: Sequence, first: int, end: int, window: TwoPoolCache | None = None) -> bytes:
    """Tokens `first` (a multiple of 64) to `end` - 1 of `sequence`: header length, header as JSON, tensors.

    `window`: with what streaming heads keep of the whole sequence, in their pool of this cache.
    """
    data = _tensors(cache, runs(sequence.table, PAGE, first, end))
    if window is not None:
        data += _tensors(window.window, window.window_runs(sequence))
    header = _shape(cache) | {
        "first": first,
        "ids": sequence.ids[first:end].tolist(),
        "made_by": sequence.made_by[first:end].hex(),
        "packed": [page < 0 for page in sequence.table[first // PAGE : -(-end // PAGE)]],
        "reading": reading_of(sequence.reading, sequence.dense_until, end),
        "sound": end <= sequence.sound_until,
        "crc32": zlib.crc32(data),
    }
    if window is not None:
        header["window"] = True
    text = json.dumps(header, separators=(",", ":")).encode()
    return _MAGIC + struct.pack("<I", len(text)) + text + data


def _tensors(cache: KvCache, slots: list[tuple[bool, int, int]]) -> bytes:
    """What lies in `slots`, store by store."""
    parts: list[torch.Tensor] = []
    for stored, unit, packed in cache.memory.stores():
        chosen = [
            stored[:, slot // unit : slot // unit + n // unit] for is_packed, slot, n in slots if is_packed == packed
        ]
        if chosen:
            parts.append(torch.cat(chosen, dim=1))
    return b"".join(part.cpu().contiguous().view(torch.uint8).numpy().tobytes() for part in parts)


def _sizes(cache: KvCache, packed: int, exact: int) -> list[int]:
    """Bytes of so many packed and exact tokens in each store."""
    tokens = {True: packed, False: exact}
    return [
        stored.element_size() * stored.shape[0] * math.prod(stored.shape[2:]) * (tokens[kind] // unit)
        for stored, unit, kind in cache.memory.stores()
    ]


def decode_into(cache: KvCache, sequence: Sequence, ids: SequenceOf[int], payload: bytes) -> None:
    """Append a payload's tokens to `sequence`, which must end where the payload begins.

    SnapshotMismatchError if it is damaged, of another shape, or holds other tokens than `ids`; `sequence` is then as
    before.
    """
    header, data = _parse(payload)
    reading = reading_of(sequence.reading, sequence.dense_until, sequence.length + len(ids))
    expected = _shape(cache) | {"first": sequence.length, "ids": list(ids), "reading": reading}
    for name, value in expected.items():
        if header.get(name) != value:
            raise SnapshotMismatchError(
                f"A stored KV prefix does not fit: its {name} is another.", "It is computed anew."
            )
    if header.get("crc32") != zlib.crc32(data):
        raise SnapshotMismatchError("A stored KV prefix is damaged.", "It is computed anew.")
    try:
        made_by = bytes.fromhex(header["made_by"])
        packed = [bool(value) for value in header["packed"]]
        window = bool(header.get("window", False))
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotMismatchError("A stored KV prefix has a damaged header.", "It is computed anew.") from error
    if len(made_by) != len(ids) or len(packed) != -(-len(ids) // PAGE) or (any(packed) and not cache.packs):
        raise SnapshotMismatchError("A stored KV prefix has a damaged header.", "It is computed anew.")
    sizes, in_window = _sizes(cache, sum(packed) * PAGE, len(ids) - sum(packed) * PAGE), []
    if window:
        if not isinstance(cache, TwoPoolCache):
            raise SnapshotMismatchError("A stored KV prefix has another kind of heads.", "It is computed anew.")
        in_window = _sizes(cache.window, 0, cache.make_window_room(sequence, sequence.length + len(ids)))
    if sum(sizes) + sum(in_window) != len(data):
        raise SnapshotMismatchError("A stored KV prefix has the wrong size.", "It is computed anew.")
    first = sequence.length
    slots = cache.adopt(sequence, list(ids), made_by, packed)
    if header.get("sound") is not True:
        sequence.sound_until = min(sequence.sound_until, first)
    _write(cache, slots, data, sizes)
    if window and isinstance(cache, TwoPoolCache):
        _write(cache.window, cache.adopt_window(sequence), data[sum(sizes) :], in_window)


def _parse(payload: bytes) -> tuple[dict, memoryview]:
    view = memoryview(payload)
    if len(view) < 8 or bytes(view[:4]) != _MAGIC:
        raise SnapshotMismatchError("A stored KV prefix is not in our format.", "It is computed anew.")
    (length,) = struct.unpack("<I", view[4:8])
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
    except ValueError as error:
        raise SnapshotMismatchError("A stored KV prefix has a damaged header.", "It is computed anew.") from error
    if not isinstance(header, dict):
        raise SnapshotMismatchError("A stored KV prefix has a damaged header.", "It is computed anew.")
    return header, view[8 + length :]


def _write(cache: KvCache, slots: list[tuple[bool, int, int]], data: memoryview, sizes: list[int]) -> None:
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)
    offset = 0
    for (stored, unit, packed), size in zip(cache.memory.stores(), sizes):
        part = raw[offset : offset + size]
        offset += size
        if not size:
            continue
        # The offset may be odd for the type; a copy is aligned.
        part = part.clone().view(stored.dtype).view(stored.shape[0], -1, *stored.shape[2:])
        done = 0
        for is_packed, slot, n in slots:
            if is_packed == packed:
                units = n // unit
                stored[:, slot // unit : slot // unit + units] = part[:, done : done + units].to(stored.device)
                done += units
