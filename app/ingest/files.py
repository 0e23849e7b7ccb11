"""Read one file in a child process; everything that is missing or doubtful is said in words."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.errors import BadInput
from app.ingest import detect, formats, kinds
from app.ingest.child import ChildStopped, run_child
from app.ingest.extracted import Extracted, ExtractedPage, Limits, OutlineEntry, page_ranges
from app.ingest.layout import PageText, assemble
from app.ingest.worker import request_line

Progress = Callable[[int, int], None]
CRASHES = 3  # so many pages of one PDF may break the reader before it is given up
OCR_HINT = "Make its text readable first, for example with `ocrmypdf in.pdf out.pdf`, and open the result."


def extractor(kind: str) -> str:
    """Name and version of what shapes the text of this kind; a change of it means that documents are read anew."""
    from importlib.metadata import version  # here, since it is slow to load and the children do not need it

    if kind == "pdf":
        return f"pdf 2 (pypdfium2 {version('pypdfium2')}, pypdf {version('pypdf')})"
    if kind == "folder":
        return f"folder 2, {extractor('pdf')}, {formats.versions()}"
    if kind == "archive":
        return f"archive 1, {extractor('folder')}"
    return formats.version(kind) if kind in formats.KINDS else "text 1"


def read_file(
    path: Path,
    *,
    password: str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    limits: Limits | None = None,
) -> Extracted:
    """The text of one file, page by page; of an archive, its files as those of a folder.

    progress(done, total) counts pages and is called in this thread. Raises BadInput, PasswordNeeded, Cancelled.
    """
    path = Path(path)
    name = printable(path.name)
    with _opened(path) as fd:
        read = _archive_reader() if _kind(fd, name) == "archive" else read_descriptor
        return read(fd, path, name, password=password, progress=progress, cancel=cancel, limits=limits)


def _kind(fd: int, name: str) -> str:
    with os.fdopen(os.dup(fd), "rb") as file:
        return detect.kind_of(name, file)


def _archive_reader() -> Callable[..., Extracted]:
    from app.ingest.folders import read_archive  # an archive's documents are read by this module again

    return read_archive


def identify(path: Path) -> tuple[str, str]:
    """(sha256, extractor) of a file, as `read_file` would give them, without reading its text. Raises BadInput."""
    path = Path(path)
    with _opened(path) as fd, os.fdopen(os.dup(fd), "rb") as file:
        kind = detect.kind_of(path.name, file)
        return hashlib.file_digest(file, "sha256").hexdigest(), extractor(kind)


def printable(name: str) -> str:
    """A file name that can be shown and stored: bytes that are no UTF-8 and control characters become U+FFFD."""
    name = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in name)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file; never blocks on a FIFO or device. The user named it, so links are followed."""
    name = printable(str(path))
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        if path.is_dir():
            raise BadInput(f"{name} is a folder, not a file.", "Open it as a folder, or choose a file in it.")
        fd = os.open(path, flags)
    except (FileNotFoundError, ValueError) as error:  # ValueError: a zero byte in the name
        raise BadInput(f"{name} does not exist.", "Check the path and the spelling.") from error
    except PermissionError as error:
        raise BadInput(f"{name} may not be read by you.", "Change its permissions or copy it.") from error
    except OSError as error:
        raise BadInput(f"{name} cannot be opened: {error.strerror}.", "Check the path.") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadInput(f"{name} is not a regular file.", f"Supported are {kinds.SUPPORTED}.")
        yield fd
    finally:
        os.close(fd)


def read_descriptor(
    fd: int,
    path: Path,
    name: str,
    *,
    password: str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    limits: Limits | None = None,
    member: str = "",
) -> Extracted:
    """As `read_file`, from an open descriptor; `path` stands in where descriptors cannot be passed to a child.

    member: the document of this name inside of the archive that the descriptor leads to.
    """
    limits = limits or Limits()
    take = _Document(name, progress)
    source: dict[str, Any] = {"fd": fd} if os.name == "posix" else {"path": os.path.abspath(path)}
    fds = (fd,) if os.name == "posix" else ()
    crashes = 0
    while True:
        request = request_line(
            "file", name, limits, password=password, first=len(take.raw) + 1, member=member, **source
        )
        try:
            run_child(request, take.message, limits=limits, cancel=cancel, pass_fds=fds)
            break
        except ChildStopped as stop:
            crashes += 1
            if take.kind == "pdf" and stop.crashed and take.total > len(take.raw) and crashes <= CRASHES:
                take.broken_page()  # go on behind it
                continue
            take.stopped(stop.reason)
            break
    return take.extracted()


