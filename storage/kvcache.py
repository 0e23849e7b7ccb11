"""kvcache.db: KV snapshots, so that a document read once need not be read again.

Disposable: text is the record, this is a cache. Whatever happens to the file (bit flips, truncation, deletion), the
store answers as if the row were not there, removes what is damaged or starts the file anew, and writes a line to the
log. Only writing can raise: DiskFull when there is no room, FolderNotWritable, or another StorageError; the store
stays usable.
Rows are content-addressed: their key says all that shaped them, so an equal key is the same row.
"""

import json
import logging
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from sqlite_utils import Database

from storage.base import checked_hex64
from storage.errors import StorageError
from storage.eviction import Resident, choose_victims
from storage.rows import SnapshotStats
from storage.snapshot_file import SnapshotFile, Unsound
from storage.snapshot_schema import SnapshotRow, checksum, pack_ids, unpack_ids

log = logging.getLogger(__name__)

SNAPSHOT_NAME = "kvcache.db"
COMMIT_BYTES = 64 * 1024 * 1024
MOST_PAYLOAD_BYTES = 256 * 1024 * 1024
MOST_QUOTA_BYTES = 200 * 10**9
FREE_PAGES_KEPT = 1024  # 64 MB of freed pages wait for re-use before the file is made smaller
_IN_KEYS = "IN (SELECT value FROM json_each(?))"
_WITH_PREFIX = f"""
    WITH RECURSIVE prefix (key, parent) AS (
        SELECT key, parent FROM snapshots WHERE key {_IN_KEYS}
        UNION SELECT snapshots.key, snapshots.parent FROM snapshots JOIN prefix ON snapshots.key = prefix.parent
    )
"""


