"""Read a folder as one document: its text files in one child process, each PDF in a child of its own."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.errors import BadInput, PasswordNeeded
from app.ingest import detect, kinds
from app.ingest.child import ChildStopped, run_child
from app.ingest.disk import NotInside, open_inside
from app.ingest.extracted import Extracted, ExtractedFile, ExtractedPage, Limits, OutlineEntry, Skipped
from app.ingest.files import Progress, extractor, printable, read_descriptor
from app.ingest.walk import BEYOND_LIMIT
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
) -> Extracted:
    """All readable files below a folder as one document; labels are "src/a.py:L1-80", "a.pdf:p12", "b.pptx:Slide 4".

    Files changed least recently come first, so that re-reading a changed folder costs least; with `earlier`, those that
    are as they were then come before all others in the order they had. Files that are left out are in `skipped` with
    the reason. progress(done, total) counts files. A password is tried on every encrypted document. Raises BadInput
    (nothing to read, not a folder) and Cancelled.
    """
    limits = limits or FOLDER_LIMITS
    path = _checked(path)
    folder = _Folder(printable(path.name or str(path)), progress, limits, earlier or Earlier())
    try:
        known = folder.earlier.unchanged
        request = request_line("folder", folder.name, limits, path=os.fspath(path), known=known)
        run_child(request, folder.take, limits=limits, cancel=cancel)
    except ChildStopped as stop:
        folder.stopped(stop.reason)
    for entry in [entry for entry in folder.entries if entry.waits]:
        folder.read_alone(path, entry, password, cancel)
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
) -> Extracted:
    """A zip or tar archive as one document, by the rules of `read_folder`, in order of the paths in it.

    It is read in memory. Entries that could do harm (links, devices, paths that lead outside) are in `skipped`.
    """
    limits = limits or FOLDER_LIMITS
    archive = _Folder(name, progress, limits, Earlier())
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


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier reading of the same folder knew. Paths are those of the file system, not their shown form.

    order: (path, sha256) as the files stood then. unchanged: (size, modified) by path of files that need not be opened
    while these are the same. facts: (sha256, extractor) of those. text: pages (label in the file, text, flag) that an
    extractor once made of these bytes, or None.
    """

    order: Sequence[tuple[str, str]] = ()
    unchanged: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    facts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    text: Callable[[str, str], list[tuple[str, str, str]] | None] = lambda sha256, extractor: None


@dataclass(slots=True)
class _Entry:
    """One file of the folder; pages are (label, text, flag). waits: its text comes after the walk."""

    path: str
    waits: bool
    size: int = 0
    modified: int = 0
    sha256: str = ""
    extractor: str = ""
    pages: tuple[tuple[str, str, str], ...] = ()
    outline: tuple[OutlineEntry, ...] = ()


