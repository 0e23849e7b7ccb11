"""What storage raises: every error carries one sentence for the user and one hint about what to do."""

import sqlite3
from pathlib import Path


class StorageError(Exception):
    """Something about the stored files went wrong; `message` and `hint` are ready to show to a user."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class NotFound(StorageError):
    """No conversation, message or document has this id."""


class DataFolderBusy(StorageError):
    """Another running app holds the data folder. `address` is where it serves its page ("" if it has none).

    `starting`: it will have one soon.
    """

    def __init__(self, message: str, hint: str, address: str, pid: int | None, starting: bool = False) -> None:
        super().__init__(message, hint)
        self.address = address
        self.pid = pid
        self.starting = starting


class DatabaseDamaged(StorageError):
    """library.db cannot be read. `kept` is the damaged file, `backup` the newest backup that passed its check."""

    def __init__(self, message: str, hint: str, kept: Path | None = None, backup: Path | None = None) -> None:
        super().__init__(message, hint)
        self.kept = kept
        self.backup = backup


class DatabaseTooNew(StorageError):
    """library.db was written by a newer version of the app than this one."""


class DiskFull(StorageError):
    """There was no room to write; what was stored before is still there."""


class FolderNotWritable(StorageError):
    """The data folder, or a file in it, cannot be written."""


_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_FULL_EXTENDED = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
_NOT_WRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}


def is_damage(error: sqlite3.Error) -> bool:
    """True if SQLite says that the file's contents are not a sound database."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return "Could not decode to UTF-8" in str(error)
    return code & 0xFF in _DAMAGED


def translate(error: sqlite3.Error, path: Path) -> StorageError:
    """The StorageError that tells a user what this SQLite error means for the file at `path`."""
    code = getattr(error, "sqlite_errorcode", 0) or 0
    if is_damage(error):
        return DatabaseDamaged(f"{path.name} is damaged.", "Start the app again to restore a backup.")
    if code & 0xFF == sqlite3.SQLITE_FULL or code in _FULL_EXTENDED:
        return DiskFull(f"There is no room to write {path.name}.", f"Free some space on the disk of {path.parent}.")
    if code & 0xFF in _NOT_WRITABLE:
        return FolderNotWritable(f"{path.name} cannot be written.", f"Check the permissions of {path.parent}.")
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(f"{path.name} is in use by another program.", "Close the other program and try again.")
    if "closed database" in str(error):
        return StorageError(f"{path.name} has been closed.", "Start the app again.")
    return StorageError(f"{path.name} could not be used: {error}.", "Start the app again.")
