"""What a folder or archive is read into: its files in the order of their text, what was left out and why."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.errors import BadInput, NeedsOcr, PasswordNeeded
from app.ingest import kinds
from app.ingest import ocr as tesseract
from app.ingest.disk import NotInside
from app.ingest.extracted import (
    Extracted,
    ExtractedFile,
    ExtractedPage,
    FilePageText,
    Limits,
    OutlineEntry,
    Skipped,
)
from app.ingest.files import Progress, Scans, extractor, ocr_of, printable
from app.ingest.walk import BEYOND_LIMIT
from app.page_labels import file_label
from app.units import listed

PDF = "pdf "
"""How the name of an extractor of PDFs begins."""
NO_TEXT = ("scanned", "garbled")
"""Flags of pages that OCR may read."""


def label_in_file(kind: str, page: int, label: str) -> str:
    """The label of a file's page within the file: "p3", of a PDF with what is printed there, "p3 (xii)"; a label that
    names a place ("Slide 4") stays."""
    if kind == "pdf":
        return file_label("", page, label).removeprefix(":")
    return f"p{label}" if label.isdigit() else label


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier reading of the same folder knew. Paths are those of the file system, not their shown form.

    order: (path, sha256) as the files stood then. unchanged: (size, modified) by path of files that need not be opened
    while these are the same. facts: (sha256, extractor) of those. text: pages that an extractor once made of these
    bytes, or None.
    """

    order: Sequence[tuple[str, str]] = ()
    unchanged: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    facts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    text: Callable[[str, str], list[FilePageText] | None] = lambda sha256, extractor: None


@dataclass(frozen=True, slots=True)
class Recognition:
    """languages: for scanned pages, "" for none. scans: the pages that progress counts, by path."""

    languages: str
    scans: Scans


@dataclass(slots=True)
class Entry:
    """One file of the folder. waits: its text comes after the walk."""

    path: str
    waits: bool
    size: int = 0
    modified: int = 0
    sha256: str = ""
    extractor: str = ""
    pages: tuple[FilePageText, ...] = ()
    outline: tuple[OutlineEntry, ...] = ()


