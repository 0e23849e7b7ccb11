"""A folder on the disk, read without ever following a link: what is checked is what is opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath
from typing import BinaryIO

_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_REPARSE_POINT = 0x400  # Windows: links and junctions


class NotInside(Exception):
    """A path that may not be read; the message is the reason shown in the list of skipped files."""


def open_inside(root: Path, relative: str) -> int:
    """Open a regular file below `root` for reading; raises NotInside.

    No part below `root` may be a link, checked at the moment of opening, and a FIFO or a device never blocks.
    """
    parts = PurePosixPath(relative).parts
    if not parts or any(part in ("..", "/", "") for part in parts):
        raise NotInside("outside the folder")
    try:
        fd = _open_by_parts(root, parts) if os.open in os.supports_dir_fd else _open_by_path(root, parts)
    except OSError as error:
        raise NotInside(reason_of(error)) from error
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise NotInside("not a regular file")
        if info.st_nlink > 1:
            raise NotInside("a hard link, which may lead outside the folder")
    except BaseException:
        os.close(fd)
        raise
    return fd


class DiskTree:
    """The tree below `root`, which may be a link, since the user named it. Paths have "/" between their parts."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entries(self, folder: str) -> dict[str, os.stat_result]:
        """Names in one folder ("" or "a/b/") with their own (not their target's) status. Raises OSError."""
        if os.scandir not in os.supports_fd:
            path = self.root / folder
            if folder and is_link(os.lstat(path)):
                raise OSError(errno.ELOOP, "a link")
            with os.scandir(path) as found:
                return {entry.name: entry.stat(follow_symlinks=False) for entry in found}
        fd = os.open(self.root, os.O_RDONLY | _DIRECTORY)
        try:
            for part in PurePosixPath(folder).parts:
                inner = os.open(part, os.O_RDONLY | _DIRECTORY | _NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = inner
            with os.scandir(fd) as found:
                return {entry.name: entry.stat(follow_symlinks=False) for entry in found}
        finally:
            os.close(fd)

    def open(self, path: str) -> tuple[BinaryIO, int, int]:
        """(file, size, nanoseconds since 1970 of its last change). Raises NotInside."""
        fd = open_inside(self.root, path)
        info = os.fstat(fd)
        return os.fdopen(fd, "rb"), info.st_size, info.st_mtime_ns


def is_link(info: os.stat_result) -> bool:
    return stat.S_ISLNK(info.st_mode) or bool(getattr(info, "st_file_attributes", 0) & _REPARSE_POINT)


def reason_of(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a link"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no permission to read it"
    return f"cannot be opened ({error.strerror or type(error).__name__})"


def _open_by_parts(root: Path, parts: tuple[str, ...]) -> int:
    folder = os.open(root, os.O_RDONLY | _DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | _DIRECTORY | _NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], _READ | _NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)


def _open_by_path(root: Path, parts: tuple[str, ...]) -> int:
    path = root
    for part in parts:
        path = path / part
        if is_link(os.lstat(path)):
            raise OSError(errno.ELOOP, "a link")
    return os.open(path, _READ)
