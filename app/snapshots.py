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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.errors import AppError, as_app_error

if TYPE_CHECKING:
    from app.jobs import EngineService
    from storage import SnapshotStore

log = logging.getLogger(__name__)

MOST_PENDING_BYTES = 128 * 2**20
BATCH_BYTES = 32 * 2**20


PARTS = ":parts"
"""Ends the name under which the engine keeps what a conversation reads in parts."""


def owner_of(name: str) -> str:
    """The conversation that the engine's KV of this name belongs to: it owns the rows, and they go with it."""
    return name.removesuffix(PARTS)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A row to be written. interim: of use until a later one of its owner stands."""

    owner: str
    fingerprint: str
    row: Any
    interim: bool


class SnapshotWriter:
    """Writes rows to the store in a thread of its own, in the order given. close() writes what is left.

    Nothing here but `forget`, `flush` and `close` waits for the disk.
    """

    def __init__(self, store: SnapshotStore, stored: Callable[[str], None] = lambda conversation_id: None) -> None:
        """`stored` is called, in the writer's thread, when all of a conversation's rows have been dealt with."""
        self.store, self.stored = store, stored
        self.problem: AppError | None = None
        self._rows: deque[_Waiting] = deque()
        self._keys: set[tuple[str, str]] = set()  # (owner, key) of the rows that wait or are being written
        self._bytes = 0
        self._afterwards: list[tuple[str, Callable[[], None]]] = []  # (owner, what follows when none of its rows waits)
        self._closing = False
        self._wake = threading.Condition()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="snapshots", daemon=True)
        self._thread.start()

    def offer(self, owner: str, fingerprint: str, row: Any, *, interim: bool = False, most: int | None = None) -> bool:
        """Takes a row unless too much waits already: `most` bytes, MOST_PENDING_BYTES where that is not said."""
        most = MOST_PENDING_BYTES if most is None else most
        with self._wake:
            if self._bytes and self._bytes + row_size(row) > most:
                return False
            self._rows.append(_Waiting(owner, fingerprint, row, interim))
            self._keys.add((owner, row.key))
            self._bytes += row_size(row)
            self._wake.notify_all()
        return True

    def claim(self, owner: str, keys: Sequence[str]) -> None:
        """Rows that another conversation wrote are this one's too: deleting that one must not take them away."""
        if keys:
            claimed = list(keys)
            self.afterwards(owner, lambda: self.store.claim(owner, claimed))

    def complete(self, owner: str, last: str) -> None:
        """All of a conversation has been handed over; `last` is the key of the row at its end.

        What reads under way have left behind is of no use then.
        """
        self.afterwards(owner, lambda: self.store.settle(owner, last))
        self.afterwards(owner, lambda: self.stored(owner))

    def waiting(self, owner: str, key: str) -> bool:
        with self._wake:
            return (owner, key) in self._keys

    def forget(self, owner: str) -> None:
        """Deletes an owner's rows, stored and waiting. Returns when they are gone."""
        with self._writing:
            with self._wake:
                self._rows = deque(waits for waits in self._rows if waits.owner != owner)
                self._afterwards = [entry for entry in self._afterwards if entry[0] != owner]
                self._keys = {(waits.owner, waits.row.key) for waits in self._rows}
                self._bytes = sum(row_size(waits.row) for waits in self._rows)
                self._wake.notify_all()
            self.store.forget(owner)

    def flush(self) -> None:
        """Returns when all rows offered so far are written, and what follows them is done."""
        with self._wake:
            self._wake.wait_for(lambda: not self._keys and not self._afterwards)

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join()

    def afterwards(self, owner: str, work: Callable[[], None]) -> None:
        """Has something short done in the writer's thread, once no row of `owner` waits."""
        with self._wake:
            self._afterwards.append((owner, work))
            self._wake.notify_all()

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._rows or self._afterwards or self._closing)
                if not self._rows and not self._afterwards:
                    return
            with self._writing:
                self._write(self._batch())
                self._follow_up()

    def _follow_up(self) -> None:
        """Does, in order, what waited for rows that have been written by now."""
        with self._wake:
            busy = {owner for owner, _ in self._keys}
            due = [entry for entry in self._afterwards if entry[0] not in busy]
        for _, work in due:
            try:
                work()
            except Exception as error:
                self.problem = as_app_error(error)
                log.warning("What follows the writing of a snapshot was not done: %s", self.problem)
        with self._wake:
            self._afterwards = [entry for entry in self._afterwards if entry not in due]
            self._wake.notify_all()

    def _batch(self) -> list[_Waiting]:
        """Rows of one owner and fingerprint, about BATCH_BYTES; they count as waiting until they are written."""
        batch: list[_Waiting] = []
        size = 0
        with self._wake:
            while self._rows and size < BATCH_BYTES and (not batch or _together(self._rows[0], batch[0])):
                batch.append(self._rows.popleft())
                size += row_size(batch[-1].row)
        return batch

    def _write(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        first, interim = batch[0], {waits.row.key for waits in batch if waits.interim}
        try:
            self.store.put(first.owner, first.fingerprint, [waits.row for waits in batch], interim)
            self.problem = None
        except Exception as error:
            self.problem = as_app_error(error)
            log.warning("A snapshot was not written: %s", self.problem)
        with self._wake:
            for waits in batch:
                self._keys.discard((waits.owner, waits.row.key))
                self._bytes -= row_size(waits.row)
            self._wake.notify_all()


def _together(one: _Waiting, other: _Waiting) -> bool:
    return (one.owner, one.fingerprint) == (other.owner, other.fingerprint)


def row_size(row: Any) -> int:
    """Bytes of a row, without making a payload that has not been made yet."""
    size = getattr(row, "size", None)
    return len(row.payload) if size is None else size


class KnownKeys(Container[str]):
    """Which rows need no export: stored already (`stored` collects them), or waiting to be written for `owner`.

    `last`: the key asked for last, which is the row at the end of what was exported.
    """

    def __init__(self, writer: SnapshotWriter, owner: str) -> None:
        self.writer = writer
        self.owner = owner
        self.stored: list[str] = []
        self.last = ""

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        self.last = key
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
        # Also of earlier turns: their rows may not have been written when there was no room.
        for tokens in sorted({min(checkpoint, live), *engine.kept_tokens(conversation_id)} - {0}):
            for row in engine.export(conversation_id, tokens, known):
                while not writer.offer(conversation_id, engine.fingerprint, row):
                    time.sleep(0.01)
                    yield
                yield
        if known.last:
            writer.claim(conversation_id, known.stored)
            writer.complete(conversation_id, known.last)

    service.when_idle(conversation_id, task)
