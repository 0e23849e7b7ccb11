"""The user's data folder, found by the app's own rule without the app, and its removal on request.

The rule is that of app/paths.py: UNABRIDGED_DATA_DIR, else what platformdirs calls the user's data folder. Only names
that the app itself makes are deleted, so that a data folder set to a shared place loses nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from console import folder_bytes, say, size_text
from environment import remove_tree, try_lock

OWN_NAMES = ("models", "documents", "temp", "logs", "backups", "settings.toml", "app.lock")
OWN_PREFIXES = ("library.db", "kvcache.db")
LOCK_FILE = "app.lock"


class DataFolderError(Exception):
    """The data was not deleted; the text says why."""


def data_folder(environment: Mapping[str, str], platform: str = sys.platform, home: Path | None = None) -> Path:
    named = environment.get("UNABRIDGED_DATA_DIR")
    if named:
        return Path(named).expanduser().absolute()
    home = home or Path.home()
    if platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local") / "unabridged"
    if platform == "darwin":
        return home / "Library" / "Application Support" / "unabridged"
    shared = environment.get("XDG_DATA_HOME", "").strip()
    return (Path(shared) if shared else home / ".local" / "share") / "unabridged"


def own_entries(folder: Path) -> list[Path]:
    """What the app made in its data folder: the known folders, and the databases with their journals and backups."""
    if not folder.is_dir():
        return []
    return sorted(entry for entry in folder.iterdir() if entry.name in OWN_NAMES or entry.name.startswith(OWN_PREFIXES))


def is_in_use(folder: Path) -> bool:
    """Does a running app hold this folder? Windows needs no question: it refuses to delete open files."""
    lock = folder / LOCK_FILE
    if os.name != "posix" or not lock.exists():
        return False
    descriptor = os.open(lock, os.O_RDWR)
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def _size(entry: Path) -> int:
    return folder_bytes(entry) if entry.is_dir() else entry.lstat().st_size


def remove_data(environment: Mapping[str, str], yes: bool, ask: Callable[[str], str] = input) -> None:
    """Deletes conversations, documents, models and snapshots after asking. Raises DataFolderError when refused."""
    folder = data_folder(environment)
    entries = own_entries(folder)
    if not entries:
        say(f"There is no data in {folder}.")
        return
    if is_in_use(folder):
        raise DataFolderError(f"Unabridged is running on {folder}. Stop it, then type the same command again.")
    if not yes:
        size = size_text(sum(_size(entry) for entry in entries))
        try:
            answer = ask(f"Delete conversations, documents and models ({size}) in {folder}? [yes/no] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() != "yes":
            raise DataFolderError("Nothing was deleted. `python3 installer uninstall --data --yes` does not ask.")
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            entry.unlink()
    left = list(folder.iterdir())
    if left:
        say(f"Deleted the app's data in {folder}; {len(left)} other files there were left alone.")
    else:
        folder.rmdir()
        say(f"Deleted {folder}.")
