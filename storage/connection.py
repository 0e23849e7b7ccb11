"""SQLite connections with the settings that both database files need.

SQLite before 3.51.3 can lose or corrupt WAL commits when two connections of a file write or checkpoint at the same
time. So each file has exactly one writing connection per process, shared by all threads behind a lock (`Writer`), and
any other connection is read-only, which never checkpoints. Processes are kept apart by `DataFolderLock`.
"""

import json
import logging
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sqlite_utils import Database

from storage.errors import StorageError, translate
from storage.file_watch import FileWatch

log = logging.getLogger(__name__)

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
    """The one writing connection of a file. Any thread may use it; uses never overlap and may nest in one thread.

    The file may be deleted under it: the connection still holds all of it then, and puts it back before the next change
    and when it is closed. A file that somebody has put in its place is not touched.
    """

    def __init__(self, path: Path, pragmas: Mapping[str, str | int]) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._pragmas = pragmas
        self._uses = 0
        self._open = True
        self._lost = False  # the connection was closed to be opened anew, which failed
        try:
            self._database = connect(path, pragmas)
        except sqlite3.Error as error:
            raise translate(error, path) from error
        self._files = FileWatch(path)

    @contextmanager
    def use(self, *, changes: bool = False) -> Iterator[Database]:
        """The connection, for reads or, with `changes`, single statements. SQLite's errors come out as StorageError."""
        with self.lock:
            if self._lost and self._open:
                self._open_anew()
            if changes and not self._uses:
                self._keep_file()
            self._uses += 1
            try:
                yield self._database
            except sqlite3.Error as error:
                raise translate(error, self.path) from error
            except (UnicodeDecodeError, json.JSONDecodeError) as error:
                raise translate(sqlite3.OperationalError("Could not decode to UTF-8"), self.path) from error
            finally:
                self._uses -= 1

    @contextmanager
    def transaction(self) -> Iterator[Database]:
        """The connection inside a transaction: all of the block is stored, or (on any error) nothing."""
        with self.use(changes=True) as database, database.atomic():
            yield database

    def close(self) -> None:
        with self.lock:
            if self._open:
                self._open = False
                if self._lost:  # what it held stands in the file already
                    return
                try:
                    self._keep_file()
                except StorageError as error:
                    log.error("%s", error)
            self._database.close()

    def _keep_file(self) -> None:
        """Sees to it that what is written ends up in the file that has the name."""
        state = self._files.look()
        if state == "same":
            return
        try:
            if state == "replaced":
                raise self._files.put_aside(self._database)
            log.warning("%s: %s while it was in use; it is put back", self.path.name, state)
            if state == "deleted":
                self._files.put_back(self._database)
            else:
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._database.close()
            self._lost = True
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
        self._open_anew()

    def _open_anew(self) -> None:
        try:
            self._database = connect(self.path, self._pragmas)
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
        self._lost = False
        self._files = FileWatch(self.path)
