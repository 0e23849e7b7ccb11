"""Start a reading child, pass on its messages, and end it: when it is done, at a limit, or when the user cancels.

The child is killed and reaped before `run_child` returns or raises, whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from app.errors import BadInput, Cancelled, PasswordNeeded
from app.ingest.extracted import Limits
from app.ingest.pool import Flag

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
WORKER = "app.ingest.worker"
_PACKAGES = Path(__file__).resolve().parents[2]
_CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGILL, signal.SIGFPE} | {
    getattr(signal, name) for name in ("SIGBUS", "SIGTRAP") if hasattr(signal, name)
}
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # thread pools need address space and are not used
Message = dict[str, Any]


class ChildStopped(Exception):
    """The child ended before it was done. reason: the end of a sentence that begins "Reading stopped, because ...".

    crashed: the reader itself broke on what it was reading, so that going on behind that place may work.
    """

    def __init__(self, reason: str, crashed: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.crashed = crashed


def run_child(
    request: bytes,
    on_message: Callable[[Message], None],
    *,
    limits: Limits,
    cancel: Flag | None = None,
    pass_fds: Sequence[int] = (),
) -> None:
    """Run `request` in a child and hand each message to `on_message`, in the calling thread.

    Raises Cancelled, BadInput or PasswordNeeded (what the child found), ChildStopped (a limit or a crash).
    """
    process, stdin, stdout = _start(pass_fds)
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_pump, args=(stdout, lines, 32 * limits.text_bytes), daemon=True)
    reader.start()
    try:
        try:
            stdin.write(request)
            stdin.close()
        except OSError:
            pass  # the child is gone already: its exit status says why
        _follow(process, lines, on_message, limits, cancel)
    finally:
        _kill(process)
        process.wait()
        reader.join()
        stdout.close()


def _start(pass_fds: Sequence[int]) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
    path = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", WORKER],  # -P: a file json.py in the user's folder is not ours
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **_ONE_THREAD},
        pass_fds=tuple(pass_fds),
        start_new_session=os.name == "posix",  # Ctrl-C is the parent's to handle
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the child has no pipes")
    return process, process.stdin, process.stdout


def _pump(stream: IO[bytes], lines: queue.SimpleQueue[bytes | None], most: int) -> None:
    """Lines of the child into the queue, then None; stops reading from a child that sends more than it may."""
    try:
        while most > 0 and (line := stream.readline(most)):
            most -= len(line)
            if line.endswith(b"\n"):
                lines.put(line)
    finally:
        lines.put(None)


def _follow(
    process: subprocess.Popen[bytes],
    lines: queue.SimpleQueue[bytes | None],
    on_message: Callable[[Message], None],
    limits: Limits,
    cancel: Flag | None,
) -> None:
    start, pages = time.monotonic(), 0
    while True:
        if cancel is not None and cancel.is_set():
            raise Cancelled("Reading was cancelled.", "Open the file again to read it.")
        if time.monotonic() - start > limits.wall_seconds + limits.wall_seconds_per_page * pages:
            raise ChildStopped("it took too long")
        _watch_memory(process, limits)
        try:
            line = lines.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        if line is None:
            _kill(process)  # nothing to an ended child; ends one that sent too much
            raise _stopped(process.wait(), limits)
        message = json.loads(line)
        match message["type"]:
            case "done":
                return
            case "error":
                kind = PasswordNeeded if message["password"] else BadInput
                raise kind(message["message"], message["hint"])
            case "crash":
                if message["detail"]:
                    log.warning("a document reader failed:\n%s", message["detail"])
                raise ChildStopped(message["reason"], crashed=True)
            case "stopped":
                raise ChildStopped(message["reason"])
            case "start":
                pages = int(message["total"])
        on_message(message)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The child and the programs that it started (they share its process group), unless it was waited for already."""
    if process.returncode is not None:
        return
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        import psutil

        with contextlib.suppress(psutil.Error):
            for other in psutil.Process(process.pid).children(recursive=True):
                other.kill()
    process.kill()


def _watch_memory(process: subprocess.Popen[bytes], limits: Limits) -> None:
    """Where the system has no limit on address space, the parent looks at the resident memory."""
    if sys.platform == "linux":
        return
    import psutil

    try:
        if psutil.Process(process.pid).memory_info().rss > limits.memory_bytes:
            raise ChildStopped("it needs too much memory", crashed=True)
    except psutil.Error:
        return  # it has just ended: the queue says how


def _stopped(status: int, limits: Limits) -> ChildStopped:
    if os.name == "posix" and status == -signal.SIGXCPU:
        return ChildStopped(f"it took more than {limits.cpu_seconds} seconds of processor time")
    if -status in _CRASHES:
        return ChildStopped("its reader broke down on it or ran out of memory", crashed=True)
    return ChildStopped(f"its reader ended unexpectedly (status {status})")
