"""Ingestion: files and folders to pages of text, each file in a child process that has limits and can be killed.

`read_file`, `read_folder`, `read` (either) and `read_many` (a batch, where one bad file never stops the others) give
`Extracted` or raise `app.errors.BadInput`, `PasswordNeeded` or `Cancelled`. Nothing is left out without being named in
`skipped` or `warnings`. `identify` gives a file's hash and extractor without reading its text, to look it up.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.errors import AppError
from app.ingest.extracted import Extracted, ExtractedFile, ExtractedPage, Limits, OutlineEntry, Skipped, page_ranges
from app.ingest.files import extractor, identify, printable, read_file
from app.ingest.folders import Earlier, list_folder, read_folder

__all__ = [
    "Earlier",
    "Extracted",
    "ExtractedFile",
    "ExtractedPage",
    "Limits",
    "OutlineEntry",
    "Skipped",
    "extractor",
    "identify",
    "list_folder",
    "page_ranges",
    "printable",
    "read",
    "read_file",
    "read_folder",
    "read_many",
]


def read(path: Path, **options: Any) -> Extracted:
    """A file or a folder, whichever the path is. Options as for `read_file`."""
    return read_folder(path, **options) if Path(path).is_dir() else read_file(path, **options)


def read_many(paths: Iterable[Path], **options: Any) -> list[tuple[Path, Extracted | AppError]]:
    """Each path with what came of it, in the given order: one bad file never stops the others."""
    results: list[tuple[Path, Extracted | AppError]] = []
    for path in paths:
        try:
            results.append((path, read(path, **options)))
        except AppError as error:
            results.append((path, error))
    return results
