"""library.db: the user's conversations and documents. Precious: every change is on disk before its call returns."""

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from sqlite_utils import Database, Migrations

from storage.backup import (
    APPLICATION_ID,
    LIBRARY_NAME,
    daily_backup_is_due,
    damaged_library,
    find_damage,
    finish_putting_back,
    list_backups,
    make_backup,
    waits_for_decision,
)
from storage.base import not_found
from storage.connection import Writer, connect, pragma
from storage.conversations import Conversations, mark_interrupted
from storage.documents import Documents
from storage.errors import DatabaseTooNew, FolderNotWritable, StorageError
from storage.library_schema import library_migrations
from storage.rows import Backup
from storage.search import Search
from storage.search_index import unindex_document
from storage.versions import Versions

log = logging.getLogger(__name__)

LIBRARY_PRAGMAS = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "secure_delete": "ON",
    "journal_size_limit": 16 * 1024 * 1024,
}

BACKUP_PRAGMAS = {"journal_mode": "DELETE", "synchronous": "FULL", "secure_delete": "ON"}


class Library(Conversations, Documents, Search, Versions):
    """Everything that the user would miss. Safe to use from several threads; one process at a time per folder
    (`DataFolderLock` sees to that)."""

    def __init__(self, folder: Path, writer: Writer) -> None:
        self.folder = folder
        self._writer = writer
        self._backup_thread: threading.Thread | None = None
        self._index_lock = threading.Lock()
        self._closing = threading.Event()

    @classmethod
    def open(cls, folder: Path, *, migrations: Migrations = library_migrations) -> "Library":
        """Opens or creates `folder`/library.db, upgrades it, marks unfinished answers as interrupted.

        Raises DatabaseDamaged (the file was set aside; restore_backup or start_empty decide how to go on),
        DatabaseTooNew, DiskFull, FolderNotWritable or another StorageError.
        """
        folder = Path(folder)
        _prepare(folder)
        path = folder / LIBRARY_NAME
        finish_putting_back(folder)
        if waits_for_decision(folder):
            raise damaged_library(folder, "it was set aside earlier")
        had_data = path.exists() and (path.stat().st_size > 0 or _size(Path(f"{path}-wal")) > 0)
        if path.exists():
            lost = not had_data and bool(list_backups(folder))
            damage = "it is empty" if lost else find_damage(path) if had_data else ""
            if damage:
                raise damaged_library(folder, damage)
        writer = Writer(path, LIBRARY_PRAGMAS)
        library = cls(folder, writer)
        try:
            library._upgrade(migrations)
            with writer.transaction() as db:
                mark_interrupted(db)
            if had_data and daily_backup_is_due(folder):
                library._start_daily_backup()
        except BaseException:
            writer.close()
            raise
        return library

    def close(self) -> None:
        """Waits for a running backup, stops indexing, then closes the file."""
        self._close_indexing()
        if self._backup_thread is not None:
            self._backup_thread.join()
        self._writer.close()

    def __enter__(self) -> "Library":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def delete_conversation(self, id: str) -> None:
        """Removes the conversation and its messages, from the backups too; its documents stay in the library."""
        self._delete("conversation", id, _delete_conversation)

    def delete_document(self, id: str) -> list[str]:
        """Removes text, pages and search index of the document, from the backups too.

        Returns the conversations that used it: their snapshots hold the text in another form and must be forgotten.
        """
        conversations = self.conversations_using(id)
        self._delete("document", id, _delete_document)
        return conversations

    def backup(self) -> Backup:
        """Makes a backup now."""
        return make_backup(self.folder)

    def backups(self) -> list[Backup]:
        return list_backups(self.folder)

    def _upgrade(self, migrations: Migrations) -> None:
        with self._writer.use() as db:
            if pragma(db, "application_id") != APPLICATION_ID:
                if db.table_names():
                    raise StorageError(
                        f"{self._writer.path} is not a library of Unabridged.",
                        "Move it away or use another data folder.",
                    )
                # First of all: a first start that is killed, or has no room, must not leave tables without it.
                db.conn.execute(f"PRAGMA application_id = {APPLICATION_ID}").fetchall()
            known = {migration.name for migration in migrations.pending(Database(memory=True, execute_plugins=False))}
            applied = [migration.name for migration in migrations.applied(db)]
            unknown = [name for name in applied if name not in known]
            if unknown:
                raise DatabaseTooNew(
                    f"{LIBRARY_NAME} was written by a newer version of Unabridged ({unknown[-1]}).",
                    "Update Unabridged, or use another data folder.",
                )
            pending = [migration.name for migration in migrations.pending(db)]
            for position, name in enumerate(pending):
                if applied:
                    make_backup(self.folder, f"before-{name}")
                migrations.apply(db, stop_before=pending[position + 1 :])

    def _start_daily_backup(self) -> None:
        def work() -> None:
            try:
                make_backup(self.folder)
            except StorageError as error:
                log.warning("no daily backup: %s", error)

        self._backup_thread = threading.Thread(target=work, name="library-backup")
        self._backup_thread.start()

    def _delete(self, what: str, id: str, delete: Callable[[Database, str], int]) -> None:
        if self._backup_thread is not None:
            self._backup_thread.join()
        with self._writer.use(changes=True) as db:
            with db.atomic():
                if delete(db, id) == 0:
                    raise not_found(what, id)
            # The log still holds the old pages, which deleting has overwritten in the file itself.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        for backup in list_backups(self.folder):
            _delete_in_backup(backup.path, id, delete)


def _delete_conversation(db: Database, id: str) -> int:
    return db.execute("DELETE FROM conversations WHERE id = ?", (id,)).rowcount


def _delete_document(db: Database, id: str) -> int:
    unindex_document(db, id)
    return db.execute("DELETE FROM documents WHERE id = ?", (id,)).rowcount


def _delete_in_backup(path: Path, id: str, delete: Callable[[Database, str], int]) -> None:
    """A backup that cannot be cleaned is removed: what the user deleted must not come back."""
    try:
        with connect(path, BACKUP_PRAGMAS) as db, db.atomic():
            delete(db, id)
    except sqlite3.Error as error:
        log.warning("backup %s could not be cleaned (%s) and is removed", path.name, error)
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FolderNotWritable(
            f"The data folder {folder} cannot be made: {error.strerror}.", "Name another one with --data-dir."
        ) from error
