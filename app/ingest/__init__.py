"""Ingestion: files and folders to pages of text, each file in a child process that has limits and can be killed.

`read_file`, `read_folder`, `read` (either) and `read_many` (a batch, where one bad file never stops the others) give
`Extracted` or raise `app.errors.BadInput`, `PasswordNeeded` or `Cancelled`. Nothing is left out without being named in
`skipped` or `warnings`. `identify` gives a file's hash and extractor without reading its text, to look it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from app.errors import AppError
from app.ingest.collected import Earlier
from app.ingest.extracted import (
    Extracted,
    ExtractedFile,
    ExtractedPage,
    FilePageText,
    Limits,
    OutlineEntry,
    Skipped,
    page_ranges,
    unread,
)
from app.ingest.files import Scans, extractor, identify, ocr_of, printable, read_file
from app.ingest.folders import list_folder, read_folder
from app.ingest.pool import ahead

__all__ = [
    "Earlier",
    "Extracted",
    "ExtractedFile",
    "ExtractedPage",
    "FilePageText",
    "Limits",
    "OutlineEntry",
    "Scans",
    "Skipped",
    "extractor",
    "identify",
    "list_folder",
    "ocr_of",
    "page_ranges",
    "printable",
    "read",
    "read_file",
    "read_folder",
    "read_many",
    "unread",
]


def read(path: Path, **options: Any) -> Extracted:
    """A file or a folder, whichever the path is. Options as for `read_file`."""
    return read_folder(path, **options) if Path(path).is_dir() else read_file(path, **options)


def read_many(
    paths: Iterable[Path], *, progress: Callable[[Path, int, int], None] | None = None, **options: Any
) -> list[tuple[Path, Extracted | AppError]]:
    """Each path with what came of it, in the given order: one bad file never stops the others.

    As many files are read at once as there are cores; progress(path, done, total) is called in this thread.
    """
    wanted = [Path(path) for path in paths]

    def task(path: Path) -> Callable[[Callable[..., None]], Extracted]:
        return lambda tell: read(path, progress=lambda done, total: tell(path, done, total), **options)

    results: list[tuple[Path, Extracted | AppError]] = []
    for path, future in zip(wanted, ahead([task(path) for path in wanted], progress or _silent), strict=True):
        error = future.exception()
        if error is not None and not isinstance(error, AppError):
            raise error
        results.append((path, error if error is not None else future.result()))
    return results


def _silent(*_news: object) -> None:
    """Nobody wants to know how far the reading is."""
