"""The tables of kvcache.db and the checksum of its rows.

The file is disposable, so there are no migrations: a file of another version is thrown away. Payloads stand in a
table of their own, because SQLite rewrites a whole row (4 MB) when a small column such as last_used changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from sqlite_utils import Database

SCHEMA_VERSION = 2
INTERIM = """
    CREATE TABLE IF NOT EXISTS interim (
        owner TEXT NOT NULL,
        key TEXT NOT NULL REFERENCES snapshots (key) ON DELETE CASCADE,
        PRIMARY KEY (owner, key)
    ) STRICT, WITHOUT ROWID;
"""
"""Checkpoints of reads under way: each goes when a later one of its owner stands, and when the read has ended."""


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """One block or checkpoint as it is stored. `parent` is the key of the row before it, or the root's fingerprint."""

    kind: str
    key: str
    parent: str
    first_token: int
    token_ids: tuple[int, ...]
    payload: bytes


def create_tables(db: Database) -> None:
    with db.atomic():
        db.executescript(f"""
            CREATE TABLE snapshots (
                id INTEGER PRIMARY KEY,
                key TEXT NOT NULL UNIQUE,
                kind TEXT NOT NULL CHECK (kind IN ('block', 'checkpoint')),
                parent TEXT NOT NULL,
                fingerprint TEXT NOT NULL,
                first_token INTEGER NOT NULL,
                token_ids BLOB NOT NULL,
                checksum BLOB NOT NULL,
                created REAL NOT NULL,
                last_used REAL NOT NULL,
                bytes INTEGER NOT NULL
            ) STRICT;
            CREATE INDEX snapshots_by_parent ON snapshots (parent, kind);
            CREATE TABLE payloads (
                snapshot_id INTEGER PRIMARY KEY REFERENCES snapshots (id) ON DELETE CASCADE,
                payload BLOB NOT NULL
            ) STRICT;
            CREATE TABLE owners (
                owner TEXT NOT NULL,
                key TEXT NOT NULL REFERENCES snapshots (key) ON DELETE CASCADE,
                PRIMARY KEY (owner, key)
            ) STRICT, WITHOUT ROWID;
            CREATE INDEX owners_by_key ON owners (key);
            CREATE TABLE pinned_owners (owner TEXT PRIMARY KEY) STRICT;
            {INTERIM}
            PRAGMA user_version = {SCHEMA_VERSION};
        """)


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit numbers."""
    return np.asarray(token_ids, dtype="<u4").tobytes()


def unpack_ids(blob: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(blob, dtype="<u4").tolist())


def checksum(kind: str, key: str, parent: str, first_token: int, token_ids: bytes, payload: bytes) -> bytes:
    """128 bits of XXH3 over everything that a restore relies on; the lengths are part of it, so parts cannot shift.

    It finds damage. Whoever can write to the file could make any checksum fit, a cryptographic one too.
    """
    header = "\n".join((kind, key, parent, str(first_token), str(len(token_ids)), str(len(payload))))
    digest = xxhash.xxh3_128(header.encode())
    digest.update(token_ids)
    digest.update(payload)
    return digest.digest()