class SnapshotLike(Protocol):
    """What `put` takes. `kind` ("block" or "checkpoint") may be missing: then the class's name tells."""

    @property
    def key(self) -> str: ...
    @property
    def parent(self) -> str: ...
    @property
    def first_token(self) -> int: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def payload(self) -> bytes: ...


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
        self._touched: dict[str, float] = {}
        self._too_large: set[str] = set()  # owners whose snapshots were cut short, said once each

    @classmethod
    def open(cls, folder: Path, quota_bytes: int) -> "SnapshotStore":
        """Opens or creates the store. Raises FolderNotWritable or DiskFull if there can be none."""
        if quota_bytes < 0:
            raise ValueError(f"quota_bytes: got {quota_bytes}, need 0 or more")
        return cls(SnapshotFile(Path(folder) / SNAPSHOT_NAME), quota_bytes)

    def close(self) -> None:
        try:
            self._file.write(lambda db: None if not self._touched else self._store_times(db))
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
        query = f"SELECT key FROM snapshots WHERE kind = 'block' AND key {_IN_KEYS}"
        rows = self._file.read(lambda db: db.execute(query, (_keys(keys),)).fetchall(), [])
        found = {row[0] for row in rows}
        for position, key in enumerate(keys):
            if key not in found:
                return position
        return len(keys)

    def is_stored(self, keys: Sequence[str]) -> bool:
        """Whether there are rows, blocks or checkpoints, for all of `keys`."""
        query = f"SELECT key FROM snapshots WHERE key {_IN_KEYS}"
        rows = self._file.read(lambda db: db.execute(query, (_keys(keys),)).fetchall(), [])
        return {row[0] for row in rows} >= set(keys)

    def checkpoints(self, parents: Sequence[str]) -> list[tuple[str, str, tuple[int, ...]]]:
        """(key, parent, token ids) of every checkpoint whose parent is one of `parents`, the latest position first."""
        query = f"""
            SELECT key, parent, token_ids FROM snapshots WHERE kind = 'checkpoint' AND parent {_IN_KEYS}
            ORDER BY first_token + length(token_ids) / 4 DESC, id
        """
        rows = self._file.read(lambda db: db.execute(query, (_keys(parents),)).fetchall(), [])
        return [(key, parent, unpack_ids(ids)) for key, parent, ids in rows if _is_ids(ids)]

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
        query = """
            SELECT kind, parent, first_token, token_ids, checksum, payload
            FROM snapshots LEFT JOIN payloads ON payloads.snapshot_id = snapshots.id WHERE key = ?
        """
        found = self._file.read(lambda db: db.execute(query, (key,)).fetchone(), None)
        if found is None:
            return None
        kind, parent, first_token, ids, stored, payload = found
        sound = _is_ids(ids) and isinstance(payload, bytes)
        if not sound or checksum(kind, key, parent, first_token, ids, payload) != stored:
            log.warning("snapshot %s is damaged and is removed; its tokens will be computed again", key)
            self._remove(key)
            return None
        self._touched[key] = time.time()
        return SnapshotRow(kind, key, parent, first_token, unpack_ids(ids), payload)

    # Writing

    def put(self, owner: str, fingerprint: str, rows: Iterable[SnapshotLike]) -> int:
        """Stores rows (each after its parent) for `owner`, evicting the least recently used ones of others if needed.

        Returns the bytes newly written; a row that is stored already, and every stored ancestor, only gets one more
        owner. If the rows alone exceed the quota the leading ones are stored and the rest is left out, also when they
        come in several calls: a row whose parent is not stored ends the put (one at token 0 has none). Raises DiskFull,
        FolderNotWritable or another StorageError; commits (at most 64 MB, or one row) that were made before stay.
        """
        _need_owner(owner)
        own: set[str] = set()
        written = 0
        for batch in _batches(rows):
            own.update(key for row in batch for key in (row.key, row.parent))
            done, stored = self._file.write(lambda db, batch=batch: self._put_batch(db, owner, fingerprint, batch, own))
            written += done
            if stored < len(batch):
                break
        return written

    def claim(self, owner: str, keys: Sequence[str]) -> None:
        """Makes `owner` one more owner of stored rows and their ancestors, without writing their payloads again."""
        _need_owner(owner)

        def work(db: Database) -> None:
            with db.atomic():
                _add_owner(db, owner, keys)

        self._file.write(work)

    def forget(self, owner: str) -> None:
        """Removes every row that nobody else owns, so that its bytes are gone from the file."""

        def work(db: Database) -> None:
            db.conn.execute("PRAGMA secure_delete = ON").fetchall()
            try:
                with db.atomic():
                    db.execute("DELETE FROM pinned_owners WHERE owner = ?", (owner,))
                    db.execute("DELETE FROM owners WHERE owner = ?", (owner,))
                    db.execute("DELETE FROM snapshots WHERE key NOT IN (SELECT key FROM owners)")
                _shrink(db, keep_pages=0)
            finally:
                db.conn.execute("PRAGMA secure_delete = FAST").fetchall()

        self._file.write(work)
        self._too_large.discard(owner)

    def pin(self, owner: str, pinned: bool = True) -> None:
        """Rows of a pinned owner are never evicted."""
        _need_owner(owner)
        sql = "INSERT OR IGNORE INTO pinned_owners (owner) VALUES (?)"
        if not pinned:
            sql = "DELETE FROM pinned_owners WHERE owner = ?"
        self._file.write(lambda db: db.execute(sql, (owner,)))

    def prune(self, max_bytes: int) -> int:
        """Evicts least recently used rows until at most `max_bytes` are held; returns the bytes removed."""

        def work(db: Database) -> int:
            with db.atomic():
                self._store_times(db)
                freed = _evict(db, _held(db) - max_bytes, protected=())
            _shrink(db, keep_pages=0)
            return freed

        return self._file.write(work)

    def owners(self) -> dict[str, int]:
        """Bytes that each owner's rows hold; rows with several owners count for each."""
        query = """
            SELECT owner, sum(CAST(bytes AS INTEGER)) FROM owners JOIN snapshots USING (key)
            GROUP BY owner ORDER BY owner
        """
        return self._file.read(lambda db: dict(db.execute(query).fetchall()), {})

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
        self, db: Database, owner: str, fingerprint: str, batch: Sequence[SnapshotRow], own: Collection[str]
    ) -> tuple[int, int]:
        """(bytes written, rows of the batch that are stored now)."""
        moment = time.time()
        with db.atomic():
            self._store_times(db)
            batch, known = _linked(db, fingerprint, batch)
            own = {*own, *_ancestors(db, [row.key for row in batch] + [row.parent for row in batch])}
            held, new = _held(db), sum(_row_bytes(row) for row in batch if row.key not in known)
            held -= _evict(db, held + new - self.quota_bytes, protected=own)
            written = stored = 0
            for row in batch:
                if row.key not in known:
                    size = _row_bytes(row)
                    if held + written + size > self.quota_bytes:
                        self._say_too_large(owner)
                        break
                    _insert(db, fingerprint, row, size, moment)
                    known.add(row.key)
                    written += size
                stored += 1
            keys = [row.key for row in batch[:stored]]
            _add_owner(db, owner, keys)
            db.execute(f"UPDATE snapshots SET last_used = ? WHERE key {_IN_KEYS}", (moment, _keys(keys)))
        _shrink(db, keep_pages=FREE_PAGES_KEPT)
        return written, stored

    def _say_too_large(self, owner: str) -> None:
        if owner not in self._too_large:
            self._too_large.add(owner)
            log.warning("the snapshot of %s does not fit into the quota of %d bytes", owner, self.quota_bytes)

    def _store_times(self, db: Database) -> None:
        touched, self._touched = self._touched, {}
        db.conn.executemany(
            "UPDATE snapshots SET last_used = max(last_used, ?) WHERE key = ?",
            [(moment, key) for key, moment in touched.items()],
        )


