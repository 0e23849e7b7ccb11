"""Backups of library.db: online copies in `backups/` beside it, and the way back from a damaged file.

A copy is made with SQLite's backup API into a temporary file, checked, flushed and renamed into place, so a file named
library-*.db is always a whole one. The newest KEEP of each kind (daily, before a migration) are kept.
"""

import logging
import os
import re
import sqlite3
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from storage.errors import DatabaseDamaged, StorageError, is_damage, translate
from storage.rows import Backup

log = logging.getLogger(__name__)

LIBRARY_NAME = "library.db"
BACKUP_FOLDER = "backups"
APPLICATION_ID = 0x556E6162  # "Unab": tells our files from other SQLite files
KEEP = 5
DAILY = "daily"
CHECK_SECONDS = 2.0
SMALLEST_DATABASE = 512  # bytes: the smallest page that SQLite knows
RESTORING_NAME = f"{LIBRARY_NAME}.restoring"  # what storage.file_watch puts back, until it has the name
_NAME = re.compile(r"library-(\d{8}-\d{6}-\d{6})-([a-z0-9_-]+)\.db")
_SIDE_FILES = ("-wal", "-shm", "-journal")


def list_backups(folder: Path) -> list[Backup]:
    """The backups of the library in `folder`, newest first. A date in the future, of a clock that was wrong, says
    nothing: such backups come last."""
    found, now = [], time.time()
    for path in (folder / BACKUP_FOLDER).glob("library-*.db"):
        match = _NAME.fullmatch(path.name)
        if match:
            made = datetime.strptime(match[1], "%Y%m%d-%H%M%S-%f").replace(tzinfo=UTC)
            found.append(Backup(path, made.timestamp(), match[2], path.stat().st_size))
    return sorted(found, key=lambda backup: (backup.created <= now, backup.created), reverse=True)


