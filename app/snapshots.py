"""KV snapshots from the engine to the disk without delaying an answer.

After an answer was delivered the engine's thread copies out what is not stored yet, one row at a time and only while no
question waits; a thread of its own writes the rows. A snapshot is a cache: whatever goes wrong here costs a later read,
never text, so it is logged and kept as `problem` instead of being raised.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from app.errors import AppError, as_app_error

if TYPE_CHECKING:
    from app.jobs import EngineService
    from storage import SnapshotStore

log = logging.getLogger(__name__)

MOST_PENDING_BYTES = 128 * 2**20
BATCH_BYTES = 32 * 2**20


class SnapshotWriter:
    """Writes rows to the store in the background, in the order given. close() writes what is left."""

    def __init__(self, store: SnapshotStore, stored: Callable[[str], None] = lambda conversation_id: None) -> None:
        """`stored` is called when all of a conversation's rows have been handed over."""
        self.store, self.stored = store, stored
        self.problem: AppError | None = None
        self._rows: deque[tuple[str, str, Any]] = deque()  # (owner, fingerprint, row)
        self._keys: set[tuple[str, str]] = set()  # (owner, key) of the rows that wait
        self._bytes = 0
        self._discards: list[tuple[str, str, str]] = []  # (owner, key, what must have been written before)
        self._closing = False
        self._wake = threading.Condition()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="snapshots", daemon=True)
        self._thread.start()

    def offer(self, owner: str, fingerprint: str, row: Any) -> bool:
        """Takes a row unless too much waits already."""
        with self._wake:
            if self._bytes and self._bytes + len(row.payload) > MOST_PENDING_BYTES:
                return False
            self._rows.append((owner, fingerprint, row))
            self._keys.add((owner, row.key))
            self._bytes += len(row.payload)
            self._wake.notify_all()
        return True

    def claim(self, owner: str, keys: Sequence[str]) -> None:
        """Rows that another conversation wrote are this one's too: deleting that one must not take them away."""
        if not keys:
            return
        try:
            self.store.claim(owner, keys)
        except Exception as error:
            self.problem = as_app_error(error)
            log.warning("Snapshot rows were not shared: %s", self.problem)

    def discard(self, owner: str, key: str, *, after: str) -> None:
        """Gives up a row once `after`, which replaces it, has been written ("": at once), and it itself if it waits."""
        with self._wake:
            self._discards.append((owner, key, after))
            self._wake.notify_all()

    def waiting(self, owner: str, key: str) -> bool:
        with self._wake:
            return (owner, key) in self._keys

    def forget(self, owner: str) -> None:
        """Deletes an owner's rows, stored and waiting. Returns when they are gone."""
        with self._writing:
            with self._wake:
                kept = [entry for entry in self._rows if entry[0] != owner]
                self._rows = deque(kept)
                self._discards = [entry for entry in self._discards if entry[0] != owner]
                self._keys = {(other, row.key) for other, _, row in kept}
                self._bytes = sum(len(row.payload) for _, _, row in kept)
            self.store.forget(owner)

    def flush(self) -> None:
        """Returns when all rows offered so far are written, and replaced ones given up."""
        with self._wake:
            self._wake.wait_for(lambda: not self._keys and not self._discards)

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._rows or self._discards or self._closing)
                if not self._rows and not self._discards:
                    return
            with self._writing:
                self._write(self._batch())
                self._give_up()

    def _give_up(self) -> None:
        """Discards what has been replaced by now."""
        with self._wake:
            due = [entry for entry in self._discards if self._written(*entry)]
        for owner, key, _ in due:
            try:
                self.store.discard(owner, [key])
            except Exception as error:
                self.problem = as_app_error(error)
                log.warning("A replaced snapshot row was not removed: %s", self.problem)
        with self._wake:
            self._discards = [entry for entry in self._discards if entry not in due]
            self._wake.notify_all()

    def _written(self, owner: str, key: str, after: str) -> bool:
        return (owner, key) not in self._keys and (owner, after) not in self._keys

    def _batch(self) -> list[tuple[str, str, Any]]:
        """Rows of one owner and fingerprint, about BATCH_BYTES; they count as waiting until they are written."""
        batch: list[tuple[str, str, Any]] = []
        size = 0
        with self._wake:
            while self._rows and size < BATCH_BYTES and (not batch or self._rows[0][:2] == batch[0][:2]):
                batch.append(self._rows.popleft())
                size += len(batch[-1][2].payload)
        return batch

    def _write(self, batch: list[tuple[str, str, Any]]) -> None:
        if not batch:
            return
        owner, fingerprint, _ = batch[0]
        try:
            self.store.put(owner, fingerprint, [row for _, _, row in batch])
            self.problem = None
        except Exception as error:
            self.problem = as_app_error(error)
            log.warning("A snapshot was not written: %s", self.problem)
        with self._wake:
            for _, _, row in batch:
                self._keys.discard((owner, row.key))
                self._bytes -= len(row.payload)
            self._wake.notify_all()


class KnownKeys(Container[str]):
    """Which rows need no export: stored already (`stored` collects them), or waiting to be written for `owner`."""

    def __init__(self, writer: SnapshotWriter, owner: str) -> None:
        self.writer = writer
        self.owner = owner
        self.stored: list[str] = []

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        if self.writer.store.is_stored([key]):
            self.stored.append(key)
            return True
        return self.writer.waiting(self.owner, key)


def export_when_idle(service: EngineService, writer: SnapshotWriter, conversation_id: str, checkpoint: int) -> None:
    """Has the conversation's KV exported once the engine is idle; a newer call replaces this one.

    checkpoint: tokens up to the end of the documents, which get a snapshot of their own (0: none); the other one is of
    all that the turn computed, also when it was stopped in the middle of reading.
    """

    def task() -> Iterator[None]:
        engine = service.engine
        if engine is None:
            return
        known = KnownKeys(writer, conversation_id)
        live = engine.live_tokens(conversation_id)
        for tokens in sorted({min(checkpoint, live), live} - {0}):
            for row in engine.export(conversation_id, tokens, known):
                while not writer.offer(conversation_id, engine.fingerprint, row):
                    time.sleep(0.01)
                    yield
                yield
        writer.claim(conversation_id, known.stored)
        writer.stored(conversation_id)

    service.when_idle(conversation_id, task)
