"""Adding documents to a conversation, and what of them fits into the model's context.

The same content is extracted once: text is stored under the file's SHA-256 and the extractor's version. The app keeps
its own copy of an added file, so that a cited page still opens when the original is gone.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from app import ingest
from app.changes.folder_files import earlier_reading, folder_sha256, keep_files
from app.changes.versions import MAP, superseded
from app.errors import AppError, BadInput, Cancelled, as_app_error
from app.ingest.files import NOT_READ
from app.pages import PageChoice
from app.paths import Paths
from app.prompts import DocumentText, system_text
from storage import NotFound, PageRow, Version

if TYPE_CHECKING:
    from app.wiring import App
    from storage import Document

Progress = Callable[[str, int, int], None]
"""(what is done, units done, units in all)"""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """What became of one path: a document or an error, with what was left out and what a reader should know."""

    path: Path
    document: Document | None
    error: AppError | None = None
    warnings: tuple[str, ...] = ()
    skipped: tuple[ingest.Skipped, ...] = ()
    offered: bool = False
    """An older version of the document is in the conversation: nothing is attached until `app.changes` is told how."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether the chosen pages of all documents fit, in tokens.

    prompt_tokens: documents and system text, without question and earlier turns. largest_pages_that_fit: for each
    document how many of its chosen pages fit from the first on, beside all of the documents before it.
    """

    tokens_by_document: Mapping[str, int]
    prompt_tokens: int
    context: int
    answer_room: int
    fits: bool
    largest_pages_that_fit: Mapping[str, int]


def add_files(
    app: App,
    conversation_id: str,
    paths: Sequence[Path],
    *,
    passwords: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    ocr: str | None = None,
) -> list[AddedFile]:
    """Reads files and folders and attaches them, in the order given; one bad file never stops the rest.

    passwords: by path or by file name. ocr: languages for scanned pages, else those of the settings. After `cancel` the
    remaining ones come back with a Cancelled error.
    """
    added = []
    for path in map(Path, paths):
        password = (passwords or {}).get(str(path), (passwords or {}).get(path.name))
        try:
            if cancel is not None and cancel.is_set():
                raise Cancelled(f"{path.name} was not read, because you stopped.", "Add it again when you want it.")
            languages = app.settings.ocr if ocr is None else ocr
            added.append(_add(app, conversation_id, path, password, progress, cancel, languages))
        except Exception as error:
            added.append(AddedFile(path, None, as_app_error(error)))
    return added


def remove_document(app: App, document_id: str) -> None:
    """Deletes a document: text, search index, the app's copy of the file, token ids and KV of chats that read it.

    What the app made of it goes too: newer versions of its files, its map. So do other versions that nobody uses then.
    Questions and answers stay, and so do quotes in them.
    """
    from app import conversations

    document = app.library.document(document_id)
    made = [other.id for other in app.library.documents() if other.kind == MAP and other.source == document_id]
    versions = []
    for conversation in app.library.conversations():
        versions += app.library.versions(conversation.id)
        if conversations.forget_document(app, conversation.id, document_id):
            conversations.forget_kv(app, conversation.id)
    app.library.delete_document(document_id)
    app.forget_tokens(document_id)
    made += [v.newer_id for v in versions if v.document_id == document_id and v.state == "updated"]
    for id in made:
        if _is_stored(app, id):
            remove_document(app, id)
    remove_unused(
        app, [id for v in versions if document_id in (v.document_id, v.newer_id) for id in (v.document_id, v.newer_id)]
    )
    if any(other.sha256 == document.sha256 for other in app.library.documents()):
        return  # the same file, read by another version's extractor
    for copy in Paths(app.data_dir).documents.glob(f"{document.sha256}*"):
        copy.unlink(missing_ok=True)


def remove_unused(app: App, document_ids: Sequence[str]) -> None:
    """Deletes those of the documents that no conversation uses any more: nothing on the page would lead to them."""
    for document_id in document_ids:
        if _is_stored(app, document_id) and not app.library.conversations_using(document_id):
            remove_document(app, document_id)


def _is_stored(app: App, document_id: str) -> bool:
    return any(document.id == document_id for document in app.library.documents())


def detach(app: App, conversation_id: str, document_id: str) -> None:
    """Takes a document out of a conversation, with its token ids, passages and KV there; the last one deletes it."""
    from app import conversations, table_place

    if document_id not in {document.id for document in app.library.documents(conversation_id)}:
        return
    table_place.drop(app, conversation_id)
    versions = [v for v in app.library.versions(conversation_id) if document_id in (v.document_id, v.newer_id)]
    gone = {document_id, *(id for v in versions for id in (v.document_id, v.newer_id) if v.newer_id != document_id)}
    gone |= {v.document_id for v in versions if v.newer_id == document_id and v.state == "replaced"}
    gone |= {d.id for d in app.library.documents(conversation_id) if d.kind == MAP and d.source == document_id}
    for id in gone:  # a folder goes with its updates, with an offer, and with what it replaced
        app.library.detach(conversation_id, id)
        conversations.forget_document(app, conversation_id, id)
    app.library.forget_versions(conversation_id, sorted(gone))
    conversations.forget_kv(app, conversation_id)
    remove_unused(app, sorted(gone))


def stored_file(app: App, document: Document) -> Path | None:
    """The app's own copy of a document's file; None for folders, which are not copied."""
    return next(iter(sorted(Paths(app.data_dir).documents.glob(f"{document.sha256}.*"))), None)


def share_copy(app: App, document: Document, sha256: str) -> None:
    """Keeps the app's copy of a document's file for another document too, which is stored under this sha256."""
    path = stored_file(app, document)
    if path is None:
        return
    target = path.with_name(f"{sha256}{path.suffix}")
    if target.exists():
        return
    try:
        os.link(path, target)
    except OSError:  # a disk without hard links
        _copy(path, target, document.name)


def document_texts(app: App, conversation_id: str, pages: PageChoice | None) -> list[DocumentText]:
    """The documents of a conversation with their chosen pages, in their fixed order. Raises WrongUse."""
    choice = pages or PageChoice()
    texts = []
    old = superseded(app.library, conversation_id)
    for document in app.library.documents(conversation_id):
        chosen = set(choice.pages(document.id, document.pages)) - old.get(document.id, frozenset())
        rows = tuple(row for row in app.library.pages(document.id) if row.index in chosen)
        if rows:
            texts.append(DocumentText(document.id, document.name, document.pages, rows))
    return texts


def fit(app: App, conversation_id: str, pages_chosen: PageChoice | None = None) -> Fit:
    """Counts tokens with the model's tokenizer, without loading its weights. Counts are kept while the app runs."""
    face = app.face()
    tokens_of = app.document_tokens()
    overhead = face.tokenizer.count(system_text(app.model.parameters)) + SKELETON_ROOM
    room = app.context - app.settings.max_answer_tokens - overhead
    tokens: dict[str, int] = {}
    largest: dict[str, int] = {}
    left = room
    old = superseded(app.library, conversation_id)
    for document in app.library.documents(conversation_id):
        counts = tokens_of.counts(document.id)
        pages = (pages_chosen or PageChoice()).pages(document.id, document.pages)
        chosen = [counts.pages[page - 1] for page in pages if page not in old.get(document.id, frozenset())]
        if not chosen:
            continue
        tokens[document.id] = counts.around + sum(chosen)
        sums = accumulate(chosen, initial=counts.around)
        largest[document.id] = max(0, sum(total <= left for total in sums) - 1)
        left = max(0, left - tokens[document.id])
    needed = sum(tokens.values()) + overhead
    return Fit(tokens, needed, app.context, app.settings.max_answer_tokens, needed - overhead <= room, largest)


