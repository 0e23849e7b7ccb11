"""The parent's side of the rendering child: one process for the document that is being looked at, killed when it takes
too long, sends too much, has not been asked for a while, or when another document is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from app.errors import AppError
from app.ingest.disk import NotInside, open_inside
from app.ingest.files import printable

WORKER = "app.page_view.child"
_PACKAGES = Path(__file__).resolve().parents[2]
_TEXT_HINT = "Its text is shown instead."
_REASONS = {
    "password": "The page's picture needs the document's password, which the app does not keep.",
    "damaged": "The page is damaged and cannot be drawn.",
    "page": "The file has no such page.",
    "member": "The file could not be taken out of its archive.",
    "content": "The file in the archive is not the one that was read.",
}
_AS_READ = "Its text as it was read is shown instead."


class NoPicture(AppError):
    """A page that cannot be drawn; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What drawing may cost: seconds to wait for one page, and for a file to be taken out of an archive, processor
    seconds and pages of one process, its memory and the bytes of one picture; seconds after which a process that nobody
    asks is ended."""

    page_seconds: float = 15.0
    unpack_seconds: float = 60.0
    cpu_seconds: int = 120
    pages: int = 500
    memory_bytes: int = 1 << 30
    picture_bytes: int = 4_000_000
    idle_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class PdfSource:
    """Where the bytes of a PDF are: the file `path`, or with a member that file in the archive `path`.

    sha256: `path` is a folder of the user's, and the member below it must be what it was when it was read.
    content: the same of a member of an archive, "" where that is not known; two of its names may be one as stored.
    """

    path: Path
    member: str = ""
    sha256: str = ""
    content: str = ""

    def open(self) -> int:
        """A descriptor of the file or archive. Raises NoPicture where it is gone or has changed."""
        if not self.sha256:
            try:
                return os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            except OSError as error:
                raise NoPicture(
                    f"The page could not be drawn: its file cannot be opened ({error.strerror}).", _TEXT_HINT
                ) from error
        name = printable(self.member)
        if not os.path.lexists(self.path / self.member):
            raise NoPicture(f"{name} is no longer in the folder that it was read from.", _AS_READ)
        try:
            fd = open_inside(self.path, self.member)
        except NotInside as reason:
            raise NoPicture(f"{name} cannot be opened: {reason}.", _AS_READ) from reason
        with os.fdopen(os.dup(fd), "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            os.close(fd)
            raise self.changed()
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def changed(self) -> NoPicture:
        name = printable(self.member)
        return NoPicture(f"{name} has changed since it was read, so its pages are not shown.", _AS_READ)

    @property
    def stamp(self) -> tuple[int, ...]:
        """Changes when the file in a folder does; always the same for the app's own copies."""
        if not self.sha256:
            return ()
        try:
            info = os.lstat(self.path / self.member)
        except OSError:
            return (0,)
        return info.st_ino, info.st_size, info.st_mtime_ns

    def request(self, fd: int) -> dict[str, Any]:
        """How the child gets at it."""
        inside = self.path / self.member if self.sha256 else self.path
        given: dict[str, Any] = {"fd": fd} if os.name == "posix" else {"path": str(inside)}
        if self.sha256 or not self.member:
            return given
        return {**given, "archive": self.path.name, "member": self.member, "content": self.content}


@dataclass(frozen=True, slots=True)
class Picture:
    """A page as PNG; width and height in pixels; boxes: the quote's places as (left, top, right, bottom) in shares."""

    png: bytes
    width: int
    height: int
    boxes: tuple[tuple[float, float, float, float], ...]


