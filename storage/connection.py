"""SQLite connections with the settings that both database files need.

SQLite before 3.51.3 can lose or corrupt WAL commits when two connections of a file write or checkpoint at the same
time. So each file has exactly one writing connection per process, shared by all threads behind a lock (`Writer`), and
any other connection is read-only, which never checkpoints. Processes are kept apart by `DataFolderLock`.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sqlite_utils import Database

from storage.errors import translate

BUSY_TIMEOUT_S = 10.0
SHARED_PRAGMAS = {"foreign_keys": "ON", "trusted_schema": "OFF", "temp_store": "MEMORY"}


def connect(path: Path, pragmas: Mapping[str, str | int], *, read_only: bool = False) -> Database:
    """Opens `path` (creates it unless `read_only`) and applies `pragmas` in their order, then the shared ones."""
    uri = path.resolve().as_uri() + ("?mode=ro" if read_only else "?mode=rwc")
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        database = Database(connection, execute_plugins=False)
        for name, value in {**pragmas, **SHARED_PRAGMAS}.items():
            connection.execute(f"PRAGMA {name} = {value}").fetchall()
    except BaseException:
        connection.close()
        raise
    return database


def pragma(database: Database, name: str) -> str | int:
    """The value of a pragma that answers with a single value."""
    return database.conn.execute(f"PRAGMA {name}").fetchone()[0]


class Writer:
    """The one writing connection of a file. Any thread may use it; uses never overlap and may nest in one thread."""

    def __init__(self, path: Path, pragmas: Mapping[str, str | int]) -> None:
        self.path = path
        self.lock = threading.RLock()
        try:
            self._database = connect(path, pragmas)
        except sqlite3.Error as error:
            raise translate(error, path) from error

    @contextmanager
    def use(self) -> Iterator[Database]:
        """The connection, for reads or single statements. SQLite's errors come out as StorageError."""
        with self.lock:
            try:
                yield self._database
            except sqlite3.Error as error:
                raise translate(error, self.path) from error
            except (UnicodeDecodeError, json.JSONDecodeError) as error:
                raise translate(sqlite3.OperationalError("Could not decode to UTF-8"), self.path) from error

    @contextmanager
    def transaction(self) -> Iterator[Database]:
        """The connection inside a transaction: all of the block is stored, or (on any error) nothing."""
        with self.use() as database, database.atomic():
            yield database

    def close(self) -> None:
        with self.lock:
            self._database.close()
