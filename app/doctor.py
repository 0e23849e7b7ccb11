"""Examines the installation and the machine. Every check runs, whatever the others found, and says one thing."""

from __future__ import annotations

import importlib.metadata
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from app.errors import as_app_error
from app.models import ModelInfo, Models
from app.paths import Paths
from app.units import format_size

if TYPE_CHECKING:
    from app.settings import Settings
    from engine.profile_rules import Profile

_LEAST_DISK = 10**9
_SMALL = 10**9  # parameters; a larger model is not loaded just to see whether the engine works
_TINY_CONTEXT = 256
_SAFE_WAL = (3, 51, 3)


@dataclass(frozen=True, slots=True)
class Check:
    """name: a word or two; detail: what was found, or what to do."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. memory_bytes: of the device. triton: its version, on a card also whether its kernels run; None
    where it is not installed (the CPU needs none). largest_context: tokens of prompt and answer that fit for the chosen
    model, estimated from its shapes and the memory that is free now; None when it does not fit or cannot be read.
    """

    profile: str
    reason: str
    device: str
    memory_bytes: int
    largest_context: int | None
    triton: str | None
    sqlite_version: str
    data_dir: str
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"checks": [asdict(check) for check in self.checks]}

    def lines(self) -> list[str]:
        context = f"{self.largest_context:,} tokens (estimate)" if self.largest_context else "unknown"
        head = [
            f"Profile          {self.profile}: {self.reason}",
            f"Device           {self.device}, {format_size(self.memory_bytes)} of memory",
            f"Largest context  {context}",
            f"Triton           {self.triton or 'not installed'}",
            f"SQLite           {self.sqlite_version}",
            f"Data folder      {self.data_dir}",
            "",
        ]
        return head + [f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.detail}" for check in self.checks]


@dataclass(slots=True)
class _Found:
    """What checks leave for the report. `why`: why there is no profile."""

    profile: Profile | None = None
    why: str = ""
    largest_context: int | None = None


def examine(settings: Settings) -> Report:
    """Runs all checks; takes as long as loading the starter model once."""
    paths, found = Paths(settings.data_dir), _Found()
    models = Models(paths.models)
    checks: list[Check] = []
    for name, check in (
        ("python", _python),
        ("torch", _torch),
        ("profile", partial(_profile, settings, found)),
        ("triton", partial(_triton, found)),
        ("compiled kernels", _kernels),
        ("packages", _packages),
        ("sqlite", _sqlite),
        ("data folder", partial(_data_folder, paths)),
        ("disk", partial(_disk, paths)),
        ("database", partial(_database, paths)),
        ("starter model", partial(_starter, models)),
        ("model", partial(_model, models, settings)),
        ("room", partial(_room, models, settings, found)),
        ("engine", partial(_generation, models, settings)),
        ("port", _port),
    ):
        checks.append(_run(name, check))
    profile = found.profile
    device, memory = _device(profile)
    return Report(
        profile=profile.name if profile else "none",
        reason=profile.reason if profile else found.why,
        device=device,
        memory_bytes=memory,
        largest_context=found.largest_context,
        triton=_triton_state(profile),
        sqlite_version=sqlite3.sqlite_version,
        data_dir=str(settings.data_dir),
        checks=tuple(checks),
    )


def _profile(settings: Settings, found: _Found) -> str:
    from app.wiring import profile_for

    try:
        found.profile = profile = profile_for(settings)
    except Exception as error:
        found.why = str(as_app_error(error))
        raise
    memory = f"up to {profile.memory_limit / 2**30:.1f} GiB of memory"
    said = f"{profile.name}: weights {profile.weights}, KV {profile.kv_format}, {memory}, {profile.threads} threads"
    if profile.device == "cpu":
        return said
    shared = f"{profile.shared_memory // 1024} KB of shared memory"
    emulated = f", standing in for compute capability {'.'.join(map(str, profile.capability))}" * profile.emulated
    return f"{said}, {shared}, {profile.batch_rows} chats at once, kernels by {profile.kernels}{emulated}"


def _triton(found: _Found) -> str:
    """Whether kernels run on the card; without a card nothing is missing."""
    if found.profile is None or found.profile.device == "cpu":
        return "not needed on the CPU"
    from engine.machine import c_compiler_hint, why_no_triton

    if reason := why_no_triton():
        hint = c_compiler_hint()
        raise RuntimeError(f"{reason}{'; ' + hint if hint else ''}. Until then torch computes, slower")
    return f"{_triton_version()} compiled a small kernel, and it computed what it should"


def _triton_version() -> str | None:
    return _version("triton") or _version("triton-windows")


def _triton_state(profile: Profile | None) -> str | None:
    version = _triton_version()
    if version is None or profile is None or profile.device == "cpu":
        return version
    return f"{version}, kernels run" if profile.kernels == "triton" else f"{version}, kernels do not run"


