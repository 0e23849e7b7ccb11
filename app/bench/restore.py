"""Restoring a document's KV from a snapshot file, beside a plain read of the same file by as many threads."""

from __future__ import annotations

import os
import tempfile
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from app.bench.context import filled, make_cache
from engine.cache import PAGE, KvCache, Sequence
from engine.config import ModelConfig
from engine.kv_memory import bytes_per_token
from engine.patterns import AttentionPolicy
from engine.prefix import Blocks, find_in_snapshots, restore
from engine.row_loader import reading_threads
from engine.snapshot import block_pages, encode, export_rows
from storage import SnapshotStore

_ROOT = "0" * 64  # stands for a fingerprint
_PART = 4 << 20  # bytes that a thread reads at once


@dataclass(frozen=True, slots=True)
class RestoreRow:
    """`state`: cold, the file dropped from this machine's page cache, or warm. seconds: from opening the file to KV on
    the device. gb_per_s: of the file, restored; plain_gb_per_s: of the file, read and thrown away. write_s: exporting
    and storing."""

    kv_format: str
    length: int
    state: str
    seconds: float
    gb_per_s: float
    plain_gb_per_s: float
    file_bytes: int
    write_s: float


def measure_restore(
    shape: ModelConfig,
    kv_format: str,
    length: int,
    device: torch.device,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[RestoreRow]:
    """`length`: tokens, a multiple of 64. `folder`: on the disk to be measured, by default the system's for temporary
    files. RuntimeError if what was restored is not what was stored."""
    cache, each = make_cache(shape, kv_format, length, device), bytes_per_token(shape, kv_format)
    sequence, rows = filled(cache, length), []
    blocks = Blocks(block_pages(each), cache.packs)
    with tempfile.TemporaryDirectory(dir=folder, prefix="unabridged-bench-") as inside:
        place = Path(inside)
        started = time.perf_counter()
        with SnapshotStore.open(place, 1 << 50) as store:
            store.put("bench", _ROOT, export_rows(cache, sequence, _ROOT, blocks.pages, ()))
        wrote = time.perf_counter() - started
        (file,) = place.glob("*.db")
        for path in place.iterdir():
            _settle(path)
        checked = _samples(cache, sequence)
        ids = array("i", sequence.ids)
        cache.free(sequence)
        size = file.stat().st_size
        for state in ("cold", "warm"):
            progress(f"Restoring {length} tokens of {kv_format}, {state}")
            if state == "cold":
                _forget(file)
            plain = _plain_read(file, reading_threads())
            if state == "cold":
                _forget(file)
            started = time.perf_counter()
            found = Sequence()
            with SnapshotStore.open(place, 1 << 50) as store:
                stored = find_in_snapshots(store, _ROOT, ids, blocks, AttentionPolicy("exact"))
                cache.prepare(found, 1 if cache.packs else length, length)
                read = restore(cache, found, store, stored, ids, blocks)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                seconds = time.perf_counter() - started
            if read != length:
                raise RuntimeError(f"restored: got {read} tokens, need {length}")
            if _samples(cache, found) != checked:
                raise RuntimeError("restored: got other bytes than were stored")
            cache.free(found)
            rows.append(
                RestoreRow(kv_format, length, state, seconds, size / seconds / 1e9, size / plain / 1e9, size, wrote)
            )
    return rows


def _samples(cache: KvCache, sequence: Sequence) -> list[bytes]:
    """The first KV page, the last one and one between, as they would be written."""
    pages = sequence.length // PAGE
    return [encode(cache, sequence, at * PAGE, (at + 1) * PAGE) for at in sorted({0, pages // 2, pages - 1})]


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
