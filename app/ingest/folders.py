"""Read a folder as one document: its text files in one child process, each PDF in a child of its own."""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import BadInput, PasswordNeeded
from app.ingest import kinds
from app.ingest.child import ChildStopped, run_child
from app.ingest.extracted import Extracted, ExtractedPage, Limits, OutlineEntry, Skipped
from app.ingest.files import Progress, extractor, printable, read_descriptor
from app.ingest.walk import BEYOND_LIMIT, NotInside, open_inside
from app.ingest.worker import request_line


def read_folder(
    path: Path,
    *,
    password: str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    limits: Limits | None = None,
) -> Extracted:
    """All readable files below a folder as one document; page labels are "src/a.py:L1-80" or "a.pdf:p12".

    Files that are left out are in `skipped` with the reason. progress(done, total) counts files. A password is tried on
    every encrypted PDF. Raises BadInput (nothing to read, not a folder) and Cancelled.
    """
    path, limits = Path(path), limits or Limits()
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise BadInput(f"{printable(str(path))} {what}.", "Check the path and the spelling.")
    path = Path(os.path.abspath(path))
    folder = _Folder(printable(path.name or str(path)), progress, limits)
    try:
        request = request_line("folder", folder.name, limits, path=os.fspath(path))
        run_child(request, folder.take, limits=limits, cancel=cancel)
    except ChildStopped as stop:
        folder.stopped(stop.reason)
    for entry in [entry for entry in folder.entries if entry.is_pdf]:
        folder.read_pdf(path, entry, password, cancel)
    return folder.extracted()


@dataclass(slots=True)
class _Entry:
    """One file of the folder; pages are (label, text, flag)."""

    path: str
    is_pdf: bool
    size: int = 0
    sha256: str = ""
    pages: tuple[tuple[str, str, str], ...] = ()
    outline: tuple[OutlineEntry, ...] = ()


class _Folder:
    """Collects what the walking child sends and what the PDFs hold."""

    def __init__(self, name: str, progress: Progress | None, limits: Limits) -> None:
        self.name, self.progress, self.limits = name, progress, limits
        self.entries: list[_Entry] = []
        self.skipped: list[Skipped] = []
        self.warnings: list[str] = []
        self.done = self.total = 0
        self.partial = False

    def take(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "start":
                self.total = message["total"]
                self._tell(0)
            case "skip":
                self._skip(message["path"], message["reason"])
                self._tell(int(self.total > 0))  # before the start nothing is counted
            case "file_text":
                path = printable(message["path"])
                pages = tuple((f"{path}:{label}", text, "") for label, text in message["pages"])
                self.entries.append(_Entry(message["path"], False, message["size"], message["sha256"], pages))
                if message["warning"]:
                    self.warnings.append(f"{path}: {message['warning']}")
                self._tell(1)
            case "pdf":
                self.entries.append(_Entry(message["path"], True))

    def stopped(self, reason: str) -> None:
        self.partial = True
        last = f"after {printable(self.entries[-1].path)}" if self.entries else "at the beginning"
        missing = f"{self.total - self.done} files are missing" if self.total else "nothing was read"
        self.warnings.append(f"Reading {self.name} stopped {last}, because {reason}; {missing}.")

    def read_pdf(self, root: Path, entry: _Entry, password: str | None, cancel: threading.Event | None) -> None:
        """Fill the entry from a PDF, or move it to the skipped files."""
        path = printable(entry.path)
        try:
            fd = open_inside(root, entry.path)
            try:
                found = read_descriptor(
                    fd, root / entry.path, path, password=password, cancel=cancel, limits=self.limits
                )
            finally:
                os.close(fd)
        except (NotInside, BadInput) as error:
            reason = "protected by a password" if isinstance(error, PasswordNeeded) else str(error)
            self._skip(entry.path, reason)
            self.entries.remove(entry)
        else:
            entry.size, entry.sha256, entry.outline = found.size, found.sha256, found.outline
            entry.pages = tuple((f"{path}:p{page.label}", page.text, page.flag) for page in found.pages)
            self.warnings.extend(found.warnings)
            self.partial |= found.extractor.endswith("+partial")
        self._tell(1)

    def _skip(self, path: str, reason: str) -> None:
        self.skipped.append(Skipped(printable(path), reason))

    def _tell(self, more: int) -> None:
        self.done += more
        if self.progress is not None and self.total:
            self.progress(self.done, self.total)

    def extracted(self) -> Extracted:
        self._keep_within_limits()
        pages = [page for entry in self.entries for page in entry.pages]
        if not any(text for _, text, _ in pages):
            count = f" ({len(self.skipped)} files were left out)" if self.skipped else ""
            raise BadInput(f"{self.name} holds no file that can be read{count}.", f"Supported are {kinds.SUPPORTED}.")
        outline: list[OutlineEntry] = []
        first = 1
        for entry in self.entries:
            outline.append(OutlineEntry(printable(entry.path), first, 0))
            outline.extend(OutlineEntry(line.title, line.page + first - 1, line.level + 1) for line in entry.outline)
            first += len(entry.pages)
        hashes = "".join(f"{entry.path}\0{entry.sha256}\n" for entry in self.entries)
        return Extracted(
            name=self.name,
            kind="folder",
            sha256=hashlib.sha256(hashes.encode("utf-8", "surrogateescape")).hexdigest(),
            size=sum(entry.size for entry in self.entries),
            extractor=extractor("folder") + ("+partial" if self.partial else ""),
            pages=tuple(ExtractedPage(index, *page) for index, page in enumerate(pages, 1)),
            skipped=tuple(sorted(self.skipped, key=lambda skipped: skipped.path)),
            warnings=tuple(self.warnings),
            outline=tuple(outline),
        )

    def _keep_within_limits(self) -> None:
        """Whole files beyond the folder's limits on text and pages are left out, and listed."""
        pages = text_bytes = 0
        for entry in list(self.entries):
            pages += len(entry.pages)
            text_bytes += sum(len(text.encode()) for _, text, _ in entry.pages)
            if pages > self.limits.pages or text_bytes > self.limits.text_bytes:
                self.entries.remove(entry)
                self._skip(entry.path, BEYOND_LIMIT)
        left_out = sum(1 for skipped in self.skipped if skipped.reason == BEYOND_LIMIT)
        if left_out:
            self.partial = True
            self.warnings.append(f"{left_out} files of {self.name} were left out: together they hold too much text.")
