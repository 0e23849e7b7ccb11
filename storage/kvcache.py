"""kvcache.db: KV snapshots, so that a document read once need not be read again.

Disposable: text is the record, this is a cache. Whatever happens to the file (bit flips, truncation, deletion), the
store answers as if the row were not there, removes what is damaged or starts the file anew, and writes a line to the
log. Only writing can raise: DiskFull when there is no room, FolderNotWritable, or another StorageError; the store
stays usable.
Rows are content-addressed: their key says all that shaped them, so an equal key is the same row.
"""

import logging
import shutil
import threading
import time
from collections.abc import Collection, Container, Iterable, Sequence
from functools import partial
from pathlib import Path

from sqlite_utils import Database

from storage.base import checked_hex64
from storage.errors import DiskFull, StorageError
from storage.rows import Holding, SnapshotStats
from storage.snapshot_file import SnapshotFile, Unsound
from storage.snapshot_queries import (
    IN_KEYS,
    SnapshotLike,
    add_owner,
    ancestors,
    batches,
    drop_interim,
    evict,
    fetch,
    held,
    insert,
    interim_of,
    is_ids,
    keep_interim,
    keys_json,
    linked,
    mark_interim,
    need_owner,
    row_bytes,
    shrink,
)
from storage.snapshot_schema import SnapshotRow, checksum, unpack_ids

log = logging.getLogger(__name__)

SNAPSHOT_NAME = "kvcache.db"
MOST_QUOTA_BYTES = 200 * 10**9
TICK = 1e-5  # seconds that tell two uses apart
KEPT_FREE_BYTES = 64 * 2**20  # of the disk, for what cannot be computed again
FREE_PAGES_KEPT = 1024  # 64 MB of freed pages wait for re-use before the file is made smaller