class _Folder:
    """Collects what the walking child sends and what the documents hold."""

    def __init__(self, name: str, progress: Progress | None, limits: Limits, earlier: Earlier) -> None:
        self.name, self.progress, self.limits, self.earlier = name, progress, limits, earlier
        self.entries: list[_Entry] = []
        self.left_out: list[ExtractedFile] = []
        self.skipped: list[Skipped] = []
        self.warnings: list[str] = []
        self.done = self.total = 0
        self.partial = False
        self.size, self.sha256 = 0, ""  # of an archive

    def take(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "start":
                self.total = message["total"]
                self._tell(0)
            case "skip":
                self._skip(message["path"], message["reason"])
                if "size" in message:
                    facts = (message["size"], message["modified"], message.get("sha256", ""))
                    self.left_out.append(ExtractedFile(message["path"], *facts, skipped=message["reason"]))
                self._tell(int(self.total > 0))  # before the start nothing is counted
            case "file":
                self.size, self.sha256 = message["size"], message["sha256"]
            case "file_text":
                path = printable(message["path"])
                pages = tuple((f"{path}:{label}", text, flag) for label, text, flag in message["pages"])
                facts = (message["size"], message["modified"], message["sha256"], extractor(message["kind"]))
                outline = tuple(OutlineEntry(**line) for line in message["outline"])
                self.entries.append(_Entry(message["path"], False, *facts, pages, outline))
                self.warnings.extend(f"{path}: {warning}" for warning in message["warnings"])
                self._tell(1)
            case "unchanged":
                self._as_before(message["path"])
            case "document":
                self.entries.append(_Entry(message["path"], True))

    def _as_before(self, path: str) -> None:
        """A file of the same size and time as in the earlier reading: its text is taken from there."""
        facts = (*self.earlier.unchanged[path], *self.earlier.facts[path])
        entry = _Entry(path, False, *facts)
        entry.waits = not self._take_known(entry)
        self.entries.append(entry)
        self._tell(int(not entry.waits))

    def _take_known(self, entry: _Entry) -> bool:
        known = self.earlier.text(entry.sha256, entry.extractor)
        if known is not None:
            entry.pages = tuple((f"{printable(entry.path)}:{label}", text, flag) for label, text, flag in known)
        return known is not None

    def stopped(self, reason: str) -> None:
        self.partial = True
        last = f"after {printable(self.entries[-1].path)}" if self.entries else "at the beginning"
        behind = self.total - self.done - sum(entry.waits for entry in self.entries)
        missing = (
            f"{behind} files are missing" if behind else "the rest is missing" if self.total else "nothing was read"
        )
        self.warnings.append(f"Reading {self.name} stopped {last}, because {reason}; {missing}.")

    def read_alone(self, root: Path, entry: _Entry, password: str | None, cancel: threading.Event | None) -> None:
        """Fill the entry from a file that gets a child of its own, or move it to the skipped files."""

        def read() -> Extracted | None:
            fd = open_inside(root, entry.path)
            try:
                info = os.fstat(fd)
                entry.size, entry.modified = info.st_size, info.st_mtime_ns
                with os.fdopen(os.dup(fd), "rb") as file:
                    entry.extractor = extractor(detect.kind_of(entry.path, file))
                    entry.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                if self._take_known(entry):
                    return None
                os.lseek(fd, 0, os.SEEK_SET)
                name = printable(entry.path)
                return read_descriptor(
                    fd, root / entry.path, name, password=password, cancel=cancel, limits=_for_one(self.limits)
                )
            finally:
                os.close(fd)

        self.fill(entry, read)

    def fill(self, entry: _Entry, read: Callable[[], Extracted | None]) -> None:
        """Take over what `read` gives (None: the entry is filled already), or move the entry to the skipped files."""
        path = printable(entry.path)
        try:
            found = read()
        except (NotInside, BadInput) as error:
            reason = "protected by a password" if isinstance(error, PasswordNeeded) else str(error)
            self._skip(entry.path, reason)
            self.left_out.append(ExtractedFile(entry.path, entry.size, entry.modified, entry.sha256, skipped=reason))
            self.entries.remove(entry)
        else:
            if found is not None:
                self._take_over(entry, path, found)
        self._tell(1)

    def _take_over(self, entry: _Entry, path: str, found: Extracted) -> None:
        entry.size, entry.sha256, entry.outline = found.size, found.sha256, found.outline
        entry.extractor = found.extractor
        # pages that a document counts itself get a p; other labels name a place: "Slide 4"
        marks = ["p" if found.kind == "pdf" or page.label.isdigit() else "" for page in found.pages]
        entry.pages = tuple(
            (f"{path}:{mark}{page.label}", page.text, page.flag) for mark, page in zip(marks, found.pages)
        )
        self.warnings.extend(found.warnings)
        self.partial |= found.extractor.endswith("+partial")

    def _skip(self, path: str, reason: str) -> None:
        self.skipped.append(Skipped(printable(path), reason))

    def _tell(self, more: int) -> None:
        self.done += more
        if self.progress is not None and self.total:
            self.progress(self.done, self.total)

    def _in_order(self) -> None:
        """Unchanged files as they stood before, then the others, least recently changed first (to the minute)."""
        before = {known: place for place, known in enumerate(self.earlier.order)}
        last = len(before)
        self.entries.sort(
            key=lambda entry: (
                before.get((entry.path, entry.sha256), last),
                entry.modified // 60_000_000_000,
                entry.path,
            )
        )

    def extracted(self, kind: str) -> Extracted:
        """kind: folder or archive."""
        self._in_order()
        self._keep_within_limits()
        pages = [page for entry in self.entries for page in entry.pages]
        if not any(text for _, text, _ in pages):
            count = f" ({len(self.skipped)} files were left out)" if self.skipped else ""
            raise BadInput(f"{self.name} holds no file that can be read{count}.", f"Supported are {kinds.SUPPORTED}.")
        outline: list[OutlineEntry] = []
        files: list[ExtractedFile] = []
        first = 1
        for entry in self.entries:
            facts = (entry.size, entry.modified, entry.sha256, entry.extractor, first, len(entry.pages))
            files.append(ExtractedFile(entry.path, *facts))
            outline.append(OutlineEntry(printable(entry.path), first, 0))
            outline.extend(OutlineEntry(line.title, line.page + first - 1, line.level + 1) for line in entry.outline)
            first += len(entry.pages)
        hashes = "".join(sorted(f"{entry.path}\0{entry.sha256}\n" for entry in self.entries))
        return Extracted(
            name=self.name,
            kind=kind,
            sha256=self.sha256 or hashlib.sha256(hashes.encode("utf-8", "surrogateescape")).hexdigest(),
            size=self.size or sum(entry.size for entry in self.entries),
            extractor=extractor(kind) + ("+partial" if self.partial else ""),
            pages=tuple(ExtractedPage(index, *page) for index, page in enumerate(pages, 1)),
            skipped=tuple(sorted(self.skipped, key=lambda skipped: skipped.path)),
            warnings=tuple(self.warnings),
            outline=tuple(outline),
            files=(*files, *self.left_out),
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
                facts = (entry.size, entry.modified, entry.sha256)
                self.left_out.append(ExtractedFile(entry.path, *facts, skipped=BEYOND_LIMIT))
        left_out = sum(1 for skipped in self.skipped if skipped.reason == BEYOND_LIMIT)
        if left_out:
            self.partial = True
            self.warnings.append(f"{left_out} files of {self.name} were left out: together they hold too much text.")
