"""SQLite storage: library.db (conversations, documents, search; precious) and kvcache.db (KV snapshots; disposable).

Knows nothing of models, prompts or screens and imports nothing of ours. One process at a time may use a folder:
take its DataFolderLock first. All errors are StorageError or ValueError (a value that no caller should pass).
"""

from storage.backup import list_backups, make_backup, restore_backup, start_empty
from storage.errors import (
    DatabaseDamaged,
    DatabaseTooNew,
    DataFolderBusy,
    DiskFull,
    FolderNotWritable,
    NotFound,
    StorageError,
)
from storage.kvcache import SnapshotStore, default_quota
from storage.library import Library
from storage.lock import DataFolderLock
from storage.manifests import FileRow, ReadingSpeed
from storage.rows import Attachment, Backup, Conversation, Document, Hit, Holding, Message, PageRow, SnapshotStats
from storage.snapshot_schema import SnapshotRow
from storage.versions import Version, VersionState

__all__ = [
    "Attachment",
    "Backup",
    "Conversation",
    "DataFolderBusy",
    "DataFolderLock",
    "DatabaseDamaged",
    "DatabaseTooNew",
    "DiskFull",
    "Document",
    "FileRow",
    "FolderNotWritable",
    "Hit",
    "Holding",
    "Library",
    "Message",
    "NotFound",
    "PageRow",
    "ReadingSpeed",
    "SnapshotRow",
    "SnapshotStats",
    "SnapshotStore",
    "StorageError",
    "Version",
    "VersionState",
    "default_quota",
    "list_backups",
    "make_backup",
    "restore_backup",
    "start_empty",
]