SKELETON_ROOM = 64
"""Tokens left for role headers and a short question when a fit is judged before the question is known."""


def _add(
    app: App,
    conversation_id: str,
    path: Path,
    password: str | None,
    progress: Progress | None,
    cancel: threading.Event | None,
    ocr: str,
) -> AddedFile:
    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(path.name, done, total)

    if not path.exists():
        raise BadInput(f"There is no file {path}.", "Check the name.")
    if path.is_dir():
        earlier = earlier_reading(app.library, app.library.last_of_source(str(path.absolute()), "folder"))
        extracted = ingest.read_folder(path, progress=report, cancel=cancel, earlier=earlier, ocr=ocr)
        sha256 = folder_sha256(app.library, extracted, str(path.absolute()))
    else:
        known = _stored_before(app, path, ocr)
        if known is not None:
            there = any(known.id == document.id for document in app.library.documents(conversation_id))
            offered = not there and _offered_as_newer(app, conversation_id, known)
            if not offered:
                _attach(app, conversation_id, known)
            report(known.pages, known.pages)
            return AddedFile(
                path, known, None, _page_warnings(known.name, app.library.pages(known.id)), offered=offered
            )
        extracted = ingest.read_file(path, password=password, progress=report, cancel=cancel, ocr=ocr)
        sha256 = extracted.sha256
        _keep_copy(app, path, sha256)
    rows = ingest_rows(extracted)
    document = app.library.add_document(
        sha256,
        extracted.name,
        extracted.kind,
        extracted.extractor,
        rows,
        extracted.size,
        str(path.absolute()),
    )
    keep_files(app.library, document, extracted)
    offered = _offered_as_newer(app, conversation_id, document)
    if not offered:
        _attach(app, conversation_id, document)
    return AddedFile(path, document, None, extracted.warnings, extracted.skipped, offered)


