"""A database file that is deleted or replaced while its connection is open.

On most systems the open connection goes on working on a file without a name: everything written from then on would be
gone at the end of the app, though it had been promised to stay.
"""

import os
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from sqlite_utils import Database

from storage.errors import FolderNotWritable, StorageError

SIDE_FILES = ("-wal", "-shm", "-journal")
State = Literal["same", "deleted", "replaced", "log deleted"]


def identity(path: Path) -> tuple[int, int] | None:
    """Device and number of the file that has this name now; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class FileWatch:
    """The files of one open database, as they were when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._main = identity(path)
        self._log = identity(self._log_path)
        self._aside: Path | None = None

    @property
    def _log_path(self) -> Path:
        return Path(f"{self.path}-wal")

    def look(self) -> State:
        main, log = identity(self.path), identity(self._log_path)
        if main != self._main:
            return "deleted" if main is None else "replaced"
        if self._log is None:
            self._log = log  # SQLite makes it when it is first needed
        return "same" if log == self._log else "log deleted"

    def put_back(self, database: Database) -> None:
        """Everything that the open connection holds, as a file under the old name. The connection must be closed next.

        Raises sqlite3.Error or FolderNotWritable.
        """
        part = self.path.with_name(f"{self.path.name}.restoring")
        self._copy(database, part)
        try:
            for suffix in SIDE_FILES:  # of the file that has gone: beside a new one they would be taken for its own
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            os.replace(part, self.path)
        except OSError as error:
            raise self._not_writable(error) from error

    def put_aside(self, database: Database) -> StorageError:
        """Another file has the name: keeps what the connection holds beside it, once -> the error that says so."""
        if self._aside is None:
            now = datetime.now(UTC)
            aside = self.path.with_name(f"{self.path.name}.replaced-{now:%Y%m%d-%H%M%S-%f}")
            self._copy(database, aside)
            self._aside = aside
            self._remove_log()
        return StorageError(
            f"{self.path.name} was replaced by another file while the app was running.",
            f"Start the app again to use that one; everything up to now is kept as {self._aside.name}.",
        )

    def _remove_log(self) -> None:
        """Beside the new file our log would be taken for its own, and written into it."""
        try:
            if self._log is not None and identity(self._log_path) == self._log:
                self._log_path.unlink()
                Path(f"{self.path}-shm").unlink(missing_ok=True)
        except OSError as error:
            raise self._not_writable(error) from error

    def _copy(self, database: Database, target: Path) -> None:
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            with closing(sqlite3.connect(target)) as copy:
                database.conn.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE").fetchall()
            handle = os.open(target, os.O_RDWR)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except BaseException as error:
            for leftover in (target, *(Path(f"{target}{suffix}") for suffix in SIDE_FILES)):
                with suppress(OSError):
                    leftover.unlink()
            if isinstance(error, OSError):
                raise self._not_writable(error) from error
            raise

    def _not_writable(self, error: OSError) -> FolderNotWritable:
        return FolderNotWritable(
            f"{self.path.name} was deleted or replaced, and what the app holds cannot be written: {error.strerror}.",
            f"Make {self.path.parent} writable; until the app ends nothing is lost.",
        )
