"""Puts the parts together: one App per data folder. Opening it reads no weights; the engine loads when first needed."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.document_tokens import DocumentTokens
from app.errors import WrongUse, as_app_error
from app.gates import calibrated
from app.jobs import EngineService
from app.keeping import Leaving
from app.model_face import ModelFace, open_face
from app.models import ModelInfo, Models
from app.paths import Paths
from app.pins import follow, sweep
from app.snapshots import SnapshotWriter
from storage import DataFolderLock, Library, SnapshotStore, default_quota

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.settings import Settings
    from engine import Engine, EngineConfig, Sparsity
    from engine.profile_rules import Profile


LOADING_STEPS = {
    "open": ("Opening the model", 0.0, 0.02),
    "weights": ("Reading the weights", 0.02, 0.6),
    "packing": ("Packing the weights", 0.6, 0.9),
    "kernels": ("Compiling for this machine (the first start takes longer)", 0.9, 1.0),
    "ready": ("Ready", 1.0, 1.0),
}
"""The engine's loading steps: what is shown, and from where to where each one moves the bar."""


@dataclass(slots=True)
class App:
    """Everything that a screen or a command needs. Use open() and close(), or `with App.open(settings) as app`."""

    settings: Settings
    data_dir: Path
    library: Library
    snapshots: SnapshotStore
    snapshot_writer: SnapshotWriter
    engine_service: EngineService
    models: Models
    model: ModelInfo
    lock: DataFolderLock | None
    _face: ModelFace | None = None
    _document_tokens: DocumentTokens | None = None
    _face_lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, settings: Settings, *, lock: bool = True, page: bool = False) -> App:
        """Opens the data folder, making it if need be. lock: refuse a folder that a running app holds. page: this one
        will serve its page, which a second start waits for.

        Errors: WrongUse or BadInput for the model, storage's own for the data folder.
        """
        paths = Paths(settings.data_dir).prepare()
        models = Models(paths.models)
        model = models.resolve(settings.model)
        held = DataFolderLock(paths.root).acquire(starting=page) if lock else None
        try:
            library = Library.open(paths.root)
            try:
                snapshots = SnapshotStore.open(paths.root, snapshot_quota(settings, paths.root))
            except BaseException:
                library.close()
                raise
        except BaseException:
            if held is not None:
                held.release()
            raise
        writer = SnapshotWriter(snapshots, lambda id: follow(library, snapshots, id))
        writer.afterwards("", lambda: sweep(library, snapshots))
        return cls(
            settings=settings,
            data_dir=paths.root,
            library=library,
            snapshots=snapshots,
            snapshot_writer=writer,
            engine_service=EngineService(engine_loader(settings, model, writer)),
            models=models,
            model=model,
            lock=held,
        )

    def face(self) -> ModelFace:
        """Tokenizer and template of the model, read once. Errors: AppError."""
        with self._face_lock:
            if self._face is None:
                self._face = open_face(self.model, self.settings.context)
            return self._face

    def document_tokens(self) -> DocumentTokens:
        """Token ids and counts of documents for this model. Errors: AppError for the model's file."""
        face = self.face()
        with self._face_lock:
            if self._document_tokens is None:
                self._document_tokens = DocumentTokens(
                    self.library, face.tokenizer.encode, face.fingerprint, face.tokenizer.count_many
                )
            return self._document_tokens

    def forget_tokens(self, document_id: str) -> None:
        with self._face_lock:
            if self._document_tokens is not None:
                self._document_tokens.forget(document_id)

    @property
    def profile(self) -> str:
        """The engine's profile; before it is loaded what is known without asking a card, which takes seconds."""
        engine = self.engine_service.engine
        if engine is not None:
            return engine.profile.name
        if self.settings.profile != "auto" or (self.settings.device == "auto" and _may_have_a_card()):
            return self.settings.profile
        return "cpu" if not self.settings.device.startswith("cuda") else "auto"

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together: what the loaded engine offers, before that what the model promises."""
        engine = self.engine_service.engine
        return engine.largest_prompt if engine is not None else (self.settings.context or self.model.context)

    def close(self) -> None:
        """Stops what runs, writes what is left of snapshots, closes files. Safe to call twice."""
        self.engine_service.close()
        self.snapshot_writer.close()
        self.snapshots.close()
        self.library.close()
        if self.lock is not None:
            self.lock.release()

    def __enter__(self) -> App:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def snapshot_quota(settings: Settings, folder: Path) -> int:
    """Bytes for snapshots: as set, else what storage thinks fit for this disk."""
    return settings.cache_quota if settings.cache_quota is not None else default_quota(folder)


def sparsity_of(settings: Settings) -> Sparsity:
    from engine import Sparsity

    return Sparsity(
        budget=settings.sparsity_budget,
        ratio=settings.sparsity_ratio,
        crossover=settings.sparsity_crossover,
        streaming_ratio=settings.sparsity_streaming_ratio,
        logical_pages=settings.sparsity_logical_pages,
        reuse_interval=settings.sparsity_reuse_interval,
        score=settings.sparsity_score,
    )


def _may_have_a_card() -> bool:
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def profile_for(settings: Settings) -> Profile:
    """The profile that this machine gets under these settings. WrongUse for one that it cannot be."""
    from engine.machine import look
    from engine.profile_rules import choose_profile

    try:
        return choose_profile(
            look("cpu" if settings.profile == "cpu" else settings.device),
            settings.profile,
            settings.device,
            kv_format=settings.kv_format,
            weights=settings.decode_weights,
            threads=settings.threads,
        )
    except ValueError as error:
        said = str(error).replace("weights:", "decode_weights:", 1)
        raise WrongUse(f"The setting {said}.", "`unabridged doctor` shows what this machine is.") from error


def engine_config(settings: Settings, model: ModelInfo) -> EngineConfig:
    """What the settings mean for the engine of a model on this machine, and where compiled kernels are kept. WrongUse
    for settings that this machine cannot have."""
    from engine import EngineConfig
    from engine.profiles import keep_compiled_kernels

    profile = profile_for(settings)
    keep_compiled_kernels(Paths(settings.data_dir).compiled)
    return EngineConfig(
        model=model.path,
        context=settings.context or (model.context if model.is_demo else None),
        rope_scaling=model.rope_scaling,
        device=profile.device,
        profile=settings.profile,
        kv_format=profile.kv_format,  # pyright: ignore[reportArgumentType]  # checked by the rules of profiles
        decode_weights=settings.decode_weights,  # pyright: ignore[reportArgumentType]
        prefill_chunk=settings.prefill_chunk,
        threads=settings.threads,
        sparsity=sparsity_of(settings),
        evidence=settings.evidence,
        **calibrated(settings.data_dir, model),
    )


def engine_loader(
    settings: Settings, model: ModelInfo, writer: SnapshotWriter | None = None
) -> Callable[[Callable[[str, float], None]], Engine]:
    """How the engine's thread loads the model; importing torch is part of it, so that opening an App stays quick.

    writer: keeps what conversations lose when memory is short.
    """

    def load(progress: Callable[[str, float], None]) -> Engine:
        from engine import Engine

        def report(step: str, share: float) -> None:
            text, first, last = LOADING_STEPS.get(step, (step, 0.0, 1.0))
            progress(text, first + (last - first) * share)

        try:
            engine = Engine.load(engine_config(settings, model), report)
        except Exception as error:
            raise as_app_error(error) from error
        if writer is not None:
            engine.before_unload = Leaving(engine, writer)
        return engine

    return load
