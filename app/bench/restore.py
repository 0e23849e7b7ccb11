"""Restoring a document's KV from a snapshot file, beside a plain read of the same file by as many threads."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from app.bench.context import filled, make_cache
from engine.cache import EXACT_RECENT, PAGE, KvCache, Sequence
from engine.config import ModelConfig
from engine.kv_memory import bytes_per_token
from engine.patterns import AttentionPolicy
from engine.prefix import Blocks, StoredPrefix, find_in_snapshots, restore
from engine.row_loader import reading_threads
from engine.snapshot import SnapshotRow, block_pages, encode, export_rows
from storage import SnapshotStore

_ROOT = "0" * 64  # stands for a fingerprint
_PART = 4 << 20  # bytes that a thread reads at once
_NO_QUOTA = 1 << 50
_WARM_UP_ROWS = 64
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Written:
    """A snapshot file of random KV in `folder`: its bytes, the tokens that can be restored from it, and how long
    exporting and storing took. samples: of some KV pages by their number."""

    folder: str
    file_bytes: int
    tokens: int
    seconds: float
    samples: dict[int, str]

    @property
    def file(self) -> Path:
        (found,) = Path(self.folder).glob("*.db")
        return found


@dataclass(frozen=True, slots=True)
class RestoreRow:
    """`state`: cold, the file dropped from this machine's page cache, or warm. seconds: from opening the file to KV on
    the device. gb_per_s: of the file, restored; plain_gb_per_s: of the file, read and thrown away. write_s: exporting
    and storing. in_memory: share of the file in the page cache just before it was restored."""

    kv_format: str
    length: int
    state: str
    seconds: float
    gb_per_s: float
    plain_gb_per_s: float
    file_bytes: int
    write_s: float
    in_memory: float


def measure_restore(
    shape: ModelConfig,
    kv_format: str,
    length: int,
    device: torch.device,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    wide: tuple[int, ...] = (),
) -> list[RestoreRow]:
    """`length`: tokens, a multiple of 64. `folder`: on the disk to be measured, by default the system's for temporary
    files. `wide`: layers with 8-bit keys. RuntimeError if what was restored is not what was stored."""
    cache = make_cache(shape, kv_format, length, device, wide=wide)
    with tempfile.TemporaryDirectory(dir=folder, prefix="unabridged-bench-") as inside:
        written = write_random(cache, length, Path(inside))
        reader = Reader(cache, written)
        reader.warm_up()
        rows = []
        for state in ("cold", "warm"):
            progress(f"Restoring {length} tokens of {kv_format}, {state}")
            rows.append(reader.measure(state))
    return rows


def write_random(cache: KvCache, length: int, folder: Path, most_seconds: float = NEVER) -> Written:
    """Fill a cache at random and store it as the app does, as far as it comes in `most_seconds`, then free it."""
    sequence = filled(cache, length)
    blocks = blocks_of(cache)
    end = 0

    def in_time(rows: Iterator[SnapshotRow]) -> Iterator[SnapshotRow]:
        nonlocal end
        for row in rows:
            if time.perf_counter() - started > most_seconds:
                return
            yield row
            end = row.first_token + len(row.token_ids)

    started = time.perf_counter()
    with SnapshotStore.open(folder, _NO_QUOTA) as store:
        store.put("bench", _ROOT, in_time(export_rows(cache, sequence, _ROOT, blocks.pages, ())))
        stored = find_in_snapshots(store, _ROOT, array("i", sequence.ids), blocks, AttentionPolicy("exact"))
    seconds = time.perf_counter() - started
    for path in folder.iterdir():
        _settle(path)
    samples = samples_of(cache, sequence, stored.tokens)
    cache.free(sequence)
    size = sum(path.stat().st_size for path in folder.glob("*.db"))
    return Written(str(folder), size, stored.tokens, seconds, samples)


class Reader:
    """Restores what `write_random` wrote into `cache`, and measures it. RuntimeError if other bytes came back."""

    def __init__(self, cache: KvCache, written: Written) -> None:
        self._cache, self._written, self._blocks = cache, written, blocks_of(cache)
        self._ids = array("i", [1]) * (written.tokens + EXACT_RECENT)  # so many are computed where no checkpoint is

    def warm_up(self) -> float:
        """Restore some rows, so that kernels are compiled and memory is pinned -> seconds."""
        return self.restore(_WARM_UP_ROWS)

    def measure(self, state: str) -> RestoreRow:
        """`state`: cold or warm."""
        written, file = self._written, self._written.file
        if state == "cold":
            _forget(file)
        plain = _plain_read(file, reading_threads())
        if state == "cold":
            _forget(file)
        share = in_memory(file)
        seconds = self.restore()
        size = written.file_bytes
        return RestoreRow(
            self._cache.kv_format, written.tokens, state, seconds, size / seconds / 1e9, size / plain / 1e9, size,
            written.seconds, share,
        )  # fmt: skip

    def restore(self, most_rows: int | None = None) -> float:
        """From opening the file to KV on the device -> seconds. What was restored whole is compared."""
        cache, written, found = self._cache, self._written, Sequence()
        started = time.perf_counter()
        with SnapshotStore.open(Path(written.folder), _NO_QUOTA) as store:
            stored = find_in_snapshots(store, _ROOT, self._ids, self._blocks, AttentionPolicy("exact"))
            if most_rows is not None:
                rows = stored.blocks[:most_rows]
                stored = StoredPrefix(rows, None, len(rows) * self._blocks.tokens)
            cache.prepare(found, 1 if cache.packs else written.tokens, written.tokens)
            read = restore(cache, found, store, stored, self._ids, self._blocks)
            if cache.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
        wanted = written.tokens if most_rows is None else stored.tokens
        if read != wanted:
            raise RuntimeError(f"restored: got {read} tokens, need {wanted}")
        if most_rows is None and samples_of(cache, found, read) != written.samples:
            raise RuntimeError("restored: got other bytes than were stored")
        cache.free(found)
        return seconds


def blocks_of(cache: KvCache) -> Blocks:
    return Blocks(block_pages(bytes_per_token(cache.model, cache.kv_format, wide=cache.wide)), cache.packs)


def samples_of(cache: KvCache, sequence: Sequence, tokens: int) -> dict[int, str]:
    """The first KV page, the last one within `tokens` and some between: checksums of what would be written."""
    pages = tokens // PAGE
    chosen = sorted({0, 1, pages // 3, pages // 2, pages - 1} & set(range(pages)))
    parts = {at: encode(cache, sequence, at * PAGE, (at + 1) * PAGE) for at in chosen}
    return {at: xxhash.xxh3_128_hexdigest(part) for at, part in parts.items()}


def in_memory(path: Path) -> float:
    """The share of a file that this machine's page cache holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        found, view = (ctypes.c_ubyte * pages)(), ctypes.c_char.from_buffer(mapped)
        try:
            failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(mapped)), found)
        finally:
            del view  # the map cannot be closed while somebody points into it
        if failed:
            raise OSError(ctypes.get_errno(), "the page cache could not be looked at")
    return sum(each & 1 for each in bytes(found)) / pages


def _settle(path: Path) -> None:
    """Onto the disk, so that it can be dropped from memory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _forget(path: Path) -> None:
    """Out of this machine's page cache; a host beneath it may still have it."""
    if not hasattr(os, "posix_fadvise"):
        raise OSError("this system cannot be told to drop a file from memory")
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _plain_read(path: Path, threads: int) -> float:
    """Seconds that `threads` threads take to read the file, part by part, each into memory of its own."""
    size = path.stat().st_size

    def read(first: int) -> int:
        buffer, done = bytearray(_PART), 0
        with path.open("rb", buffering=0) as file:
            for at in range(first * _PART, size, threads * _PART):
                file.seek(at)
                done += file.readinto(buffer)
        return done

    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, range(threads)))
    if total != size:
        raise RuntimeError(f"read: got {total} bytes, need {size}")
    return time.perf_counter() - started
