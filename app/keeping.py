"""KV that must not wait for idle times: what a long read has done so far, and what is about to leave memory.

Both only hand rows to the snapshot writer, which writes in a thread of its own. A read gives up a small share of its
time for it at most, so fast reads are not held up and slow ones, which would hurt to lose, are kept as they go.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from app.snapshots import KnownKeys
from app.units import format_size

if TYPE_CHECKING:
    from app.snapshots import SnapshotWriter
    from app.wiring import App
    from engine import Engine, SnapshotCheckpoint

log = logging.getLogger(__name__)

READ_SHARE = 0.03
LEAVING_SECONDS = 2.0
PAUSE_S = 0.01


class LongRead:
    """One prompt while it is read. `checkpoint` and `step` belong to the engine's thread, between two events."""

    def __init__(self, engine: Engine, writer: SnapshotWriter, conversation_id: str) -> None:
        self._engine, self._writer, self._id = engine, writer, conversation_id
        self._began = time.monotonic()
        self._spent = 0.0
        self._tokens = 0  # up to the checkpoint that is being handed over, 0 when that is done
        self._keys = _Seen(writer, conversation_id)
        self._last: SnapshotCheckpoint | None = None

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
            if not self._writer.offer(self._id, self._engine.fingerprint, row):
                complete = False
                break
            self._keys.seen.add(row.key)
            if isinstance(row, SnapshotCheckpoint):
                self._replace(row)
            if not self._time_left(since=began):
                complete = False
                break
        self._spent += time.monotonic() - began
        if complete:
            self._tokens = 0

    def end(self, keep: int) -> None:
        """The read is over. Its last checkpoint goes, unless it is the one at `keep` tokens or where all ended."""
        kept = (keep, self._engine.live_tokens(self._id))
        if self._last is not None and self._last.first_token + len(self._last.token_ids) not in kept:
            self._writer.discard(self._id, self._last.key, after="")
        self._last = None

    def _replace(self, row: SnapshotCheckpoint) -> None:
        """An earlier checkpoint of this read is of no use once this one is written."""
        if self._last is not None:
            self._writer.discard(self._id, self._last.key, after=row.key)
        self._last = row

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
        if key in self.seen:
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


def keep_leaving(engine: Engine, writer: SnapshotWriter, conversation_id: str) -> None:
    """Memory is needed by another conversation: hand over what is not stored of this one, for LEAVING_SECONDS at most.

    The rest of it will be read again.
    """
    until = time.monotonic() + LEAVING_SECONDS
    keys = _Seen(writer, conversation_id)
    for tokens in engine.kept_tokens(conversation_id):
        for row in engine.export(conversation_id, tokens, keys):
            while not writer.offer(conversation_id, engine.fingerprint, row):
                if time.monotonic() > until:
                    log.warning("Conversation %s left memory before all of it was stored", conversation_id)
                    return
                time.sleep(PAUSE_S)
            keys.seen.add(row.key)