def _device(profile: Profile | None) -> tuple[str, int]:
    """(what computes, bytes of its memory)."""
    import psutil

    if profile is None or profile.device == "cpu":
        cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
        return f"CPU, {cores} cores", psutil.virtual_memory().total
    import torch

    card = torch.cuda.get_device_properties(profile.device)
    return f"{card.name} ({profile.device}, compute capability {card.major}.{card.minor})", card.total_memory


def _run(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except Exception as error:
        return Check(name, False, str(as_app_error(error)))


def _python() -> str:
    return f"{sys.version.split()[0]} at {sys.executable}"


def _torch() -> str:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    total = float((torch.ones(64, 64) @ torch.ones(64, 64)).sum())
    if total != 64.0**3:
        raise RuntimeError(f"a matrix product gave {total}, not {64.0**3}")
    return f"{torch.__version__}, {build}, {torch.get_num_threads()} threads"


def _kernels() -> str:
    from engine.profiles import cpu_kernels

    compiled, detail = cpu_kernels()
    if not compiled:
        raise RuntimeError(f"{detail}; answers come slower. Run `python3 installer setup` again")
    return detail


def _packages() -> str:
    names = (
        "numba",
        "gradio",
        "gguf",
        "tokenizers",
        "sqlite-utils",
        "xxhash",
        "pypdfium2",
        "pypdf",
        "pathspec",
        "huggingface-hub",
    )
    missing = [name for name in names if _version(name) is None]
    if missing:
        raise RuntimeError(f"missing: {', '.join(missing)}; run `python3 installer setup` again")
    return ", ".join(f"{name} {_version(name)}" for name in names)


def _sqlite() -> str:
    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE VIRTUAL TABLE t USING fts5 (text, tokenize='trigram')")
        db.execute("INSERT INTO t VALUES ('unabridged')")
        if db.execute("SELECT count(*) FROM t WHERE t MATCH 'abridg'").fetchone()[0] != 1:
            raise RuntimeError("trigram search does not find what it should")
    guarded = "" if sqlite3.sqlite_version_info >= _SAFE_WAL else "; one process at a time is enforced by a lock"
    return f"{sqlite3.sqlite_version} with full-text search{guarded}"


def _data_folder(paths: Paths) -> str:
    paths.prepare()
    return f"{paths.root} can be written"


def _disk(paths: Paths) -> str:
    free = shutil.disk_usage(paths.root).free
    if free < _LEAST_DISK:
        raise RuntimeError(f"only {format_size(free)} free; make room or choose another --data-dir")
    return f"{format_size(free)} free"


def _database(paths: Paths) -> str:
    from storage import DataFolderBusy, DataFolderLock, Library

    try:
        lock = DataFolderLock(paths.root).acquire()
    except DataFolderBusy as busy:
        return f"in use: {busy.message}"
    try:
        library = Library.open(paths.root)
        try:
            return f"{len(library.documents())} documents, {len(library.conversations())} conversations"
        finally:
            library.close()
    finally:
        lock.release()


def _starter(models: Models) -> str:
    info = models.resolve("starter")
    return f"{info.label}, {format_size(info.size)}, {info.path}"


def _model(models: Models, settings: Settings) -> str:
    info = models.resolve(settings.model)
    context = settings.context or info.context
    return f"{info.name}: {info.label}, {info.family}, {format_size(info.size)}, {context:,} tokens of context"


def _room(models: Models, settings: Settings, found: _Found) -> str:
    """How long a context would be, were the chosen model loaded now. Reads its shapes, no weights."""
    if found.profile is None:
        raise RuntimeError("there is no profile")
    from app.wiring import engine_config
    from engine.kv_memory import format_key
    from engine.load import kept_scorers
    from engine.profiles import estimated_context
    from engine.weights import open_model

    info = models.resolve(settings.model)
    config = engine_config(settings, info)
    with open_model(config.model) as source:
        found.largest_context = estimated_context(config, found.profile, source.config, kept_scorers(config))
        kept = format_key(source.config, config.kv_format, config.wide_key_layers)
    return f"{found.largest_context:,} tokens of {info.name} fit with KV {kept} (estimate)"


def _generation(models: Models, settings: Settings) -> str:
    """Loads the chosen model, if it is small, else the starter, and lets it say one token."""
    from app.wiring import engine_config
    from engine import Engine, Sampling

    info = _small_one(models, settings)
    engine = Engine.load(replace(engine_config(settings, info), context=_TINY_CONTEXT))
    try:
        ids = engine.tokenizer.encode("The capital of France is")
        events = list(engine.generate(ids, Sampling(max_tokens=1)))
        stats = events[-1].stats  # pyright: ignore[reportAttributeAccessIssue]  # Done is always last
        if stats.output_tokens != 1:
            raise RuntimeError(f"the engine gave {stats.output_tokens} tokens instead of 1")
        return f"{info.name} read {len(ids)} tokens and answered one in {stats.ttft_s:.2f} s"
    finally:
        engine.close()


def _small_one(models: Models, settings: Settings) -> ModelInfo:
    chosen = models.resolve(settings.model)
    return chosen if chosen.parameters < _SMALL else models.resolve("starter")


def _port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1 can be served, for instance on port {listener.getsockname()[1]}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
