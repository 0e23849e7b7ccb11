"""kvcache.db as a file that may break at any time: opens it, hands out connections, restarts it empty."""

import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlite_utils import Database

from storage.connection import connect, pragma
from storage.errors import FolderNotWritable, StorageError, translate
from storage.snapshot_schema import INTERIM, SCHEMA_VERSION, create_tables

log = logging.getLogger(__name__)

SIDE_FILES = ("-wal", "-shm", "-journal")
WRITER_PRAGMAS = {
    "page_size": 65536,
    "auto_vacuum": "INCREMENTAL",
    "journal_mode": "WAL",
    "synchronous": "NORMAL",
    "secure_delete": "FAST",  # no leftovers inside pages in use; freed pages are given back by `forget`
    "journal_size_limit": 64 * 1024 * 1024,
    "cache_size": -16_384,
}
READER_PRAGMAS = {"query_only": "ON", "cache_size": -1_024}  # rows are read once: a larger one leaves the processor's

# What the machine can do to a sound file. Everything else that SQLite complains about means that the file is not sound.
_ENVIRONMENT = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
}
_UNSOUND_READS = {sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}

_NO_FILE = (-1, -1)  # an identity that nothing on disk has

Result = TypeVar("Result")


class Unsound(Exception):
    """A check found that the file contradicts itself."""


class SnapshotFile:
    """One writing connection, any number of reading ones. Opening raises FolderNotWritable or another StorageError.

    `lock` is held as long as a write lasts, which may be seconds on a slow disk; `_readers_lock` for a moment only, so
    that reading never waits for writing. Where both are needed `lock` is taken first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._readers_lock = threading.Lock()
        self._closed = False
        self._generation = 0  # odd while the file is being started anew
        self._idle_readers: list[Database] = []
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise FolderNotWritable(
                f"{path.parent} cannot be made: {error.strerror}.", "Use another folder."
            ) from error
        try:
            self._writer = self._open()
        except (sqlite3.Error, Unsound) as error:
            if isinstance(error, sqlite3.Error) and self._is_environment(error):
                raise translate(error, path) from error
            self._delete(str(error))
            self._writer = self._reopen()
        self._identity: tuple[int, int] | None = self._file_identity()

    def read(self, work: Callable[[Database], Result], default: Result) -> Result:
        """`work` on a reading connection, in parallel to all others; `default` if the file cannot be read."""
        reader, generation = None, self._generation
        try:
            if self._file_identity() != self._identity:  # what it held would seem to be stored
                self._replace_moved()
            reader, generation = self._take_reader()
            return work(reader)
        except (sqlite3.Error, Unsound) as error:
            if reader is not None:
                reader.close()
                reader = None
            self._after_failed_read(error, generation)
            return default
        finally:
            if reader is not None:
                self._give_reader(reader, generation)

    def write(self, work: Callable[[Database], Result]) -> Result:
        """`work` on the writing connection, alone. If the file turns out damaged it runs again on an empty one."""
        with self.lock:
            self._need_open()
            if self._file_identity() != self._identity:
                self._restart("it was deleted or replaced")
            try:
                return self._attempt(work)
            except Unsound as error:
                self._restart(str(error))
            try:
                return self._attempt(work)
            except Unsound as error:
                raise StorageError(f"{self.path.name} cannot be used: {error}.", "Check the disk.") from error

    def restart(self, reason: str) -> None:
        """Throws the file away and starts an empty one."""
        with self.lock:
            self._need_open()
            self._restart(reason)

    def bytes_on_disk(self) -> int:
        files = (self.path, *(Path(f"{self.path}{suffix}") for suffix in SIDE_FILES))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        with self.lock:
            with self._readers_lock:
                if self._closed:
                    return
                self._closed = True
            self._close_connections()

    def _attempt(self, work: Callable[[Database], Result]) -> Result:
        try:
            return work(self._writer)
        except sqlite3.Error as error:
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError) or self._is_environment(error):
                raise translate(error, self.path) from error
            raise Unsound(str(error)) from error

    def _is_environment(self, error: Exception) -> bool:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None or code in _UNSOUND_READS or code & 0xFF not in _ENVIRONMENT:
            return False
        # A damaged header can make SQLite call a file read-only that the system lets us write.
        unwritable = code & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
        return not (unwritable and os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK))

    def _open(self) -> Database:
        writer = connect(self.path, WRITER_PRAGMAS)
        try:
            version = pragma(writer, "user_version")
            if version == 0 and not writer.table_names():
                create_tables(writer)
            elif version != SCHEMA_VERSION:
                raise Unsound(f"it has version {version}, this app uses {SCHEMA_VERSION}")
            elif "interim" not in writer.table_names():
                writer.executescript(INTERIM)
        except BaseException:
            writer.close()
            raise
        return writer

    def _reopen(self) -> Database:
        try:
            return self._open()
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    def _restart(self, reason: str) -> None:
        with self._readers_lock:
            self._generation += 1 + self._generation % 2  # stays odd if this fails and is tried again
        self._identity = _NO_FILE  # should this fail, the next write tries again
        self._close_connections()
        self._delete(reason)
        self._writer = self._reopen()
        self._identity = self._file_identity()
        with self._readers_lock:
            self._generation += 1

    def _delete(self, reason: str) -> None:
        log.warning("%s is started anew, snapshots will be computed again: %s", self.path.name, reason)
        try:
            for suffix in ("", *SIDE_FILES):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        except OSError as error:
            raise FolderNotWritable(
                f"{self.path.name} is damaged and cannot be removed: {error.strerror}.", f"Delete {self.path} yourself."
            ) from error

    def _replace_moved(self) -> None:
        with self.lock:
            if not self._closed and self._file_identity() != self._identity:
                try:
                    self._restart("it was deleted or replaced")
                except StorageError as problem:
                    log.warning("%s", problem)

    def _after_failed_read(self, error: Exception, generation: int) -> None:
        with self.lock:
            if self._closed or generation != self._generation:
                return  # somebody else has dealt with it
            moved = self._file_identity() != self._identity
            if self._is_environment(error) and not moved:
                log.warning("%s could not be read: %s", self.path.name, error)
                return
            try:
                self._restart("it was deleted or replaced" if moved else str(error))
            except StorageError as problem:
                log.warning("%s", problem)

    def _take_reader(self) -> tuple[Database, int]:
        with self._readers_lock:
            self._need_open()
            generation = self._generation
            if self._idle_readers:
                return self._idle_readers.pop(), generation
        return connect(self.path, READER_PRAGMAS, read_only=True), generation

    def _give_reader(self, reader: Database, generation: int) -> None:
        with self._readers_lock:
            if generation == self._generation and not self._closed:
                self._idle_readers.append(reader)
                return
        reader.close()

    def _close_connections(self) -> None:
        with self._readers_lock:
            idle, self._idle_readers = self._idle_readers, []
        for reader in idle:
            reader.close()
        self._writer.close()

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _need_open(self) -> None:
        if self._closed:
            raise StorageError(f"{self.path.name} has been closed.", "Start the app again.")
