"""Read a folder as one document: its text files in one child process, each PDF in a child of its own."""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.errors import BadInput
from app.ingest import detect
from app.ingest import ocr as tesseract
from app.ingest.child import ChildStopped, run_child
from app.ingest.collected import Collected, Earlier, Entry, Recognition
from app.ingest.disk import open_inside
from app.ingest.extracted import Extracted, Limits
from app.ingest.files import Progress, Scans, extractor, printable, read_descriptor
from app.ingest.worker import request_line

FOLDER_LIMITS = Limits(text_bytes=100_000_000, pages=50_000)
"""A repository of thousands of files is listed whole, so that what is read can be chosen from all of it."""


def read_folder(
    path: Path,
    *,
    password: str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    limits: Limits | None = None,
    earlier: Earlier | None = None,
    ocr: str = "",
    scans: Scans | None = None,
) -> Extracted:
    """All readable files below a folder as one document; labels are "src/a.py:L1-80", "a.pdf:p12", "b.pptx:Slide 4".

    Files changed least recently come first, so that re-reading a changed folder costs least; with `earlier`, those that
    are as they were then come before all others in the order they had. Files that are left out are in `skipped` with
    the reason. progress(done, total) counts files. A password is tried on every encrypted document. ocr, scans: as for
    `read_file`; with `scans` progress counts those pages. Raises BadInput (nothing to read, not a folder), NeedsOcr
    and Cancelled.
    """
    limits = limits or FOLDER_LIMITS
    path = _checked(path)
    if ocr:
        tesseract.check(ocr)
    name = printable(path.name or str(path))
    folder = Collected(name, progress, limits, earlier or Earlier(), Recognition(ocr, scans or {}))
    try:
        known = folder.earlier.unchanged
        request = request_line("folder", folder.name, limits, path=os.fspath(path), known=known)
        run_child(request, folder.take, limits=limits, cancel=cancel)
    except ChildStopped as stop:
        folder.stopped(stop.reason)
    for entry in [entry for entry in folder.entries if entry.waits]:
        _read_alone(folder, path, entry, password, cancel)
    return folder.extracted("folder")


def read_archive(
    fd: int,
    path: Path,
    name: str,
    *,
    password: str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    limits: Limits | None = None,
    ocr: str = "",
    scans: Scans | None = None,
) -> Extracted:
    """A zip or tar archive as one document, by the rules of `read_folder`, in order of the paths in it.

    It is read in memory. Entries that could do harm (links, devices, paths that lead outside) are in `skipped`.
    """
    limits = limits or FOLDER_LIMITS
    archive = Collected(name, progress, limits, Earlier(), Recognition(ocr, scans or {}))
    source: dict[str, Any] = {"fd": fd} if os.name == "posix" else {"path": os.path.abspath(path)}
    fds = (fd,) if os.name == "posix" else ()
    try:
        request = request_line("archive", name, limits, **source)
        run_child(request, archive.take, limits=limits, cancel=cancel, pass_fds=fds)
    except ChildStopped as stop:
        archive.stopped(stop.reason)
    for entry in [entry for entry in archive.entries if entry.waits]:
        archive.fill(
            entry,
            lambda entry=entry: read_descriptor(
                fd,
                path,
                printable(entry.path),
                password=password,
                cancel=cancel,
                limits=_for_one(limits),
                member=entry.path,
                **archive.recognition(entry.path),
            ),
        )
    return archive.extracted("archive")


def _for_one(limits: Limits) -> Limits:
    """What one file of a folder may hold: no more than if it came alone."""
    alone = Limits()
    return replace(limits, text_bytes=min(limits.text_bytes, alone.text_bytes), pages=min(limits.pages, alone.pages))


def list_folder(
    path: Path, *, cancel: threading.Event | None = None, limits: Limits | None = None
) -> dict[str, tuple[int, int]]:
    """(size, modified) of every file below a folder that its name does not keep from being read, without opening one.

    Raises BadInput (not a folder, or it took too long) and Cancelled.
    """
    limits = limits or Limits()
    path = _checked(path)
    found: dict[str, tuple[int, int]] = {}

    def take(message: dict[str, Any]) -> None:
        if message["type"] == "found":
            found[message["path"]] = (message["size"], message["modified"])

    try:
        run_child(request_line("list", path.name, limits, path=os.fspath(path)), take, limits=limits, cancel=cancel)
    except ChildStopped as stop:
        name = printable(str(path))
        raise BadInput(f"{name} could not be looked through, because {stop.reason}.", "Try again later.") from stop
    return found


def _checked(path: Path) -> Path:
    path = Path(path)
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise BadInput(f"{printable(str(path))} {what}.", "Check the path and the spelling.")
    return Path(os.path.abspath(path))


def _read_alone(
    folder: Collected, root: Path, entry: Entry, password: str | None, cancel: threading.Event | None
) -> None:
    """Fill the entry from a file that gets a child of its own, or move it to the skipped files."""

    def read() -> Extracted | None:
        fd = open_inside(root, entry.path)
        try:
            info = os.fstat(fd)
            entry.size, entry.modified = info.st_size, info.st_mtime_ns
            with os.fdopen(os.dup(fd), "rb") as file:
                entry.extractor = extractor(detect.kind_of(entry.path, file))
                entry.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if folder.take_known(entry):
                return None
            os.lseek(fd, 0, os.SEEK_SET)
            name = printable(entry.path)
            return read_descriptor(
                fd,
                root / entry.path,
                name,
                password=password,
                cancel=cancel,
                limits=_for_one(folder.limits),
                **folder.recognition(entry.path),
            )
        finally:
            os.close(fd)

    folder.fill(entry, read)
