"""One running app per data folder.

The lock is the operating system's own, on an open file, so it ends with the process however that dies. The file's text
only tells a second app where the first one is; it is never taken as a sign that an app is running.
"""

import json
import os
import sys
from pathlib import Path

from storage.errors import DataFolderBusy, DiskFull, FolderNotWritable

LOCK_NAME = "app.lock"
_WINDOWS_LOCK_OFFSET = 1 << 30  # Windows locks are mandatory: lock a byte that nobody reads

if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        os.lseek(handle, _WINDOWS_LOCK_OFFSET, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(handle: int) -> None:
        os.lseek(handle, _WINDOWS_LOCK_OFFSET, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(handle: int) -> None:
        # Closing is not enough: a child forked a moment ago may not have closed its copy yet.
        fcntl.flock(handle, fcntl.LOCK_UN)


class DataFolderLock:
    """Holds `folder` for this process from `acquire` until `release` (or the end of the process).

    `acquire` raises DataFolderBusy with the other app's address if the folder is taken, FolderNotWritable if there is
    no writing to it. Usable as a context manager.
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / LOCK_NAME
        self._handle: int | None = None

    @property
    def held(self) -> bool:
        return self._handle is not None

    def acquire(self, address: str = "", *, starting: bool = False) -> "DataFolderLock":
        """starting: this app is about to serve a page, so that a second one waits for its address."""
        if self._handle is not None:
            raise ValueError("acquire: this lock is held already")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        except OSError as error:
            raise FolderNotWritable(
                f"The data folder {self.path.parent} cannot be written: {error.strerror}.",
                "Check its permissions, or name another one with --data-dir.",
            ) from error
        if not _try_lock(handle):
            os.close(handle)
            raise self._busy()
        self._handle = handle
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._drop)
        try:
            self._write({"pid": os.getpid(), "address": address, "starting": starting})
        except OSError as error:  # a full disk: the folder is of no use without room for this
            self.release()
            raise DiskFull(
                f"There is no room to write {self.path.name}: {error.strerror}.",
                f"Free some space on the disk of {self.path.parent}.",
            ) from error
        return self

    def set_address(self, address: str, *, starting: bool = False) -> None:
        """Tells later openers where this app serves its page; "" if it serves none. starting: not yet, or it is just
        ending: who comes now had better wait."""
        self._write({"pid": os.getpid(), "address": address, "starting": starting})

    def _write(self, facts: dict[str, object]) -> None:
        if self._handle is None:
            raise ValueError("set_address: acquire the lock first")
        text = json.dumps(facts).encode()
        os.lseek(self._handle, 0, os.SEEK_SET)
        os.write(self._handle, text)
        os.ftruncate(self._handle, len(text))

    def release(self) -> None:
        """Frees the folder. The file stays: deleting it would let two apps lock two different files."""
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            _unlock(self._handle)
            self._drop()

    def _drop(self) -> None:
        # In a forked child this closes the copy only: the lock lives as long as the parent holds it.
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _busy(self) -> DataFolderBusy:
        address, pid, starting = "", None, False
        try:
            owner = json.loads(self.path.read_text(encoding="utf-8"))
            address, pid = str(owner["address"]), int(owner["pid"])
            starting = bool(owner.get("starting", False))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the owner is just writing it: the folder is busy all the same
        place = f"at {address}" if address else f"as process {pid}" if pid else "already"
        return DataFolderBusy(
            f"Unabridged is running {place} with this data folder.",
            "Use that one, stop it first, or name another folder with --data-dir.",
            address,
            pid,
            starting,
        )

    def __enter__(self) -> "DataFolderLock":
        return self if self.held else self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
