"""Read one file in a child process; everything that is missing or doubtful is said in words."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.errors import BadInput, Cancelled, NeedsOcr
from app.ingest import detect, formats, kinds
from app.ingest import ocr as tesseract
from app.ingest.extracted import Extracted, ExtractedPage, Limits, OutlineEntry, page_ranges, unread
from app.ingest.layout import PageText, assemble
from app.ingest.parts import LEAST_PAGES, Helpers, Part, Request
from app.ingest.pool import POLL_SECONDS, SLOTS
from app.ingest.worker import request_line
from app.page_labels import names_file

OCR_SHARE = 20  # so much more processor time for a child that also draws pages for OCR
NOT_READ, _IS_SCANNED, _BY_OCR = ": scanned, no text, so not read.", " is scanned: ", ": recognised by OCR ("
Progress = Callable[[int, int], None]
Scans = Mapping[str, Sequence[int]]
"""Numbers of scanned pages, ascending, by the path of the file."""


def extractor(kind: str, ocr: str = "") -> str:
    """Name and version of what shapes the text of this kind; a change of it means that documents are read anew.

    ocr: the languages that scanned pages of PDFs are recognised in, "" for none.
    """
    from importlib.metadata import version  # here, since it is slow to load and the children do not need it

    if kind == "pdf":
        by_ocr = f", tesseract {tesseract.version()} {ocr}, words placed" if ocr else ""
        return f"pdf 3 (pypdfium2 {version('pypdfium2')}, pypdf {version('pypdf')}{by_ocr})"
    if kind == "folder":
        return f"folder 3, {extractor('pdf', ocr)}, {formats.versions()}"
    if kind == "archive":
        return f"archive 3, {extractor('folder', ocr)}"
    return formats.version(kind) if kind in formats.KINDS else "text 2"


def tells_of_scans(warning: str) -> bool:
    """Whether one of this module's warnings, or one of a folder, only names scanned pages, read by OCR or not read."""
    return any(said in warning for said in (NOT_READ, _IS_SCANNED, _BY_OCR))


def ocr_of(extractor: str) -> str:
    """The languages in which an extractor of this name recognised scanned pages, "" for none."""
    found = re.search(r", tesseract \S+ ([^\s,)]+)(?:, words placed)?\)", extractor)
    return found[1] if found else ""


def read_file(
    path: Path,
    *,
    password: str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    limits: Limits | None = None,
    ocr: str = "",
    name: str = "",
    scans: Scans | None = None,
) -> Extracted:
    """The text of one file, page by page; of an archive, its files as those of a folder.

    ocr: the languages ("eng", "deu+eng") in which tesseract is to recognise scanned pages of PDFs; "" leaves them
    unread and named. Raises AppError where tesseract or a language is missing. name: what the file is called, if not
    as its path says. scans: numbers of scanned pages, by path in an archive, under "" of a PDF.
    progress(done, total) counts pages, those of `scans` where given, and is called in this thread. Raises BadInput,
    PasswordNeeded, NeedsOcr, Cancelled.
    """
    path = Path(path)
    name = printable(name or path.name)
    if ocr:
        tesseract.check(ocr)
    with _opened(path) as fd:
        more: dict[str, Any] = {"password": password, "progress": progress, "cancel": cancel, "limits": limits}
        if _kind(fd, name) == "archive":
            return _archive_reader()(fd, path, name, **more, ocr=ocr, scans=scans)
        return read_descriptor(fd, path, name, **more, ocr=ocr, counted=(scans or {}).get("", ()))


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
    counted: Sequence[int] = (),
) -> Extracted:
    """As `read_file`, from an open descriptor; `path` stands in where descriptors cannot be passed to a child.

    member: the document of this name inside of the archive that the descriptor leads to. counted: numbers of the pages
    that progress counts, ascending; none for all.
    """
    limits = limits or Limits()
    source: dict[str, Any] = {"fd": fd} if os.name == "posix" else {"path": os.path.abspath(path)}
    if ocr:
        # the child only draws pages; tesseract's own time is limited page by page
        limits = replace(
            limits, cpu_seconds=OCR_SHARE * limits.cpu_seconds, wall_seconds_per_page=limits.ocr_page_seconds
        )
    document = _Document(name, progress, limits, ocr, counted)

    def request(first: int, last: int) -> bytes:
        part = first > 1 or last > 0
        return request_line(
            "file", name, limits, password=password, first=first, last=last, part=part, member=member, ocr=ocr, **source
        )

    with SLOTS.one(cancel):
        document.read(request, cancel, (fd,) if os.name == "posix" else ())
    return document.extracted()


def _with_own_label(page: ExtractedPage) -> ExtractedPage:
    """A label or heading that reads "contract.pdf:p3" would make citations name another document: the number stands
    instead."""
    return replace(page, label=str(page.index)) if names_file(page.label) else page


class _Document:
    """Collects what the children send that read one file."""

    def __init__(
        self, name: str, progress: Progress | None, limits: Limits, ocr: str, counted: Sequence[int] = ()
    ) -> None:
        self.name, self.progress, self.limits, self.ocr, self.counted = name, progress, limits, ocr, counted
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
        if self.progress is None:
            return
        parts = (self.first, *self.helpers.parts)
        if self.counted:
            spans = [(bisect_left(self.counted, p.first), bisect_left(self.counted, p.following)) for p in parts]
            self.progress(sum(stop - start for start, stop in spans), len(self.counted))
        else:
            self.progress(len(self.pages) + sum(len(part.pages) for part in parts), self.total)

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
        pages = tuple(map(_with_own_label, assemble(joined) if self.kind == "pdf" else self.pages))
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
            pictures = f"{page_ranges(scanned)} of {len(pages)} {verb} pictures but no text."
            message = f"{self.name}{_IS_SCANNED}{pictures}"
            return BadInput(message, self._hint()) if self.ocr else NeedsOcr(message, self._hint(), pages=len(scanned))
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
            found = " OCR found no text on them." if self.ocr else ""
            yield f"{self.name}: {page_ranges(scanned)} of {self.total}{NOT_READ}{found}"
        recognised = [page.index for page in pages if page.ocr]
        if recognised:
            count = f"{page_ranges(recognised)} of {self.total}"
            yield f"{self.name}: {count}{_BY_OCR}{self.ocr}), so letters and figures may be wrong."
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