def _offered_as_newer(app: App, conversation_id: str, document: Document) -> bool:
    """Whether an older version of this folder or archive is in the conversation; the newer one then waits."""
    library = app.library
    if not library.files(document.id):
        return False
    for other in library.documents(conversation_id):
        same = other.kind == document.kind and other.name == document.name and other.id != document.id
        if same and (document.kind != "folder" or other.source == document.source):
            library.forget_offers(conversation_id, other.id)
            library.set_version(conversation_id, Version(other.id, document.id, "offered"))
            return True
    return False


def _attach(app: App, conversation_id: str, document: Document) -> None:
    """A conversation that was deleted while the file was read leaves nothing of it behind."""
    try:
        app.library.attach(conversation_id, document.id)
    except NotFound:
        remove_unused(app, [document.id])
        raise


def _stored_before(app: App, path: Path, ocr: str) -> Document | None:
    """The document with this file's content, if this version's extractor has read it before."""
    return app.library.find_document(*ingest.identify(path, ocr))


def ingest_rows(extracted: ingest.Extracted) -> list[PageRow]:
    """The pages of a file or folder as they are stored."""
    return [
        PageRow(page.index, page.label, page.text, page.flag, page.pictures, page.formulas, page.ocr, page.words)
        for page in extracted.pages
    ]


def _page_warnings(name: str, rows: Sequence[PageRow]) -> tuple[str, ...]:
    """What a reader of stored pages should know."""
    warnings = []
    if scanned := [row.index for row in rows if row.flag == "scanned"]:
        warnings.append(f"{name}: {ingest.page_ranges(scanned)} of {len(rows)}{NOT_READ}")
    if garbled := [row.index for row in rows if row.flag == "garbled"]:
        warnings.append(f"No usable text on {ingest.page_ranges(garbled)}.")
    if recognised := [row.index for row in rows if row.ocr]:
        warnings.append(f"Recognised by OCR, so letters and figures may be wrong: {ingest.page_ranges(recognised)}.")
    if shown := [row for row in rows if row.pictures or row.formulas]:
        counts = ingest.unread(sum(row.pictures for row in shown), sum(row.formulas for row in shown))
        warnings.append(f"Not in the text: {counts}, on {ingest.page_ranges([row.index for row in shown])}.")
    return tuple(warnings)


def _keep_copy(app: App, path: Path, sha256: str) -> None:
    target = Paths(app.data_dir).documents / f"{sha256}{path.suffix.lower()}"
    if not target.exists():
        _copy(path, target, path.name)


def _copy(path: Path, target: Path, name: str) -> None:
    incoming = target.with_name(f"{target.name}.new")
    try:
        shutil.copyfile(path, incoming)
        incoming.chmod(0o600)
        os.replace(incoming, target)
    except OSError as error:
        incoming.unlink(missing_ok=True)
        raise AppError(
            f"There was no room to keep a copy of {name}: {error.strerror}.", f"Free some space on {target.parent}."
        ) from error