def default_quota(folder: Path) -> int:
    """Bytes: the smaller of 20 % of the free disk (what the cache takes now counts as free) and 200 GB."""
    file = folder / SNAPSHOT_NAME
    taken = file.stat().st_size if file.exists() else 0
    return min((shutil.disk_usage(folder).free + taken) // 5, MOST_QUOTA_BYTES)


class SnapshotStore:
    """Safe to use from several threads: writes take turns, reads run in parallel on connections of their own."""

    def __init__(self, file: SnapshotFile, quota_bytes: int) -> None:
        self.quota_bytes = quota_bytes
        self._file = file
        self._times_lock = threading.Lock()
        self._touched: dict[str, None] = {}  # rows read since times of use were written, the latest last
        self._latest: float | None = None  # the newest time of use in the file
        self._too_large: set[str] = set()  # owners whose snapshots were cut short, said once each

    @classmethod
    def open(cls, folder: Path, quota_bytes: int) -> "SnapshotStore":
        """Opens or creates the store. Raises FolderNotWritable or DiskFull if there can be none."""
        if quota_bytes < 0:
            raise ValueError(f"quota_bytes: got {quota_bytes}, need 0 or more")
        return cls(SnapshotFile(Path(folder) / SNAPSHOT_NAME), quota_bytes)

    def close(self) -> None:
        def work(db: Database) -> None:
            with db.atomic():
                self._store_times(db)

        try:
            if self._touched:
                self._file.write(work)
        except StorageError as error:
            log.warning("times of use were not stored: %s", error)
        self._file.close()

    def __enter__(self) -> "SnapshotStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading: the engine's SnapshotReader.

    def known_blocks(self, keys: Sequence[str]) -> int:
        """Length of the leading run of `keys` that are stored as blocks."""
        query = f"SELECT key FROM snapshots WHERE kind = 'block' AND key {IN_KEYS}"
        rows = self._file.read(lambda db: db.execute(query, (keys_json(keys),)).fetchall(), [])
        found = {row[0] for row in rows}
        for position, key in enumerate(keys):
            if key not in found:
                return position
        return len(keys)

    def is_stored(self, keys: Sequence[str]) -> bool:
        """Whether there are rows, blocks or checkpoints, for all of `keys`."""
        query = f"SELECT key FROM snapshots WHERE key {IN_KEYS}"
        rows = self._file.read(lambda db: db.execute(query, (keys_json(keys),)).fetchall(), [])
        return {row[0] for row in rows} >= set(keys)

    def checkpoints(self, parents: Sequence[str]) -> list[tuple[str, str, tuple[int, ...]]]:
        """(key, parent, token ids) of every checkpoint whose parent is one of `parents`, the latest position first."""
        query = f"""
            SELECT key, parent, token_ids FROM snapshots WHERE kind = 'checkpoint' AND parent {IN_KEYS}
            ORDER BY first_token + length(token_ids) / 4 DESC, id
        """
        rows = self._file.read(lambda db: db.execute(query, (keys_json(parents),)).fetchall(), [])
        return [(key, parent, unpack_ids(ids)) for key, parent, ids in rows if is_ids(ids)]

    def blocks_after(self, parent: str) -> list[tuple[str, tuple[int, ...]]]:
        """(key, token ids) of every block whose parent this is."""
        query = "SELECT key, token_ids FROM snapshots WHERE kind = 'block' AND parent = ? ORDER BY id"
        rows = self._file.read(lambda db: db.execute(query, (parent,)).fetchall(), [])
        return [(key, unpack_ids(ids)) for key, ids in rows if is_ids(ids)]

    def read_block(self, key: str) -> bytes | None:
        """The payload; None if it is missing or damaged (a damaged row is removed)."""
        row = self.read_row(key)
        return row.payload if row is not None and row.kind == "block" else None

    def read_checkpoint(self, key: str) -> bytes | None:
        """The payload; None if it is missing or damaged (a damaged row is removed)."""
        row = self.read_row(key)
        return row.payload if row is not None and row.kind == "checkpoint" else None

    def read_row(self, key: str) -> SnapshotRow | None:
        """The whole row, checked; None if it is missing or damaged (a damaged row is removed)."""
        checked_hex64("key", key)
        found = self._file.read(lambda db: fetch(db, key), None)
        if found is None:
            return None
        kind, parent, first_token, ids, stored, payload = found
        sound = is_ids(ids) and isinstance(payload, bytes)
        if not sound or checksum(kind, key, parent, first_token, ids, payload) != stored:
            log.warning("snapshot %s is damaged and is removed; its tokens will be computed again", key)
            self._remove(key)
            return None
        with self._times_lock:
            self._touched.pop(key, None)
            self._touched[key] = None
        return SnapshotRow(kind, key, parent, first_token, unpack_ids(ids), payload)

    # Writing

    def put(self, owner: str, fingerprint: str, rows: Iterable[SnapshotLike], interim: Container[str] = ()) -> int:
        """Stores rows (each after its parent) for `owner`, evicting the least recently used ones of others if needed.

        interim: keys of checkpoints that are of use until a later one stands. When such a row is stored, the owner's
        interim ones before it go in the same commit; what is stored anew without it, claimed or kept by `settle` stays.

        Returns the bytes newly written; a row that is stored already, and every stored ancestor, only gets one more
        owner. If the rows alone exceed the quota the leading ones are stored and the rest is left out, also when they
        come in several calls: a row whose parent is not stored ends the put (one at token 0 has none). Raises DiskFull,
        FolderNotWritable or another StorageError; commits (at most 64 MB, or one row) that were made before stay.
        """
        need_owner(owner)
        own: set[str] = set()
        written = 0
        for batch in batches(rows):
            own.update(key for row in batch for key in (row.key, row.parent))
            work = partial(self._put_batch, owner=owner, fingerprint=fingerprint, batch=batch, own=own, interim=interim)
            done, stored = self._file.write(work)
            written += done
            if stored < len(batch):
                break
        return written

    def _need_room(self, new_bytes: int) -> None:
        """Snapshots never take the last of a disk: messages and documents need it. Rows stand in the log first."""
        path = self._file.path
        if shutil.disk_usage(path.parent).free < KEPT_FREE_BYTES + 2 * new_bytes:
            raise DiskFull(
                f"There is too little room for snapshots in {path.name}.",
                f"Free some space on the disk of {path.parent}.",
            )

    def claim(self, owner: str, keys: Sequence[str]) -> None:
        """Makes `owner` one more owner of stored rows and their ancestors, without writing their payloads again."""
        need_owner(owner)

        def work(db: Database) -> None:
            with db.atomic():
                add_owner(db, owner, keys)
                keep_interim(db, owner, keys)

        self._file.write(work)

    def settle(self, owner: str, last: str) -> None:
        """A read has ended and `last` is what it came to: if that is stored, the owner's interim rows go."""

        def work(db: Database) -> None:
            with db.atomic():
                if db.execute("SELECT 1 FROM owners WHERE owner = ? AND key = ?", (owner, last)).fetchone():
                    keep_interim(db, owner, [last])
                    drop_interim(db, owner)

        if self._has_interim(owner):
            self._file.write(work)

    def _has_interim(self, owner: str) -> bool:
        query = "SELECT 1 FROM interim WHERE owner = ?"
        return self._file.read(lambda db: db.execute(query, (owner,)).fetchone() is not None, False)

    def forget(self, owner: str) -> None:
        """Removes every row that nobody else owns, so that its bytes are gone from the file."""

        def work(db: Database) -> None:
            db.conn.execute("PRAGMA secure_delete = ON").fetchall()
            try:
                with db.atomic():
                    db.execute("DELETE FROM pinned_owners WHERE owner = ?", (owner,))
                    db.execute("DELETE FROM interim WHERE owner = ?", (owner,))
                    db.execute("DELETE FROM owners WHERE owner = ?", (owner,))
                    db.execute("DELETE FROM snapshots WHERE key NOT IN (SELECT key FROM owners)")
                shrink(db, keep_pages=0)
            finally:
                db.conn.execute("PRAGMA secure_delete = FAST").fetchall()

        self._file.write(work)
        self._too_large.discard(owner)

    def pin(self, owner: str, pinned: bool = True) -> None:
        """Rows of a pinned owner are never evicted."""
        need_owner(owner)
        sql = "INSERT OR IGNORE INTO pinned_owners (owner) VALUES (?)"
        if not pinned:
            sql = "DELETE FROM pinned_owners WHERE owner = ?"
        self._file.write(lambda db: db.execute(sql, (owner,)))

    def pinned(self) -> set[str]:
        """The pinned owners, also those without rows."""
        query = "SELECT owner FROM pinned_owners"
        return self._file.read(lambda db: {row[0] for row in db.execute(query)}, set())

    def pinned_bytes(self) -> int:
        """What the rows of pinned owners hold together, each row once."""
        query = """
            SELECT coalesce(sum(CAST(bytes AS INTEGER)), 0) FROM snapshots
            WHERE key IN (SELECT key FROM owners JOIN pinned_owners USING (owner))
        """
        return self._file.read(lambda db: db.execute(query).fetchone()[0], 0)

    def prune(self, max_bytes: int) -> int:
        """Evicts least recently used rows, but no pinned ones, until at most `max_bytes` are held -> bytes removed."""

        def work(db: Database) -> int:
            with db.atomic():
                self._store_times(db)
                freed = evict(db, held(db) - max_bytes, protected=())
            shrink(db, keep_pages=0)
            return freed

        return self._file.write(work)

    def owner_names(self) -> set[str]:
        """Everybody who owns rows or is pinned."""
        query = "SELECT owner FROM owners UNION SELECT owner FROM pinned_owners"
        return self._file.read(lambda db: {row[0] for row in db.execute(query)}, set())

    def owners(self) -> dict[str, int]:
        """Bytes that each owner's rows hold; rows with several owners count for each."""
        return {holding.owner: holding.bytes for holding in self.holdings()}

    def holdings(self) -> list[Holding]:
        """What every owner's rows hold, by owner."""
        query = """
            SELECT owner, count(*), max(first_token + length(token_ids) / 4), sum(CAST(bytes AS INTEGER)),
                max(CAST(last_used AS REAL)), owner IN (SELECT owner FROM pinned_owners)
            FROM owners JOIN snapshots USING (key) GROUP BY owner ORDER BY owner
        """
        rows = self._file.read(lambda db: db.execute(query).fetchall(), [])
        return [Holding(*row[:-1], pinned=bool(row[-1])) for row in rows]

    def stats(self) -> SnapshotStats:
        query = """
            SELECT count(*), coalesce(sum(kind = 'block'), 0), coalesce(sum(kind = 'checkpoint'), 0),
                (SELECT count(DISTINCT owner) FROM owners), coalesce(sum(CAST(bytes AS INTEGER)), 0) FROM snapshots
        """
        counts = self._file.read(lambda db: db.execute(query).fetchone(), (0, 0, 0, 0, 0))
        return SnapshotStats(*counts, file_bytes=self._file.bytes_on_disk(), quota_bytes=self.quota_bytes)

    def verify(self) -> list[str]:
        """Reads everything; removes damaged rows and returns their keys. A file beyond repair is started anew."""
        keys = self._file.read(lambda db: [row[0] for row in db.execute("SELECT key FROM snapshots ORDER BY key")], [])
        damaged = [key for key in keys if self.read_row(key) is None]

        def check(db: Database) -> bool:
            problem = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise Unsound(problem)
            return True

        return damaged if self._file.read(check, False) else keys

    def _remove(self, key: str) -> None:
        try:
            self._file.write(lambda db: db.execute("DELETE FROM snapshots WHERE key = ?", (key,)))
        except StorageError as error:
            log.warning("damaged snapshot %s could not be removed: %s", key, error)

    def _put_batch(
        self,
        db: Database,
        owner: str,
        fingerprint: str,
        batch: Sequence[SnapshotRow],
        own: Collection[str],
        interim: Container[str],
    ) -> tuple[int, int]:
        """(bytes written, rows of the batch that are stored now)."""
        with db.atomic():
            moment = self._store_times(db)
            batch, known = linked(db, fingerprint, batch)
            own = {*own, *ancestors(db, [row.key for row in batch] + [row.parent for row in batch])}
            own |= interim_of(db, owner)  # they go when a later one stands, not for one that may not fit
            before = frozenset(known)
            now, new = held(db), sum(row_bytes(row) for row in batch if row.key not in known)
            now -= evict(db, now + new - self.quota_bytes, protected=own)
            if new:
                self._need_room(new)
            written = stored = 0
            for row in batch:
                if row.key not in known:
                    size = row_bytes(row)
                    if now + written + size > self.quota_bytes:
                        self._say_too_large(owner)
                        break
                    insert(db, fingerprint, row, size, moment)
                    known.add(row.key)
                    written += size
                stored += 1
            keys = [row.key for row in batch[:stored]]
            passing = [key for key in keys if key in interim and key not in before]
            add_owner(db, owner, keys)
            keep_interim(db, owner, [key for key in keys if key not in interim])
            if passing:
                mark_interim(db, owner, passing)
            db.execute(f"UPDATE snapshots SET last_used = ? WHERE key {IN_KEYS}", (moment, keys_json(keys)))
        shrink(db, keep_pages=FREE_PAGES_KEPT)
        return written, stored

    def _say_too_large(self, owner: str) -> None:
        if owner not in self._too_large:
            self._too_large.add(owner)
            log.warning("the snapshot of %s does not fit into the quota of %d bytes", owner, self.quota_bytes)

    def _store_times(self, db: Database) -> float:
        """Writes when rows were read -> a time later than all of these and than any other in the file.

        So the order of use holds, which is all that counts, also when the clock was set back.
        """
        with self._times_lock:
            touched, self._touched = list(self._touched), {}
        latest = self._latest
        if latest is None:
            latest = db.execute("SELECT max(CAST(last_used AS REAL)) FROM snapshots").fetchone()[0] or 0.0
        moment = max(time.time(), latest + TICK)
        self._latest = moment + TICK * len(touched)
        db.conn.executemany(
            "UPDATE snapshots SET last_used = ? WHERE key = ?",
            [(moment + TICK * number, key) for number, key in enumerate(touched)],
        )
        return self._latest
