"""Read one file in a child process; everything that is missing or doubtful is said in words."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.errors import BadInput, Cancelled
from app.ingest import detect, formats, kinds
from app.ingest import ocr as tesseract
from app.ingest.extracted import Extracted, ExtractedPage, Limits, OutlineEntry, page_ranges, unread
from app.ingest.layout import PageText, assemble
from app.ingest.parts import LEAST_PAGES, Helpers, Part, Request
from app.ingest.pool import POLL_SECONDS, SLOTS
from app.ingest.worker import request_line

OCR_SHARE = 20  # so much more processor time for a child that also draws pages for OCR
Progress = Callable[[int, int], None]


def extractor(kind: str, ocr: str = "") -> str:
    """Name and version of what shapes the text of this kind; a change of it means that documents are read anew.

    ocr: the languages that scanned pages of PDFs are recognised in, "" for none.
    """
    from importlib.metadata import version  # here, since it is slow to load and the children do not need it

    if kind == "pdf":
        by_ocr = f", tesseract {tesseract.version()} {ocr}" if ocr else ""
        return f"pdf 3 (pypdfium2 {version('pypdfium2')}, pypdf {version('pypdf')}{by_ocr})"
    if kind == "folder":
        return f"folder 2, {extractor('pdf')}, {formats.versions()}"
    if kind == "archive":
        return f"archive 1, {extractor('folder')}"
    return formats.version(kind) if kind in formats.KINDS else "text 2"


def read_file(
    path: Path,
    *,
    password: str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    limits: Limits | None = None,
    ocr: str = "",
) -> Extracted:
    """The text of one file, page by page; of an archive, its files as those of a folder.

    ocr: the languages ("eng", "deu+eng") in which tesseract is to recognise scanned pages of a PDF; "" leaves them
    unread and named. Raises AppError where tesseract or a language is missing.
    progress(done, total) counts pages and is called in this thread. Raises BadInput, PasswordNeeded, Cancelled.
    """
    path = Path(path)
    name = printable(path.name)
    if ocr:
        tesseract.check(ocr)
    with _opened(path) as fd:
        more: dict[str, Any] = {"password": password, "progress": progress, "cancel": cancel, "limits": limits}
        if _kind(fd, name) == "archive":
            return _archive_reader()(fd, path, name, **more)
        return read_descriptor(fd, path, name, **more, ocr=ocr)


def _kind(fd: int, name: str) -> str:
    with os.fdopen(os.dup(fd), "rb") as file:
        return detect.kind_of(name, file)


def _archive_reader() -> Callable[..., Extracted]:
    from app.ingest.folders import read_archive  # an archive's documents are read by this module again

    return read_archive


def identify(path: Path, ocr: str = "") -> tuple[str, str]:
    """(sha256, extractor) of a file, as `read_file` would give them, without reading its text. Raises BadInput."""
    path = Path(path)
    with _opened(path) as fd, os.fdopen(os.dup(fd), "rb") as file:
        kind = detect.kind_of(path.name, file)
        return hashlib.file_digest(file, "sha256").hexdigest(), extractor(kind, ocr)


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
    ocr: str = "",
) -> Extracted:
    """As `read_file`, from an open descriptor; `path` stands in where descriptors cannot be passed to a child.

    member: the document of this name inside of the archive that the descriptor leads to.
    """
    limits = limits or Limits()
    source: dict[str, Any] = {"fd": fd} if os.name == "posix" else {"path": os.path.abspath(path)}
    if ocr:
        # the child only draws pages; tesseract's own time is limited page by page
        limits = replace(
            limits, cpu_seconds=OCR_SHARE * limits.cpu_seconds, wall_seconds_per_page=limits.ocr_page_seconds
        )
    document = _Document(name, progress, limits, ocr)

    def request(first: int, last: int) -> bytes:
        part = first > 1 or last > 0
        return request_line(
            "file", name, limits, password=password, first=first, last=last, part=part, member=member, ocr=ocr, **source
        )

    with SLOTS.one(cancel):
        document.read(request, cancel, (fd,) if os.name == "posix" else ())
    return document.extracted()


class _Document:
    """Collects what the children send that read one file."""

    def __init__(self, name: str, progress: Progress | None, limits: Limits, ocr: str) -> None:
        self.name, self.progress, self.limits, self.ocr = name, progress, limits, ocr
        self.kind, self.size, self.sha256 = "", 0, ""
        self.total = 0
        self.first, self.helpers = Part(1), Helpers()
        self.pages: list[ExtractedPage] = []
        self.outline: list[OutlineEntry] = []
        self.warnings: list[str] = []
        self.stop_reason = ""

    def read(self, request: Request, cancel: threading.Event | None, pass_fds: tuple[int, ...]) -> None:
        """The first part is read in this thread; where the file is long and slots are free, others help."""

        def take(message: dict[str, Any]) -> None:
            self._message(message)
            if message["type"] == "start":
                if self.kind == "pdf" and not self.helpers.parts:
                    self.helpers.start(
                        self.first,
                        self.total,
                        request,
                        self._outline,
                        limits=self.limits,
                        cancel=cancel,
                        pass_fds=pass_fds,
                        least=tesseract.PAGE_PARTS if self.ocr else LEAST_PAGES,
                    )
                self._tell()
            elif message["type"] in ("page", "text_page"):
                self._tell()

        try:
            self.first.read(request, take, limits=self.limits, cancel=cancel, pass_fds=pass_fds)
            while self.first.complete and self.helpers.running():
                if cancel is not None and cancel.is_set():
                    raise Cancelled("Reading was cancelled.", "Open the file again to read it.")
                time.sleep(POLL_SECONDS)
                self._tell()
        finally:
            self.helpers.end()

    def _message(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "file":
                self.kind, self.size, self.sha256 = message["kind"], message["size"], message["sha256"]
            case "start":
                self.total = message["total"]
            case "text_page":
                self.pages.append(
                    ExtractedPage(message["index"], message["label"], message["text"], message.get("flag", ""))
                )
            case "warning":
                self.warnings.append(message["text"])
            case _:
                self._outline(message)

    def _outline(self, message: dict[str, Any]) -> None:
        """Of all that a helper sends besides pages only the outline is news."""
        if message["type"] == "outline":
            self.outline = [OutlineEntry(**entry) for entry in message["entries"]]

    def _tell(self) -> None:
        if self.progress is not None:
            done = len(self.pages) + sum(len(part.pages) for part in (self.first, *self.helpers.parts))
            self.progress(done, self.total)

    def _joined(self) -> list[PageText]:
        """The parts' pages in order, up to the first place where one was stopped or the text is too much."""
        pages: list[PageText] = []
        text_bytes = 0
        for part in (self.first, *self.helpers.parts):
            for page in part.pages:
                text_bytes += len(page.text.encode("utf-8", "replace"))
                if text_bytes > self.limits.text_bytes:
                    self.stop_reason = f"it holds more than {self.limits.text_bytes / 1e6:g} MB of text"
                    return pages
                pages.append(page)
            if part.stop_reason:
                self.stop_reason = part.stop_reason
                break
            part.pages = []
        return pages

    def extracted(self) -> Extracted:
        joined = self._joined()
        pages = tuple(assemble(joined) if self.kind == "pdf" else self.pages)
        if not any(page.text and page.flag != "scanned" for page in pages):
            raise self._nothing(pages)
        return Extracted(
            self.name,
            self.kind,
            self.sha256,
            self.size,
            extractor(self.kind, self.ocr) + ("+partial" if self.stop_reason else ""),
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
                f"{self.name} is scanned: {page_ranges(scanned)} of {len(pages)} {verb} pictures but no text.",
                self._hint(),
            )
        return BadInput(f"{self.name} has no text on any of its {len(pages)} pages.", self._hint())

    def _hint(self) -> str:
        return "OCR found no text on them either." if self.ocr else tesseract.hint()

    def _page_warnings(self, pages: tuple[ExtractedPage, ...]) -> Iterator[str]:
        if self.stop_reason:
            rest = f"pages {len(pages) + 1}-{self.total}" if self.total > len(pages) else "the rest"
            read = f"Reading {self.name} stopped after page {len(pages)}, because {self.stop_reason}"
            yield f"{read}; {rest} are missing."
        scanned = [page.index for page in pages if page.flag == "scanned"]
        if scanned:
            yield f"{self.name}: {page_ranges(scanned)} of {self.total}: scanned, no text, so not read. {self._hint()}"
        recognised = [page.index for page in pages if page.ocr]
        if recognised:
            count = f"{page_ranges(recognised)} of {self.total}"
            yield f"{self.name}: {count}: recognised by OCR ({self.ocr}), so letters and figures may be wrong."
        shown = [page for page in pages if page.unread]
        if shown:
            counts = unread(sum(page.pictures for page in shown), sum(page.formulas for page in shown))
            yield f"{self.name}: not in the text: {counts}, on {page_ranges([page.index for page in shown])}."
        damaged = [page.index for page in pages if page.flag == "garbled" and not page.text]
        if damaged:
            yield f"{self.name}: {page_ranges(damaged)} of {self.total}: damaged, could not be read."
        garbled = [page.index for page in pages if page.flag == "garbled" and page.text]
        if garbled:
            yield f"{self.name}: {page_ranges(garbled)} of {self.total}: the text is garbled, do not trust it."
