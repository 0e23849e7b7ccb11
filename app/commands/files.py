"""Adding files to a conversation from the command line, with progress and the password question."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.before import attach_known_folder
from app.commands.common import StatusLine
from app.errors import AppError, PasswordNeeded

if TYPE_CHECKING:
    from app.ingest import Skipped
    from app.wiring import App

_TRIES = 3
_NAMED = 5


def add_password_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--password", metavar="TEXT", help="for encrypted files; asked for on a terminal otherwise; never stored"
    )


def attach(
    app: App, conversation_id: str, paths: Sequence[Path], password: str | None, changed: str | None = None
) -> tuple[str, ...]:
    """Reads and attaches files in the order given; returns what a reader should know. Raises the first file's error.

    changed: how a folder that was read before is brought up to date, 'again' or 'append'.
    """
    warnings: list[str] = []
    for path in paths:
        taken = attach_known_folder(app, conversation_id, path, changed) if changed else None
        warnings += taken if taken is not None else _attach_one(app, conversation_id, path, password)
    return tuple(dict.fromkeys(warnings))


def _attach_one(app: App, conversation_id: str, path: Path, password: str | None) -> list[str]:
    from app import documents
    from app.ingest import ocr
    from app.scans import scans_of

    line = StatusLine()
    tries = 0
    while True:
        tries += 1
        try:
            (added,) = documents.add_files(
                app,
                conversation_id,
                [path],
                passwords={str(path): password} if password is not None else None,
                progress=lambda what, done, total: line.show(f"{what}: page {done} of {total}"),
            )
        finally:
            line.clear()
        if added.document is not None:
            told = [*(_named(path, warning) for warning in added.warnings), *_skipped(path, added.skipped)]
            scans = scans_of(app.library, added.document)
            return [*told, f"{path.name}: {ocr.hint()}"] if scans is not None and not scans.languages else told
        error = added.error or AppError(f"{path.name} could not be read.", "Run it again with --debug.")
        if not isinstance(error, PasswordNeeded):
            raise error
        if not _terminal() or tries == _TRIES:
            raise PasswordNeeded(error.message, "Give the right password with --password TEXT.") from error
        if password is not None:
            print(error.message, file=sys.stderr)
        password = getpass.getpass(f"Password for {path.name}: ")


def _named(path: Path, warning: str) -> str:
    return warning if warning.startswith(f"{path.name}: ") else f"{path.name}: {warning}"


def _skipped(path: Path, skipped: Sequence[Skipped]) -> list[str]:
    """One sentence on what a folder left out, with the first few names and reasons."""
    if not skipped:
        return []
    named = ", ".join(f"{entry.path} ({entry.reason})" for entry in skipped[:_NAMED])
    more = f" and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
    return [f"{path.name}: left out {named}{more}."]


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
