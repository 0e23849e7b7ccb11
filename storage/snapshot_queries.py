"""Rows of kvcache.db as SQL sees them: checked, linked to their ancestors, put in, found, owned, evicted."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from sqlite_utils import Database

from storage.base import checked_hex64
from storage.eviction import Resident, choose_victims
from storage.snapshot_schema import SnapshotRow, checksum, pack_ids

COMMIT_BYTES = 64 * 1024 * 1024
MOST_PAYLOAD_BYTES = 256 * 1024 * 1024
IN_KEYS = "IN (SELECT value FROM json_each(?))"
WITH_PREFIX = f"""
    WITH RECURSIVE prefix (key, parent) AS (
        SELECT key, parent FROM snapshots WHERE key {IN_KEYS}
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


def batches(rows: Iterable[SnapshotLike]) -> Iterator[list[SnapshotRow]]:
    batch: list[SnapshotRow] = []
    total = 0
    for row in rows:
        taken = checked(row)
        size = row_bytes(taken)
        if batch and total + size > COMMIT_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(taken)
        total += size
    if batch:
        yield batch


def checked(row: SnapshotLike) -> SnapshotRow:
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


def fetch(db: Database, key: str) -> tuple | None:
    """(kind, parent, first token, token ids, checksum, payload or None); None if there is no such row.

    The payload is read as an open blob: half of the processor time of a column, and Python's lock is free meanwhile.
    """
    query = """
        SELECT kind, parent, first_token, token_ids, checksum, snapshot_id, typeof(payload)
        FROM snapshots LEFT JOIN payloads ON payloads.snapshot_id = snapshots.id WHERE key = ?
    """
    db.execute("BEGIN")  # both looks see the same state
    try:
        found = db.execute(query, (key,)).fetchone()
        if found is None:
            return None
        *columns, row, kind = found
        if kind != "blob":
            return (*columns, None)
        with db.conn.blobopen("payloads", "payload", row, readonly=True) as blob:
            return (*columns, blob.read())
    finally:
        db.conn.rollback()


def insert(db: Database, fingerprint: str, row: SnapshotRow, size: int, moment: float) -> None:
    ids = pack_ids(row.token_ids)
    digest = checksum(row.kind, row.key, row.parent, row.first_token, ids, row.payload)
    cursor = db.execute(
        "INSERT INTO snapshots (key, kind, parent, fingerprint, first_token, token_ids, checksum, created, last_used,"
        " bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (row.key, row.kind, row.parent, fingerprint, row.first_token, ids, digest, moment, moment, size),
    )
    db.execute("INSERT INTO payloads (snapshot_id, payload) VALUES (?, ?)", (cursor.lastrowid, row.payload))


def linked(db: Database, fingerprint: str, batch: Sequence[SnapshotRow]) -> tuple[Sequence[SnapshotRow], set[str]]:
    """(the leading rows whose ancestors are stored or come before them, the keys of the batch that are stored)."""
    query = f"SELECT key FROM snapshots WHERE key {IN_KEYS}"
    stored = {
        row[0] for row in db.execute(query, (keys_json([key for row in batch for key in (row.key, row.parent)]),))
    }
    known = {row.key for row in batch} & stored
    reachable = {fingerprint} | stored
    for position, row in enumerate(batch):
        if row.first_token and row.parent not in reachable:
            return batch[:position], known
        reachable.add(row.key)
    return batch, known


def ancestors(db: Database, keys: Sequence[str]) -> set[str]:
    """The stored rows among `keys` and everything they build on."""
    return {row[0] for row in db.execute(f"{WITH_PREFIX} SELECT key FROM prefix", (keys_json(keys),))}


def add_owner(db: Database, owner: str, keys: Sequence[str]) -> None:
    """Owners own whole prefixes: a row is of no use without its ancestors."""
    query = f"INSERT OR IGNORE INTO owners (owner, key) {WITH_PREFIX} SELECT ?, key FROM prefix"
    db.execute(query, (keys_json(keys), owner))


def mark_interim(db: Database, owner: str, keys: Sequence[str]) -> None:
    """`keys`, new rows in their order, stand only until a later one does: what stood so far goes, and all but the last
    of them."""
    drop_interim(db, owner)
    db.conn.executemany("INSERT OR IGNORE INTO interim (owner, key) VALUES (?, ?)", [(owner, key) for key in keys[-1:]])
    give_up(db, owner, keys[:-1])


def keep_interim(db: Database, owner: str, keys: Sequence[str]) -> None:
    """Those of `keys` that were to stand for a while only are there to stay."""
    db.execute(f"DELETE FROM interim WHERE owner = ? AND key {IN_KEYS}", (owner, keys_json(keys)))


def interim_of(db: Database, owner: str) -> set[str]:
    return {row[0] for row in db.execute("SELECT key FROM interim WHERE owner = ?", (owner,))}


def drop_interim(db: Database, owner: str) -> None:
    keys = sorted(interim_of(db, owner))
    db.execute("DELETE FROM interim WHERE owner = ?", (owner,))
    give_up(db, owner, keys)


def give_up(db: Database, owner: str, keys: Sequence[str]) -> None:
    """Rows that `owner` does not need; they are removed unless others own them or build on them."""
    if not keys:
        return
    db.execute(f"DELETE FROM owners WHERE owner = ? AND key {IN_KEYS}", (owner, keys_json(keys)))
    db.execute(
        f"DELETE FROM snapshots WHERE key {IN_KEYS} AND key NOT IN (SELECT key FROM owners)"
        " AND key NOT IN (SELECT parent FROM snapshots)",
        (keys_json(keys),),
    )


def evict(db: Database, need_bytes: int, protected: Collection[str]) -> int:
    if need_bytes <= 0:
        return 0
    query = "SELECT key, parent, CAST(last_used AS REAL), CAST(bytes AS INTEGER) FROM snapshots"
    residents = [Resident(*row) for row in db.execute(query)]
    pinned = db.execute("SELECT DISTINCT key FROM owners JOIN pinned_owners USING (owner)").fetchall()
    victims = choose_victims(residents, need_bytes, {*protected, *(row[0] for row in pinned)})
    db.conn.executemany("DELETE FROM snapshots WHERE key = ?", [(victim.key,) for victim in victims])
    return sum(victim.bytes for victim in victims)


def shrink(db: Database, keep_pages: int) -> None:
    """Gives freed pages back to the disk, down to `keep_pages` of them; with 0 the log is emptied too."""
    free = db.conn.execute("PRAGMA freelist_count").fetchone()[0]
    if free > keep_pages:
        db.conn.executescript(f"PRAGMA incremental_vacuum({free - keep_pages})")  # execute() would stop after one page
    if keep_pages == 0:
        db.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def held(db: Database) -> int:
    return db.execute("SELECT coalesce(sum(CAST(bytes AS INTEGER)), 0) FROM snapshots").fetchone()[0]


def row_bytes(row: SnapshotRow) -> int:
    return len(row.payload) + 4 * len(row.token_ids)


def keys_json(keys: Sequence[str]) -> str:
    for key in keys:
        checked_hex64("key", key)
    return json.dumps(list(keys))


def is_ids(blob: object) -> bool:
    return isinstance(blob, bytes) and len(blob) % 4 == 0


def need_owner(owner: str) -> None:
    if not owner:
        raise ValueError("owner: got an empty name, need the conversation's id")
