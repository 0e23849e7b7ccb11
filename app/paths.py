"""Where the app keeps things: one data folder, private to the user, with a fixed layout."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.errors import AppError

DATA_DIR_VARIABLE = "UNABRIDGED_DATA_DIR"
PRIVATE_FILES = ("library.db*", "kvcache.db*", "settings.toml", "app.lock")


def resolve_data_dir(given: Path | str | None, environment: Mapping[str, str] = os.environ) -> tuple[Path, str]:
    """(absolute data folder, where the choice came from): given, else the variable, else the user's own."""
    if given is not None:
        return Path(given).expanduser().absolute(), "flag --data-dir"
    named = environment.get(DATA_DIR_VARIABLE)
    if named:
        return Path(named).expanduser().absolute(), f"environment {DATA_DIR_VARIABLE}"
    import platformdirs

    return Path(platformdirs.user_data_dir("unabridged", appauthor=False)).absolute(), "default"


@dataclass(frozen=True, slots=True)
class Paths:
    """The layout below one data folder. library.db and kvcache.db lie in `root` itself."""

    root: Path

    @property
    def settings(self) -> Path:
        return self.root / "settings.toml"

    @property
    def models(self) -> Path:
        """Downloaded and imported models, one file or folder each."""
        return self.root / "models"

    @property
    def documents(self) -> Path:
        """The app's own copies of added files, so that a cited page still opens when the original is gone."""
        return self.root / "documents"

    @property
    def temp(self) -> Path:
        """Uploads on their way in, and Gradio's temporary files."""
        return self.root / "temp"

    @property
    def compiled(self) -> Path:
        """Compiled kernels, where they cannot be kept beside their source."""
        return self.root / "compiled"

    @property
    def gates(self) -> Path:
        """Gates of calibrated models, a file each."""
        return self.root / "gates"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def prepare(self) -> Paths:
        """Makes the folders, readable by their owner only. Raises AppError when the place cannot be written."""
        try:
            for folder in (self.root, self.models, self.documents, self.temp, self.logs):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if folder != self.root:
                    folder.chmod(0o700)
            self._close_files()
        except OSError as error:
            raise AppError(
                f"The data folder {self.root} cannot be written: {error.strerror or error}.",
                "Choose another one with --data-dir, or make room.",
            ) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise AppError(f"The data folder {self.root} cannot be written.", "Choose another one with --data-dir.")
        return self

    def _close_files(self) -> None:
        """The root may be the user's own folder, open to others: then each file is what keeps text private. Files that
        are new get their mode from `private_files`, and SQLite gives -wal and -shm that of the database."""
        if os.name != "posix":
            return
        for name in PRIVATE_FILES:
            for file in self.root.glob(name):
                with contextlib.suppress(OSError):  # another user's, or a disk without modes
                    if not file.is_symlink() and file.stat().st_mode & 0o077:
                        file.chmod(0o600)


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """While inside, what this process makes is readable by its owner only."""
    if os.name != "posix":
        yield
        return
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
