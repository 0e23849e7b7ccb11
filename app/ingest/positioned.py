"""A file that several processes read at once through one open descriptor: each keeps its own position."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, cast


def open_descriptor(fd: int) -> BinaryIO:
    """The file behind a descriptor, which is then closed with it."""
    if hasattr(os, "pread"):
        return cast(BinaryIO, io.BufferedReader(_Positioned(fd), 1 << 16))
    return os.fdopen(fd, "rb")


class _Positioned(io.RawIOBase):
    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        data = os.pread(self._fd, len(buffer), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        start = (0, self._at, os.fstat(self._fd).st_size if whence == 2 else 0)[whence]
        if start + offset < 0:
            raise OSError("seek before the beginning of the file")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()