class Collected:
    """Collects what the walking child sends and what the documents hold."""

    def __init__(
        self, name: str, progress: Progress | None, limits: Limits, earlier: Earlier, wanted: Recognition
    ) -> None:
        self.name, self.progress, self.limits, self.earlier = name, progress, limits, earlier
        self.ocr, self.scans = wanted.languages, wanted.scans
        self.recognised = 0
        self.entries: list[Entry] = []
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
                pages = tuple(FilePageText(*page) for page in message["pages"])
                facts = (message["size"], message["modified"], message["sha256"], extractor(message["kind"]))
                outline = tuple(OutlineEntry(**line) for line in message["outline"])
                self.entries.append(Entry(message["path"], False, *facts, pages, outline))
                self.warnings.extend(f"{path}: {warning}" for warning in message["warnings"])
                self._tell(1)
            case "unchanged":
                self._as_before(message["path"])
            case "document":
                self.entries.append(Entry(message["path"], True))

    def _as_before(self, path: str) -> None:
        """A file of the same size and time as in the earlier reading: its text is taken from there."""
        facts = (*self.earlier.unchanged[path], *self.earlier.facts[path])
        entry = Entry(path, False, *facts)
        entry.waits = not self.take_known(entry)
        self.entries.append(entry)
        self._tell(int(not entry.waits))

    def take_known(self, entry: Entry) -> bool:
        """Its text from an earlier reading; where scanned pages are to be recognised, one that did so as today or has
        none."""
        of_pdf = entry.extractor.startswith(PDF)
        if of_pdf and self.ocr:
            known = self.earlier.text(entry.sha256, extractor("pdf", self.ocr))
            if known is not None:
                entry.extractor = extractor("pdf", self.ocr)
                entry.pages = tuple(known)
                return True
        known = self.earlier.text(entry.sha256, entry.extractor)
        if known is None or (of_pdf and self.ocr and any(page.ocr or page.flag in NO_TEXT for page in known)):
            return False
        entry.pages = tuple(known)
        return True

    def recognition(self, path: str) -> dict[str, Any]:
        """What `read_descriptor` is asked for beside the text of this file."""
        pages = self.scans.get(path, ())
        done = self.recognised
        self.recognised += len(pages)

        def tell(more: int, _total: int) -> None:
            if self.progress is not None:
                self.progress(done + more, sum(map(len, self.scans.values())))

        return {"ocr": self.ocr, "counted": pages, "progress": tell if pages else None}

    def stopped(self, reason: str) -> None:
        self.partial = True
        last = f"after {printable(self.entries[-1].path)}" if self.entries else "at the beginning"
        behind = self.total - self.done - sum(entry.waits for entry in self.entries)
        missing = (
            f"{behind} files are missing" if behind else "the rest is missing" if self.total else "nothing was read"
        )
        self.warnings.append(f"Reading {self.name} stopped {last}, because {reason}; {missing}.")

    def fill(self, entry: Entry, read: Callable[[], Extracted | None]) -> None:
        """Take over what `read` gives (None: the entry is filled already), or move the entry to the skipped files."""
        path = printable(entry.path)
        try:
            found = read()
        except (NotInside, BadInput) as error:
            scanned = error.pages if isinstance(error, NeedsOcr) else 0
            reason = "protected by a password" if isinstance(error, PasswordNeeded) else str(error)
            if isinstance(error, NeedsOcr):
                reason = error.message
                self.warnings.append(f"{reason} It was not read.")
            self._skip(entry.path, reason)
            facts = (entry.size, entry.modified, entry.sha256)
            self.left_out.append(ExtractedFile(entry.path, *facts, skipped=reason, scanned=scanned))
            self.entries.remove(entry)
        else:
            if found is not None:
                self._take_over(entry, path, found)
        self._tell(1)

    def _take_over(self, entry: Entry, path: str, found: Extracted) -> None:
        entry.size, entry.sha256, entry.outline = found.size, found.sha256, found.outline
        entry.extractor = found.extractor
        entry.pages = tuple(
            FilePageText(
                label_in_file(found.kind, page.index, page.label),
                page.text,
                page.flag,
                page.pictures,
                page.formulas,
                page.ocr,
                page.words,
            )
            for page in found.pages
        )
        self.warnings.extend(found.warnings)
        self.partial |= found.extractor.endswith("+partial")

    def _skip(self, path: str, reason: str) -> None:
        self.skipped.append(Skipped(printable(path), reason))

    def _tell(self, more: int) -> None:
        self.done += more
        if self.progress is not None and self.total and not self.scans:
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
        if not any(page.text for entry in self.entries for page in entry.pages):
            if scanned := sum(file.scanned for file in self.left_out):
                names = [printable(file.path) for file in self.left_out if file.scanned]
                holds = f"{self.name} holds only scanned files ({listed(names)}): pictures but no text."
                raise NeedsOcr(holds, tesseract.hint(), pages=scanned)
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
            extractor=extractor(kind, self._languages()) + ("+partial" if self.partial else ""),
            pages=tuple(self._numbered()),
            skipped=tuple(sorted(self.skipped, key=lambda skipped: skipped.path)),
            warnings=tuple(self.warnings),
            outline=tuple(outline),
            files=(*files, *self.left_out),
        )

    def _languages(self) -> str:
        """Those of OCR, this time or in the earlier reading from which a text was taken."""
        return self.ocr or next(filter(None, (ocr_of(entry.extractor) for entry in self.entries)), "")

    def _numbered(self) -> Iterator[ExtractedPage]:
        paged = ((printable(entry.path), page) for entry in self.entries for page in entry.pages)
        for index, (path, page) in enumerate(paged, 1):
            yield ExtractedPage(
                index,
                f"{path}:{page.label}",
                page.text,
                page.flag,
                page.pictures,
                page.formulas,
                ocr=page.ocr,
                words=page.words,
            )

    def _keep_within_limits(self) -> None:
        """Whole files beyond the folder's limits on text and pages are left out, and listed."""
        pages = text_bytes = 0
        for entry in list(self.entries):
            pages += len(entry.pages)
            text_bytes += sum(len(page.text.encode()) for page in entry.pages)
            if pages > self.limits.pages or text_bytes > self.limits.text_bytes:
                self.entries.remove(entry)
                self._skip(entry.path, BEYOND_LIMIT)
                facts = (entry.size, entry.modified, entry.sha256)
                self.left_out.append(ExtractedFile(entry.path, *facts, skipped=BEYOND_LIMIT))
        left_out = sum(1 for skipped in self.skipped if skipped.reason == BEYOND_LIMIT)
        if left_out:
            self.partial = True
            self.warnings.append(f"{left_out} files of {self.name} were left out: together they hold too much text.")
