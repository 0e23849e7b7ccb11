"""KV that must not wait for idle times: what a long read has done so far, and what is about to leave memory.

Both only hand rows to the snapshot writer, which makes payloads of them and writes in a thread of its own. A read gives
up a small share of its time for it at most, so fast reads are not held up and slow ones, which would hurt to lose, are
kept as they go.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from app.snapshots import KnownKeys, owner_of
from app.units import format_size

if TYPE_CHECKING:
    from app.snapshots import SnapshotWriter
    from app.wiring import App
    from engine import Engine

log = logging.getLogger(__name__)

READ_SHARE = 0.03
LEAVING_SECONDS = 0.1  # for all that leave at once: less than anybody notices
LEAVING_BYTES = 512 * 2**20  # of host memory, while the disk is behind


class LongRead:
    """One prompt while it is read. `checkpoint` and `step` belong to the engine's thread, between two events.

    keep: tokens up to the end of the documents, whose checkpoint stays; any other one is of use until a later one
    stands, also when the app was killed in between and this read goes on from there.
    """

    def __init__(self, engine: Engine, writer: SnapshotWriter, conversation_id: str, keep: int) -> None:
        self._engine, self._writer, self._id, self._keep = engine, writer, conversation_id, keep
        self._began = time.monotonic()
        self._spent = 0.0
        self._tokens = 0  # up to the checkpoint that is being handed over, 0 when that is done
        self._keys = _Seen(writer, conversation_id)

    def checkpoint(self, tokens: int) -> None:
        """The engine can export the first `tokens` tokens."""
        self._tokens = tokens
        self.step()

    def step(self) -> None:
        """Hands over rows while the writer takes them and the share of time is not used up."""
        from engine import SnapshotCheckpoint

        if not self._tokens or not self._time_left():
            return
        began = time.monotonic()
        complete = True
        for row in self._engine.export(self._id, self._tokens, self._keys):
            interim = isinstance(row, SnapshotCheckpoint) and row.first_token + len(row.token_ids) != self._keep
            if not self._writer.offer(self._id, self._engine.fingerprint, row, interim=interim):
                complete = False
                break
            self._keys.seen.add(row.key)
            if not self._time_left(since=began):
                complete = False
                break
        self._spent += time.monotonic() - began
        if complete:
            self._tokens = 0

    def _time_left(self, since: float | None = None) -> bool:
        now = time.monotonic()
        spent = self._spent + (now - since if since is not None else 0.0)
        return spent < READ_SHARE * (now - self._began)


class _Seen(KnownKeys):
    """Known keys, without asking the store again for those that this read has seen."""

    def __init__(self, writer: SnapshotWriter, owner: str) -> None:
        super().__init__(writer, owner)
        self.seen: set[str] = set()

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str) and key in self.seen:
            self.last = key
            return True
        if isinstance(key, str) and super().__contains__(key):
            self.seen.add(key)
            return True
        return False


def not_kept(app: App, bytes_per_token: int, tokens: int) -> tuple[str, ...]:
    """What to say before a read of so many tokens whose snapshot is larger than the quota leaves room for."""
    needed, quota = tokens * bytes_per_token, app.snapshots.quota_bytes
    room = quota - app.snapshots.pinned_bytes() if needed <= quota else quota
    if needed <= room:
        return ()
    return (
        f"The snapshot of this read takes {format_size(needed)}, the quota has room for {format_size(max(room, 0))}: "
        "after a restart part of it is read again. `--cache-quota` or the setting cache.quota allows more.",
    )


class Leaving:
    """Conversations that have to leave memory for another one, which somebody waits for: what is not stored of them is
    copied out as far as LEAVING_SECONDS allow, and written later. The rest will be read again.
    """

    def __init__(self, engine: Engine, writer: SnapshotWriter) -> None:
        self._engine, self._writer = engine, writer
        self._left, self._used_at = LEAVING_SECONDS, 0.0

    def __call__(self, name: str) -> None:
        began = time.monotonic()
        if began - self._used_at > 1.0:  # another question: those of one come at once
            self._left = LEAVING_SECONDS
        try:
            if not self._hand_over(name, until=began + self._left):
                log.warning("Conversation %s left memory before all of it was stored", owner_of(name))
        except Exception:  # a snapshot is a cache: an answer must not fail for it
            log.exception("Conversation %s left memory and could not be stored", owner_of(name))
        self._used_at = time.monotonic()
        self._left -= self._used_at - began

    def _hand_over(self, name: str, until: float) -> bool:
        """-> whether all of it is stored or on its way."""
        owner, engine = owner_of(name), self._engine
        keys = _InTime(self._writer, owner, until)
        for tokens in engine.kept_tokens(name):
            for row in engine.export(name, tokens, keys):
                if not self._writer.offer(owner, engine.fingerprint, row, most=LEAVING_BYTES):
                    return False
                keys.seen.add(row.key)
        if keys.late:
            return False
        self._writer.claim(owner, keys.stored)
        if keys.last and name == owner:
            self._writer.complete(owner, keys.last)
        return True


class _InTime(_Seen):
    """Once the time is over every key counts as known: nothing more is copied."""

    def __init__(self, writer: SnapshotWriter, owner: str, until: float) -> None:
        super().__init__(writer, owner)
        self.until, self.late = until, False

    def __contains__(self, key: object) -> bool:
        self.late = self.late or time.monotonic() > self.until
        return self.late or super().__contains__(key)