class Renderer:
    """Draws pages. Thread safe; one page at a time."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._idle: threading.Timer | None = None

    def page(self, source: PdfSource | Path, number: int, width: int, quote: str = "") -> Picture:
        """Draws one page, `width` pixels wide or less. Raises NoPicture."""
        with self._lock:
            self._stop_waiting()
            try:
                child = self._child_for(source if isinstance(source, PdfSource) else PdfSource(source))
                header, body = child.ask({"page": number, "width": width, "quote": quote}, self.limits)
            except _Broken as broken:
                self._end()
                raise NoPicture(f"The page could not be drawn: {broken}.", _TEXT_HINT) from broken
            finally:
                if self._child is not None:
                    self._idle = threading.Timer(self.limits.idle_seconds, self.close)
                    self._idle.daemon = True
                    self._idle.start()
            if child.stamp != child.source.stamp:  # it was written to behind the check of its bytes
                raise child.source.changed()
            if "error" in header:
                raise NoPicture(_REASONS[header["error"]], _TEXT_HINT)
            return Picture(body, header["width"], header["height"], tuple(map(tuple, header["boxes"])))

    def close(self) -> None:
        """Ends the child. The next page starts a new one."""
        with self._lock:
            self._end()

    def _child_for(self, source: PdfSource) -> _Child:
        child = self._child
        current = child is not None and child.source == source and child.stamp == source.stamp
        if child is None or not current or child.asked >= self.limits.pages:
            self._end()
            child = self._child = _Child(source, self.limits)
            limits = self.limits
            header, _ = child.read(limits.unpack_seconds if source.member else limits.page_seconds)
            if "error" in header:
                self._end()
                raise NoPicture(_REASONS[header["error"]], _TEXT_HINT)
        return child

    def _end(self) -> None:
        self._stop_waiting()
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


class _Broken(Exception):
    """The child did not answer as it should; the text ends the sentence "... could not be drawn: "."""


class _Child:
    def __init__(self, source: PdfSource, limits: Limits) -> None:
        self.source, self.stamp = source, source.stamp
        self.asked = 0
        fd = source.open()
        try:
            posix = os.name == "posix"
            search = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH", "")]))
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"},
                pass_fds=(fd,) if posix else (),
                start_new_session=posix,  # Ctrl-C is the parent's to handle
            )
        finally:
            os.close(fd)
        self._frames: queue.SimpleQueue[tuple[dict[str, Any], bytes] | str] = queue.SimpleQueue()
        threading.Thread(target=self._pump, args=(self._pipe("stdout"), limits), daemon=True).start()
        self._send({**source.request(fd), "memory": limits.memory_bytes, "seconds": limits.cpu_seconds})

    def ask(self, request: dict[str, Any], limits: Limits) -> tuple[dict[str, Any], bytes]:
        self.asked += 1
        self._send(request)
        return self.read(limits.page_seconds)

    def read(self, seconds: float) -> tuple[dict[str, Any], bytes]:
        try:
            frame = self._frames.get(timeout=seconds)
        except queue.Empty:
            raise _Broken("it takes too long") from None
        if isinstance(frame, str):
            raise _Broken(frame)
        return frame

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for name in ("stdin", "stdout"):
            with contextlib.suppress(OSError):  # what the child did not take is of no use any more
                self._pipe(name).close()

    def _send(self, request: dict[str, Any]) -> None:
        try:
            stdin = self._pipe("stdin")
            stdin.write(json.dumps(request).encode("ascii") + b"\n")
            stdin.flush()
        except OSError as error:
            raise _Broken("its reader ended unexpectedly") from error

    def _pipe(self, name: str) -> IO[bytes]:
        pipe = getattr(self._process, name)
        if pipe is None:
            raise RuntimeError("the child has no pipes")
        return pipe

    def _pump(self, stream: IO[bytes], limits: Limits) -> None:
        """Answers of the child into the queue, then why there are no more."""
        reason = "its reader broke down on it"
        try:
            while line := stream.readline(1 << 20):
                header = json.loads(line)
                size = int(header.get("png", 0))
                if size > limits.picture_bytes:
                    reason = "its picture is too large"
                    break
                body = stream.read(size) if size else b""
                if len(body) < size:
                    break
                self._frames.put((header, body))
        except (OSError, ValueError):  # closed while it was read, or not what our child sends
            pass
        self._frames.put(reason)
