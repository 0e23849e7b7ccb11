"""Pages of documents that are pictures without text: which they are, and reading them by OCR when a person asks for it.

The reading with OCR is a document of its own, stored under the content's hash and the extractor's name, which holds
tesseract's version and languages; asked for again, it is there at once.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app import changes, ingest
from app.before_reading.choice import store_choice, stored_choice
from app.changes.folder_files import earlier_reading, folder_sha256, keep_files
from app.changes.versions import chains
from app.documents import ingest_rows, remove_unused, stored_file
from app.errors import AppError, BadInput, Cancelled, WrongUse
from app.ingest import ocr, page_ranges
from app.ingest.collected import NO_TEXT
from app.ingest.files import Progress
from app.ingest.pool import cores
from app.pages import PageChoice
from app.units import listed
from storage import ReadingSpeed

if TYPE_CHECKING:
    from app.wiring import App
    from storage import Document, Library

KINDS = ("pdf", "folder", "archive")
NAMED = 4
"""Files of a folder that are named with their pages."""
GUESSED_SECONDS = 4.0
"""For a page in one language on one core, where nothing was measured."""
_SPEED = "ocr"


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """path: in a folder or archive, "" for a document that is one file. pages: numbers in the file, ascending.

    whole: nothing of the file was read, because all that it shows are pictures.
    """

    path: str
    pages: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Scans:
    """What of one document has no text and may get one by OCR. languages: those that were tried, "" for none."""

    document_id: str
    name: str
    files: tuple[ScannedFile, ...]
    languages: str = ""

    @property
    def pages(self) -> int:
        return sum(len(file.pages) for file in self.files)

    def sentence(self) -> str:
        """'Pages 3 and 5 of scan.pdf are scanned: pictures without text, so they were not read.'"""
        one = self.pages == 1
        are, they = ("is", "it was") if one else ("are", "they were")
        end = f"scanned: {'a picture' if one else 'pictures'} without text, so {they} not read."
        if [file.path for file in self.files] == [""]:
            where = page_ranges(list(self.files[0].pages))
            return f"{where[0].upper()}{where[1:]} of {self.name} {are} {end}"
        named = [_named(file) for file in self.files]
        return f"In {self.name} {self.pages:,} page{'' if one else 's'} {are} {end[:-1]}: {listed(named, NAMED)}."

    def note(self) -> str:
        """As short as fits under a name: 'pages 3 and 5: no text, scanned'."""
        if [file.path for file in self.files] == [""]:
            return f"not read, scanned: {page_ranges(list(self.files[0].pages), 6)}"
        return f"not read, scanned: {listed([_named(file, 3) for file in self.files], 2)}"


def _named(file: ScannedFile, most: int = 6) -> str:
    pages = "all of it" if file.whole else page_ranges(list(file.pages), most)
    return f"{ingest.printable(file.path)} ({pages})"


def scans_of(library: Library, document: Document) -> Scans | None:
    """None for a document that has a text on every page that shows something."""
    if document.kind not in KINDS:
        return None
    flagged = library.flagged_pages(document.id, NO_TEXT)
    languages = ingest.ocr_of(document.extractor)
    if document.kind == "pdf":
        files = [ScannedFile("", tuple(flagged))] if flagged else []
    else:
        files = list(_inside(library, document.id, set(flagged)))
    return Scans(document.id, document.name, tuple(files), languages) if files else None


def _inside(library: Library, document_id: str, flagged: set[int]):
    for row in library.files(document_id):
        if row.scanned:
            yield ScannedFile(row.path, tuple(range(1, row.scanned + 1)), whole=True)
        elif pages := flagged.intersection(row.page_range):
            yield ScannedFile(row.path, tuple(page - row.first_page + 1 for page in sorted(pages)))


@dataclass(frozen=True, slots=True)
class OcrEstimate:
    """measured: by what this machine took before."""

    seconds: float
    measured: bool


def ocr_estimate(library: Library, pages: int, languages: str) -> OcrEstimate:
    """How long it takes to recognise so many pages in these languages ("eng", "deu+eng")."""
    each = max(1, languages.count("+") + 1)
    known = library.reading_speeds(_engine(), _SPEED)
    if known:
        rate = sum(speed.seconds for speed in known) / sum(speed.last for speed in known)
        return OcrEstimate(rate * pages * each, True)
    side_by_side = max(1, min(cores(), pages // 2))
    return OcrEstimate(GUESSED_SECONDS * pages * each / side_by_side, False)


def read_scans(
    app: App,
    conversation_id: str,
    document_id: str,
    languages: str,
    *,
    password: str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Document:
    """Reads a conversation's document anew, its scanned pages by OCR, and puts the result in its place.

    progress(done, total) counts scanned pages. Raises WrongUse, AppError (no tesseract, or no data for a language),
    PasswordNeeded, BadInput (the file is gone) and Cancelled, also where the document was taken out of the conversation
    meanwhile; the document then stays as it was, and nothing is left of the new reading.
    """
    ocr.check(languages)
    library = app.library
    attached = {document.id: document for document in library.documents(conversation_id)}
    document = attached.get(document_id)
    found = scans_of(library, document) if document is not None else None
    if document is None or found is None:
        raise WrongUse("There are no scanned pages to read.", "Reload the page.")
    updated = any(chain.base.id == document_id and chain.updates for chain in chains(library, conversation_id))
    if document.kind == "archive" and updated:
        raise WrongUse(f"Newer versions stand behind {document.name}.", "Add the newest archive to a new conversation.")
    clock = _Clock(progress)
    known = _known(library, document, languages)
    fresh = known or _read(app, document, found, languages, password, clock, cancel)
    try:
        clock.keep(library, languages)
        _put_in_place(app, conversation_id, document, fresh)
    except BaseException:
        if known is None:
            remove_unused(app, [fresh.id])
        raise
    return fresh


def _known(library: Library, document: Document, languages: str) -> Document | None:
    if document.kind == "folder":
        return None  # read as it is now, with the texts that are known
    return library.find_document(document.sha256, ingest.extractor(document.kind, languages))


def _read(
    app: App,
    document: Document,
    found: Scans,
    languages: str,
    password: str | None,
    progress: Progress,
    cancel: threading.Event | None,
) -> Document:
    library = app.library
    scans = {file.path: file.pages for file in found.files}
    if document.kind == "folder":
        extracted = ingest.read_folder(
            Path(document.source), password=password, progress=progress, cancel=cancel,
            earlier=earlier_reading(library, document.id), ocr=languages, scans=scans,
        )  # fmt: skip
        sha256 = folder_sha256(library, extracted, document.source)
    else:
        path = stored_file(app, document)
        if path is None:
            raise BadInput(f"The app's copy of {document.name} is gone.", "Add the file again.")
        extracted = ingest.read_file(
            path, password=password, progress=progress, cancel=cancel, ocr=languages, name=document.name, scans=scans
        )
        sha256 = document.sha256
    rows = ingest_rows(extracted)
    facts = (document.name, document.kind, extracted.extractor, rows, extracted.size, document.source)
    fresh = library.add_document(sha256, *facts)
    try:
        keep_files(library, fresh, extracted)
    except BaseException:
        remove_unused(app, [fresh.id])
        raise
    return fresh


def _put_in_place(app: App, conversation_id: str, document: Document, fresh: Document) -> None:
    """Where something was asked already the old reading is kept beside it, so that citations of it open."""
    library = app.library
    if app.engine_service.current(conversation_id) is not None:
        raise AppError("A question about this document is being answered.", "Stop the answer, then try again.")
    library.conversation(conversation_id)
    if document.id not in {other.id for other in library.documents(conversation_id)}:
        raise Cancelled(f"{document.name} was taken out of the conversation.", "Add it again to read it.")
    choice = stored_choice(app, conversation_id)
    changes.take_place(app, conversation_id, document, fresh)
    if choice is not None and document.id in choice.documents and fresh.pages == document.pages:
        ranges = {fresh.id if id == document.id else id: pages for id, pages in choice.documents.items()}
        store_choice(app, conversation_id, PageChoice(ranges, choice.every))
    if not library.messages(conversation_id):
        library.forget_versions(conversation_id, [document.id])
        remove_unused(app, [document.id])


def _engine() -> str:
    return f"tesseract {ocr.version()}"


class _Clock:
    """Passes progress on, and measures how long the pages took."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._begin = self._end = time.monotonic()
        self._pages = 0

    def __call__(self, done: int, total: int) -> None:
        if done > self._pages:
            self._pages, self._end = done, time.monotonic()
        if self._progress is not None:
            self._progress(done, total)

    def keep(self, library: Library, languages: str) -> None:
        seconds = (self._end - self._begin) / (languages.count("+") + 1)
        if self._pages and seconds > 0:
            library.add_reading_speed(_engine(), _SPEED, ReadingSpeed(0, self._pages, seconds))