def _page_text(message: dict[str, Any]) -> PageText:
    message["edges"] = tuple((place, top) for place, top in message["edges"])
    return PageText(**message)


class _Document:
    """Collects the messages of the children that read one file."""

    def __init__(self, name: str, progress: Progress | None) -> None:
        self.name = name
        self.progress = progress
        self.kind, self.size, self.sha256 = "", 0, ""
        self.total = 0
        self.raw: list[PageText] = []
        self.pages: list[ExtractedPage] = []
        self.outline: list[OutlineEntry] = []
        self.warnings: list[str] = []
        self.stop_reason = ""

    def message(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "file":
                self.kind, self.size, self.sha256 = message["kind"], message["size"], message["sha256"]
            case "start":
                self.total = message["total"]
                self._tell(len(self.raw))
            case "page":
                self.raw.append(_page_text(message["page"]))
                self._tell(len(self.raw))
            case "text_page":
                self.pages.append(
                    ExtractedPage(message["index"], message["label"], message["text"], message.get("flag", ""))
                )
                self._tell(len(self.pages))
            case "outline":
                self.outline = [OutlineEntry(**entry) for entry in message["entries"]]
            case "warning":
                self.warnings.append(message["text"])

    def _tell(self, done: int) -> None:
        if self.progress is not None:
            self.progress(done, self.total)

    def broken_page(self) -> None:
        """The reader broke down on the next page: it stays empty and is named in a warning."""
        index = len(self.raw) + 1
        self.raw.append(PageText(index, str(index), "", damaged=True))

    def stopped(self, reason: str) -> None:
        self.stop_reason = reason

    def extracted(self) -> Extracted:
        pages = tuple(assemble(self.raw) if self.kind == "pdf" else self.pages)
        if not any(page.text and page.flag != "scanned" for page in pages):
            raise self._nothing(pages)
        return Extracted(
            self.name,
            self.kind,
            self.sha256,
            self.size,
            extractor(self.kind) + ("+partial" if self.stop_reason else ""),
            pages,
            (),
            (*self.warnings, *self._page_warnings(pages)),
            tuple(entry for entry in self.outline if entry.page <= len(pages)),
        )

    def _nothing(self, pages: tuple[ExtractedPage, ...]) -> BadInput:
        if self.stop_reason:
            return BadInput(
                f"{self.name} could not be read, because {self.stop_reason}.",
                "Split it into smaller files, or save it anew with a PDF viewer.",
            )
        scanned = [page.index for page in pages if page.flag == "scanned"]
        if scanned:
            verb = "has" if len(pages) == 1 else "have"
            return BadInput(
                f"{self.name} is scanned: {page_ranges(scanned)} of {len(pages)} {verb} pictures but no text.", OCR_HINT
            )
        return BadInput(f"{self.name} has no text on any of its {len(pages)} pages.", OCR_HINT)

    def _page_warnings(self, pages: tuple[ExtractedPage, ...]) -> Iterator[str]:
        if self.stop_reason:
            rest = f"pages {len(pages) + 1}-{self.total}" if self.total > len(pages) else "the rest"
            read = f"Reading {self.name} stopped after page {len(pages)}, because {self.stop_reason}"
            yield f"{read}; {rest} are missing."
        scanned = [page.index for page in pages if page.flag == "scanned"]
        if scanned:
            yield f"{self.name}: {page_ranges(scanned)} of {self.total}: scanned, no text, so not read. {OCR_HINT}"
        damaged = [page.index for page in pages if page.flag == "garbled" and not page.text]
        if damaged:
            yield f"{self.name}: {page_ranges(damaged)} of {self.total}: damaged, could not be read."
        garbled = [page.index for page in pages if page.flag == "garbled" and page.text]
        if garbled:
            yield f"{self.name}: {page_ranges(garbled)} of {self.total}: the text is garbled, do not trust it."