def _batches(rows: Iterable[SnapshotLike]) -> Iterator[list[SnapshotRow]]:
    batch: list[SnapshotRow] = []
    total = 0
    for row in rows:
        checked = _checked(row)
        size = _row_bytes(checked)
        if batch and total + size > COMMIT_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(checked)
        total += size
    if batch:
        yield batch


def _checked(row: SnapshotLike) -> SnapshotRow:
    kind = getattr(row, "kind", None) or ("checkpoint" if "checkpoint" in type(row).__name__.lower() else "block")
    if kind not in ("block", "checkpoint"):
        raise ValueError(f"kind: got {kind!r}, need 'block' or 'checkpoint'")
    payload = bytes(row.payload)
    if len(payload) > MOST_PAYLOAD_BYTES:
        raise ValueError(f"payload: got {len(payload)} bytes, need at most {MOST_PAYLOAD_BYTES}")
    if row.first_token < 0:
        raise ValueError(f"first_token: got {row.first_token}, need 0 or more")
    key, parent = checked_hex64("key", row.key), checked_hex64("parent", row.parent)
    return SnapshotRow(kind, key, parent, int(row.first_token), tuple(row.token_ids), payload)


def _insert(db: Database, fingerprint: str, row: SnapshotRow, size: int, moment: float) -> None:
    ids = pack_ids(row.token_ids)
    digest = checksum(row.kind, row.key, row.parent, row.first_token, ids, row.payload)
    cursor = db.execute(
        "INSERT INTO snapshots (key, kind, parent, fingerprint, first_token, token_ids, checksum, created, last_used,"
        " bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (row.key, row.kind, row.parent, fingerprint, row.first_token, ids, digest, moment, moment, size),
    )
    db.execute("INSERT INTO payloads (snapshot_id, payload) VALUES (?, ?)", (cursor.lastrowid, row.payload))


def _linked(db: Database, fingerprint: str, batch: Sequence[SnapshotRow]) -> tuple[Sequence[SnapshotRow], set[str]]:
    """(the leading rows whose ancestors are stored or come before them, the keys of the batch that are stored)."""
    query = f"SELECT key FROM snapshots WHERE key {_IN_KEYS}"
    stored = {row[0] for row in db.execute(query, (_keys([key for row in batch for key in (row.key, row.parent)]),))}
    known = {row.key for row in batch} & stored
    reachable = {fingerprint} | stored
    for position, row in enumerate(batch):
        if row.first_token and row.parent not in reachable:
            return batch[:position], known
        reachable.add(row.key)
    return batch, known


def _ancestors(db: Database, keys: Sequence[str]) -> set[str]:
    """The stored rows among `keys` and everything they build on."""
    return {row[0] for row in db.execute(f"{_WITH_PREFIX} SELECT key FROM prefix", (_keys(keys),))}


def _add_owner(db: Database, owner: str, keys: Sequence[str]) -> None:
    """Owners own whole prefixes: a row is of no use without its ancestors."""
    query = f"INSERT OR IGNORE INTO owners (owner, key) {_WITH_PREFIX} SELECT ?, key FROM prefix"
    db.execute(query, (_keys(keys), owner))


def _evict(db: Database, need_bytes: int, protected: Collection[str]) -> int:
    if need_bytes <= 0:
        return 0
    query = "SELECT key, parent, CAST(last_used AS REAL), CAST(bytes AS INTEGER) FROM snapshots"
    residents = [Resident(*row) for row in db.execute(query)]
    pinned = db.execute("SELECT DISTINCT key FROM owners JOIN pinned_owners USING (owner)").fetchall()
    victims = choose_victims(residents, need_bytes, {*protected, *(row[0] for row in pinned)})
    db.conn.executemany("DELETE FROM snapshots WHERE key = ?", [(victim.key,) for victim in victims])
    return sum(victim.bytes for victim in victims)


def _shrink(db: Database, keep_pages: int) -> None:
    """Gives freed pages back to the disk, down to `keep_pages` of them; with 0 the log is emptied too."""
    free = db.conn.execute("PRAGMA freelist_count").fetchone()[0]
    if free > keep_pages:
        db.conn.executescript(f"PRAGMA incremental_vacuum({free - keep_pages})")  # execute() would stop after one page
    if keep_pages == 0:
        db.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _held(db: Database) -> int:
    return db.execute("SELECT coalesce(sum(CAST(bytes AS INTEGER)), 0) FROM snapshots").fetchone()[0]


def _row_bytes(row: SnapshotRow) -> int:
    return len(row.payload) + 4 * len(row.token_ids)


def _keys(keys: Sequence[str]) -> str:
    for key in keys:
        checked_hex64("key", key)
    return json.dumps(list(keys))


def _is_ids(blob: object) -> bool:
    return isinstance(blob, bytes) and len(blob) % 4 == 0


def _need_owner(owner: str) -> None:
    if not owner:
        raise ValueError("owner: got an empty name, need the conversation's id")
