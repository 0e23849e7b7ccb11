"""Stored rows, read and checked by several threads ahead of the copies into the KV cache.

Rows come in batches. The threads put each row's bytes into its place in a batch's host memory; the caller copies many
rows at once, store by store. For a card that memory is pinned and goes up on a stream of its own while the batch before
is being put in place; it is filled again only when it has gone up.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from engine.errors import SnapshotMismatchError
from engine.snapshot import Opened, open_payload

BATCHES = 3  # being read, read, and being copied
BATCH_BYTES = 32 * 2**20
CARD_BATCH_BYTES = 64 * 2**20  # of pinned memory; as many rows as keep all threads busy while a batch goes up
MOST_THREADS = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row to be read: `read(key)` gives its payload, which holds `tokens` tokens, or None."""

    key: str
    tokens: int
    read: Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A row as it was read; `problem` tells why there is nothing of use. `place`: its row in the batch's host memory.

    A row of another size than blocks have stands in `alone`, uint8 [bytes], and has no place.
    """

    wanted: Wanted
    opened: Opened | None
    problem: str = ""
    place: int | None = None
    alone: torch.Tensor | None = None


class Upload(Protocol):
    """Takes host memory to where the KV cache is."""

    def host(self, *shape: int) -> torch.Tensor:
        """uint8 memory that `begin` can take from."""
        ...

    def begin(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` on the device, in time for whatever is queued next; `rows` must not change until `wait`."""
        ...

    def wait(self) -> None:
        """Returns when everything begun has been taken from host memory."""
        ...


class OnHost:
    """The KV cache is in host memory itself: nothing has to be taken anywhere."""

    def host(self, *shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.uint8)

    def begin(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def wait(self) -> None:
        pass


class ToCard:
    """Pinned host memory, copied on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._taken = torch.cuda.Event()

    def host(self, *shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.uint8, pin_memory=True)

    def begin(self, rows: torch.Tensor) -> torch.Tensor:
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            there = rows.to(self._device, non_blocking=True)
            self._taken.record(self._stream)
        current.wait_event(self._taken)
        there.record_stream(current)
        return there

    def wait(self) -> None:
        self._taken.synchronize()


def upload_to(device: torch.device) -> Upload:
    return ToCard(device) if device.type == "cuda" else OnHost()


class Batch:
    """Some rows, in order, as they become ready; their data lies in `host`, uint8 [rows, bytes of a block]."""

    def __init__(self, upload: Upload, host: torch.Tensor) -> None:
        self.upload, self.host = upload, host
        self._rows: list[Future[Loaded]] = []

    def read(self, pool: ThreadPoolExecutor, rows: SequenceOf[Wanted]) -> None:
        self._rows = [pool.submit(self._load, wanted, place) for place, wanted in enumerate(rows)]

    def __iter__(self) -> Iterator[Loaded]:
        for row in self._rows:
            yield row.result()

    def data(self, rows: SequenceOf[Loaded]) -> torch.Tensor:
        """uint8 [rows, bytes] on the device: one row alone, or neighbours in host memory."""
        if rows[0].alone is not None:
            return self.upload.begin(rows[0].alone[None])
        first = rows[0].place or 0
        return self.upload.begin(self.host[first : first + len(rows)])

    def _load(self, wanted: Wanted, place: int) -> Loaded:
        payload = wanted.read(wanted.key)
        if payload is None:
            return Loaded(wanted, None, "it is missing or damaged")
        try:
            opened = open_payload(payload)
        except SnapshotMismatchError as error:
            return Loaded(wanted, None, str(error))
        size = len(opened.data)
        alone = None if size == self.host.shape[1] else self.upload.host(size)
        into = self.host[place] if alone is None else alone
        into.numpy()[:] = np.frombuffer(opened.data, dtype=np.uint8)
        return Loaded(wanted, opened, "", place if alone is None else None, alone)


def load_rows(
    rows: SequenceOf[Wanted], row_bytes: int, batch_rows: int, upload: Upload
) -> Generator[Batch, None, None]:
    """`rows` in batches of `batch_rows`, most of them with `row_bytes` bytes of data. Close it if it is left early."""
    groups = [rows[at : at + batch_rows] for at in range(0, len(rows), batch_rows)]
    reading: deque[Batch] = deque()
    pool = ThreadPoolExecutor(reading_threads(), "restore")
    try:
        for group in groups[:BATCHES]:
            reading.append(Batch(upload, upload.host(min(batch_rows, len(rows)), row_bytes)))
            reading[-1].read(pool, group)
        for group in [*groups[BATCHES:], *[None] * len(reading)]:
            batch = reading.popleft()
            yield batch
            if group is not None:
                upload.wait()
                batch.read(pool, group)
                reading.append(batch)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def reading_threads() -> int:
    return min(MOST_THREADS, max(2, os.cpu_count() or 1))
