"""The environment in `.venv`: made, checked, marked as finished, taken away.

`.setup/` beside it holds the lock, the log, pip's cache while a set-up runs, and `unfinished`, a file that exists from
before the first change to `.venv` until the stamp is written. The stamp inside `.venv` is written last and atomically,
so an environment without a fitting stamp is never used, and one with `unfinished` beside it is built anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

FORMAT = 1
LOCK_WAIT_SECONDS = 30 * 60


class ForeignEnvironmentError(Exception):
    """`.venv` exists and this installer did not make it."""


class LockTimeoutError(Exception):
    """Another set-up of this checkout has been at work for too long."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a finished environment holds.

    extras: of pyproject.toml; torch: version with its local tag; family: of torch_build; reason: why that family;
    override: the value of UNABRIDGED_TORCH; root: where the checkout was.
    """

    fingerprint: str
    extras: tuple[str, ...]
    torch: str
    family: str
    reason: str
    override: str
    root: str


@dataclass(frozen=True, slots=True)
class Environment:
    """The paths of one checkout's environment."""

    root: Path

    @property
    def folder(self) -> Path:
        return self.root / ".venv"

    @property
    def state(self) -> Path:
        return self.root / ".setup"

    @property
    def log(self) -> Path:
        return self.state / "setup.log"

    @property
    def temp(self) -> Path:
        return self.state / "temp"

    @property
    def cache(self) -> Path:
        return self.state / "cache"

    @property
    def unfinished(self) -> Path:
        return self.state / "unfinished"

    @property
    def owned(self) -> Path:
        return self.state / "made-by-installer"

    @property
    def stamp_file(self) -> Path:
        return self.folder / "unabridged-stamp.json"

    @property
    def scripts(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> Path:
        return self.scripts / ("python.exe" if os.name == "nt" else "python")

    def program(self, name: str) -> Path:
        return self.scripts / (name + ".exe" if os.name == "nt" else name)

    def fingerprint(self, torch_override: str) -> str:
        """Changes with the requirements, this Python, the machine's kind, the folder and the user's torch choice."""
        parts = {
            "format": FORMAT,
            "pyproject": hashlib.sha256((self.root / "pyproject.toml").read_bytes()).hexdigest(),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "root": str(self.root),
            "torch": torch_override or "auto",
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def stamp(self) -> Stamp | None:
        """The stamp of a finished environment, or None."""
        if self.unfinished.exists():
            return None
        try:
            fields = json.loads(self.stamp_file.read_text(encoding="utf-8"))
            fields["extras"] = tuple(fields["extras"])
            return Stamp(**fields)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_ready(self, fingerprint: str, extras: frozenset[str]) -> Stamp | None:
        """The stamp if the environment can be used as it is for these extras."""
        stamp = self.stamp()
        if stamp is None or stamp.fingerprint != fingerprint or not extras <= set(stamp.extras):
            return None
        return stamp if self.python.exists() and self.program("unabridged").exists() else None

    def is_reusable(self) -> bool:
        """Can packages be added to it? Finished once, made by this very Python, and in this place."""
        stamp = self.stamp()
        if stamp is None or stamp.root != str(self.root) or not self.python.exists():
            return False
        version = _read_config(self.folder / "pyvenv.cfg").get("version", "")
        return version == platform.python_version()

    def check_owner(self) -> None:
        if self.folder.exists() and not self.owned.exists():
            raise ForeignEnvironmentError(
                f"{self.folder} exists and this installer did not make it. Move it away, then type the command again."
            )

    def begin(self) -> None:
        """From here on until `finish` the environment counts as broken."""
        self.state.mkdir(exist_ok=True)
        self.check_owner()
        write_atomically(self.owned, "The folder .venv beside this one was made by `python3 installer`.\n")
        write_atomically(self.unfinished, "A set-up began and has not finished.\n")
        self.stamp_file.unlink(missing_ok=True)
        remove_tree(self.temp)
        self.temp.mkdir()

    def finish(self, stamp: Stamp) -> None:
        remove_tree(self.temp)
        remove_tree(self.cache)
        write_atomically(self.stamp_file, json.dumps(asdict(stamp), indent=1) + "\n")
        self.unfinished.unlink()

    def discard(self) -> None:
        remove_tree(self.folder)

    @contextmanager
    def lock(self, say: Callable[[str], None], wait: float = LOCK_WAIT_SECONDS) -> Iterator[int]:
        """One set-up at a time; yields the lock's file descriptor.

        The system frees the lock when the last holder ends, also after a kill. On POSIX pip inherits the descriptor, so
        a pip that outlives a killed installer keeps the next set-up waiting instead of writing beside it.
        """
        self.state.mkdir(exist_ok=True)
        descriptor = os.open(self.state / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            start = told = time.monotonic()
            if not try_lock(descriptor):
                say("Another set-up of this folder is at work; waiting for it.")
                while not try_lock(descriptor):
                    now = time.monotonic()
                    if now - start > wait:
                        raise LockTimeoutError(
                            f"Another set-up of {self.root} has not finished in {wait:.0f} s. Stop it, then try again."
                        )
                    if now - told > 10:
                        told = now
                        say(f"    ... still waiting after {now - start:.0f} s")
                    time.sleep(0.2)
            yield descriptor
        finally:
            os.close(descriptor)


def _read_config(path: Path) -> dict[str, str]:
    """pyvenv.cfg as a dictionary; nothing where it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}


def base_python() -> str:
    """The Python to make the environment with: never the one inside `.venv` itself."""
    return str(getattr(sys, "_base_executable", "") or sys.executable)


def write_atomically(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def remove_tree(folder: Path) -> None:
    """Removes a folder of ours, or only the link when it is one; what is not there is no error."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


if sys.platform == "win32":
    import msvcrt

    def try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