def make_backup(folder: Path, reason: str = DAILY) -> Backup:
    """Copies library.db while it may be in use; raises StorageError (DiskFull, ...) and leaves no half file behind."""
    source, target_folder = folder / LIBRARY_NAME, folder / BACKUP_FOLDER
    now = datetime.now(UTC)
    target = target_folder / f"library-{now:%Y%m%d-%H%M%S-%f}-{reason}.db"
    part = target.with_suffix(".part")
    try:
        target_folder.mkdir(mode=0o700, exist_ok=True)
        with (
            closing(sqlite3.connect(source.resolve().as_uri() + "?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(part)) as copy,
        ):
            original.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").fetchall()
            damage = _check(copy, seconds=None)
        if damage:
            raise DatabaseDamaged(f"{LIBRARY_NAME} is damaged: {damage}.", "Start the app again to restore a backup.")
        _flush(part)
        os.replace(part, target)
        _flush(target_folder)
    except sqlite3.Error as error:
        raise translate(error, source) from error
    except OSError as error:
        raise StorageError(f"No backup could be written: {error.strerror}.", f"Check {target_folder}.") from error
    finally:
        for leftover in (part, *(Path(f"{part}{suffix}") for suffix in _SIDE_FILES)):
            with suppress(OSError):
                leftover.unlink()
    _drop_old(folder)
    return Backup(target, now.timestamp(), reason, target.stat().st_size)


def daily_backup_is_due(folder: Path, now: float | None = None) -> bool:
    """True if no backup (of either kind) is younger than a day."""
    now = time.time() if now is None else now
    return not any(0 <= now - backup.created <= 24 * 3600 for backup in list_backups(folder))


def find_damage(path: Path, seconds: float | None = CHECK_SECONDS) -> str:
    """What SQLite finds wrong with the file, "" if nothing. Looks for at most `seconds` (None: to the end).

    Reads only, so a damaged file stays as it is. SQLite has no checksums: a flipped letter in a text is not found.
    """
    try:
        if 0 < path.stat().st_size < SMALLEST_DATABASE:
            return "it is cut short"
        with closing(sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True)) as connection:
            return _check(connection, seconds)
    except UnicodeDecodeError:
        return "names in it cannot be read"
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.", "Check that the file is there.") from error
    except sqlite3.Error as error:
        if is_damage(error):
            return str(error)
        raise translate(error, path) from error


def newest_good_backup(folder: Path) -> Backup | None:
    for backup in list_backups(folder):
        try:
            if not find_damage(backup.path, seconds=None):
                return backup
        except StorageError as error:
            log.warning("backup %s cannot be read: %s", backup.path.name, error)
    return None


def damaged_library(folder: Path, reason: str) -> DatabaseDamaged:
    """Moves a damaged library.db to library.db.corrupt-<time> and says how to go on."""
    library = folder / LIBRARY_NAME
    kept = _set_aside(library) if library.exists() else _newest_kept(folder)
    backup = newest_good_backup(folder)
    if backup:
        made = datetime.fromtimestamp(backup.created).strftime("%Y-%m-%d %H:%M")
        hint = f"Restore the backup of {made} with storage.restore_backup, or start empty with storage.start_empty."
    else:
        hint = "There is no good backup; start empty with storage.start_empty."
    where = f", kept as {kept.name}" if kept else ""
    return DatabaseDamaged(f"{LIBRARY_NAME} is damaged ({reason}){where}.", hint, kept, backup.path if backup else None)


def finish_putting_back(folder: Path) -> None:
    """Ends what a kill broke off while a deleted library was put back (storage.file_watch).

    A whole copy is all there is: it becomes library.db, or is kept as library.db.replaced-<time> where another file has
    that name by now. A copy that was never finished is removed; a damaged one is kept as library.db.corrupt-<time>, and
    so is an unfinished one where library.db is missing and there are backups. That raises DatabaseDamaged.
    No Library may be open on the folder. Raises StorageError.
    """
    library, part = folder / LIBRARY_NAME, folder / RESTORING_NAME
    try:
        library.with_suffix(".restoring").unlink(missing_ok=True)  # the copy of a backup that is still there
        if not part.exists():
            return
        state = _state_of_copy(part)
        for suffix in ("-wal", "-shm"):  # made by looking: a copy is written without a log
            Path(f"{part}{suffix}").unlink(missing_ok=True)
        lost = state == "empty" and not library.exists() and bool(list_backups(folder))
        if state == "empty" and not lost:
            log.warning("%s was not finished and is removed", part.name)
            for suffix in ("", *_SIDE_FILES):
                Path(f"{part}{suffix}").unlink(missing_ok=True)
        elif state == "whole" and not library.exists():
            for suffix in _SIDE_FILES:  # of the file that has gone: beside this one they would be taken for its own
                Path(f"{library}{suffix}").unlink(missing_ok=True)
            os.replace(part, library)
            log.warning("%s had been deleted and is put back", library.name)
        else:
            kind = "replaced" if state == "whole" else "corrupt"
            kept = library.with_name(f"{library.name}.{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")
            os.replace(part, kept)
            log.warning("%s is %s and is kept as %s", part.name, state, kept.name)
        _flush(folder)
        if lost:
            raise damaged_library(folder, "it was deleted, and putting it back was broken off")
    except OSError as error:
        raise StorageError(f"{part.name} cannot be put back: {error.strerror}.", f"Check {folder}.") from error


def _state_of_copy(part: Path) -> Literal["whole", "empty", "damaged"]:
    """A copy is one transaction: broken off it is empty, once SQLite has looked at its journal."""
    try:
        with closing(sqlite3.connect(part)) as connection:
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return "empty"
        return "damaged" if find_damage(part, seconds=None) else "whole"
    except sqlite3.Error as error:
        if is_damage(error):
            return "damaged"
        raise translate(error, part) from error


def waits_for_decision(folder: Path) -> bool:
    """True after a damaged library was set aside and neither a backup nor an empty library took its place."""
    return not (folder / LIBRARY_NAME).exists() and _newest_kept(folder) is not None


def restore_backup(folder: Path, backup: Path | None = None) -> Path:
    """Puts `backup` (default: the newest good one) in place of library.db and returns it; nothing is overwritten.

    No Library may be open on the folder. The library that stood there is kept as library.db.corrupt-<time>.
    """
    if backup is None:
        newest = newest_good_backup(folder)
        if newest is None:
            raise StorageError(f"There is no good backup in {folder / BACKUP_FOLDER}.", "Start with an empty library.")
        backup = newest.path
    damage = find_damage(backup, seconds=None)
    if damage:
        raise DatabaseDamaged(f"The backup {backup.name} is damaged: {damage}.", "Choose another backup.")
    library = folder / LIBRARY_NAME
    part = library.with_suffix(".restoring")
    try:
        part.write_bytes(backup.read_bytes())
        _flush(part)
        if any(Path(f"{library}{suffix}").exists() for suffix in ("", *_SIDE_FILES)):
            _set_aside(library)  # a log that is left of a deleted file would be taken for that of the backup
        os.replace(part, library)
        _flush(folder)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(f"The backup could not be restored: {error.strerror}.", f"Check {folder}.") from error
    return backup


def start_empty(folder: Path) -> None:
    """Lets the next Library.open make an empty library; a library.db that still stands is kept aside."""
    library = folder / LIBRARY_NAME
    if library.exists():
        _set_aside(library)
    with closing(sqlite3.connect(library)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}").fetchall()


def _check(connection: sqlite3.Connection, seconds: float | None) -> str:
    if seconds is not None:
        deadline = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
    try:
        first = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return ""  # a big file: nothing wrong in the part that there was time for
        raise
    finally:
        connection.set_progress_handler(None, 0)
    return "" if first == "ok" else first


def _set_aside(library: Path) -> Path:
    kept = library.with_name(f"{library.name}.corrupt-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")
    for suffix in ("", *_SIDE_FILES):
        part = Path(f"{library}{suffix}")
        if part.exists():
            os.replace(part, f"{kept}{suffix}")
    return kept


def _newest_kept(folder: Path) -> Path | None:
    kept = [path for path in folder.glob(f"{LIBRARY_NAME}.corrupt-*") if not path.name.endswith(_SIDE_FILES)]
    return max(kept, default=None)


def _drop_old(folder: Path) -> None:
    backups = list_backups(folder)
    daily = [backup for backup in backups if backup.reason == DAILY]
    others = [backup for backup in backups if backup.reason != DAILY]
    for backup in (*daily[KEEP:], *others[KEEP:]):
        backup.path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows has no handle to flush for a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
