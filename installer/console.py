"""What the user sees while other programs work: named stages, their lines, and a sign of life every few seconds.

Nothing here is silent for long: a program that prints nothing for `HEARTBEAT_SECONDS` is reported with the time it has
taken and the bytes that have arrived.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HEARTBEAT_SECONDS = 5.0
KEPT_LINES = 15


def say(text: str) -> None:
    print(text, flush=True)


def size_text(count: int) -> str:
    """Bytes for people: 412 MB, 1.3 GB (powers of ten, as disks and downloads are sold)."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(count, 0) / 1e6:.0f} MB"


def time_text(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile count nothing."""
    total, stack = 0, [str(folder)]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue
    return total


@dataclass(frozen=True, slots=True)
class Finished:
    """code: exit status; last: the program's last lines; seconds: how long it took."""

    code: int
    last: tuple[str, ...]
    seconds: float


def stream(
    command: Sequence[str],
    *,
    show: Callable[[str], str],
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    keep_open: Sequence[int] = (),
    arriving: Callable[[], str] = lambda: "",
    until: Callable[[str], bool] = lambda line: False,
    print_line: Callable[[str], None] = say,
    heartbeat: float = HEARTBEAT_SECONDS,
) -> Finished:
    """Runs a program, writes all it says to `log` and prints `show(line)` where that is not empty.

    keep_open: file descriptors that the program inherits (POSIX). arriving: words on what has arrived, for the sign of
    life. until: ends the program at the first line for which it is true.
    """
    start = time.monotonic()
    lines: queue.Queue[str | None] = queue.Queue()
    last: deque[str] = deque(maxlen=KEPT_LINES)
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        cwd=folder,
        env=dict(environment),
        pass_fds=tuple(keep_open) if os.name == "posix" else (),
    )
    output = process.stdout
    if output is None:
        raise RuntimeError("the program's output is not connected")

    def read() -> None:
        for line in output:
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        with log.open("a", encoding="utf-8") as record:
            record.write("$ " + " ".join(command) + "\n")
            while True:
                try:
                    line = lines.get(timeout=heartbeat)
                except queue.Empty:
                    print_line(f"    ... {time_text(time.monotonic() - start)}{arriving()}")
                    continue
                if line is None:
                    break
                record.write(line + "\n")
                if line.strip():
                    last.append(line)
                text = show(line)
                if text:
                    print_line("    " + text)
                if until(line):
                    _end(process)
                    break
        return Finished(process.wait(), tuple(last), time.monotonic() - start)
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_NOISE = re.compile(
    r"^\s*(WARNING: Location|Requirement already|Obtaining |Looking in|Collecting |Processing |  from |Using cached|"
    r"File was already|Downloading .*\.metadata|Getting requirements|Checking if build|Installing (build dep|backend)|"
    r"Preparing (editable )?metadata|Building (editable|wheels)|Created wheel|Stored in directory|Successfully built|"
    r"Attempting uninstall|Found existing|Uninstalling|Successfully uninstalled)"
)
_SIZE = re.compile(r"^\s*Downloading \S+ \((?P<number>[\d.]+) (?P<unit>bytes|[kMG]B)\)")
_UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def fetched_bytes(line: str) -> int:
    """The size that a `Downloading NAME (SIZE)` line of pip names, or 0."""
    found = _SIZE.match(line)
    if found is None or ".metadata (" in line:
        return 0
    return int(float(found.group("number")) * _UNITS[found.group("unit")])


def _packages(count: int) -> str:
    return f"{count} package" + ("" if count == 1 else "s")


def show_pip(line: str) -> str:
    """A line of pip's as a user wants it: what is fetched and what went wrong, not the bookkeeping."""
    text = line.strip()
    if not text or _NOISE.match(line):
        return ""
    if text.startswith("Installing collected packages:"):
        return "Installing " + _packages(text.count(",") + 1)
    if text.startswith("Successfully installed"):
        return "Installed " + _packages(len(text.split()) - 2)
    return text
