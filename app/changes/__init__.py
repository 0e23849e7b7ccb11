"""Folders and archives that changed since they were read: what changed, and the two ways to take it in.

append: the changed files stand once more at the end of the prompt, with a line saying that they replace the earlier
ones; what was read stays read. again: the whole folder is read anew, unchanged files first and in the order they had,
so that everything before the first change is re-used.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from app import ingest
from app.before_reading.estimate import Estimate, Pace, estimate, pace
from app.changes.folder_files import earlier_reading, folder_sha256, keep_files, learn_left_out
from app.changes.versions import DELETED, EARLIER, MAP, RENAMED, UPDATE, Chain, chains
from app.errors import BadInput, Cancelled, WrongUse
from app.ingest.disk import NotInside, open_inside
from app.ingest.files import Progress
from app.units import listed
from storage import FileRow, PageRow, Version

if TYPE_CHECKING:
    from app.wiring import App
    from storage import Document, Library

Way = Literal["append", "again"]


@dataclass(frozen=True, slots=True)
class Changes:
    """What is different in one folder or archive. renamed: (old, new). append and again: None while not estimated."""

    document_id: str
    name: str
    added: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    append: Estimate | None = None
    again: Estimate | None = None

    @property
    def count(self) -> int:
        return len(self.added) + len(self.changed) + len(self.deleted) + len(self.renamed)

    def sentence(self) -> str:
        """'3 files of repo changed since they were read: a.py, b.py changed; c.py deleted.'"""
        parts = [
            f"{listed(names)} {what}"
            for names, what in ((self.changed, "changed"), (self.added, "added"), (self.deleted, "deleted"))
            if names
        ]
        if self.renamed:
            parts.append(f"{listed([f'{old} to {new}' for old, new in self.renamed])} renamed")
        files = "1 file" if self.count == 1 else f"{self.count} files"
        return f"{files} of {self.name} changed since it was read: {'; '.join(parts)}."


@dataclass(frozen=True, slots=True)
class _Now:
    """Size, time and content of a file as it is now; sha256 is "" where it cannot be opened. left_out: it is known to
    hold nothing that is read."""

    size: int
    modified: int
    sha256: str
    left_out: bool = False


def find_changes(app: App, conversation_id: str, *, cancel: threading.Event | None = None) -> list[Changes]:
    """Of every folder that still lies where it was read, and every archive that was added again. Opens only files whose
    size or time is another one. A folder that is gone or cannot be looked through is passed over."""
    library = app.library
    offered = {v.document_id: v.newer_id for v in library.versions(conversation_id) if v.state == "offered"}
    found: list[Changes] = []
    known_pace: Pace | None = None
    for chain in chains(library, conversation_id):
        before = chain.files(library)
        if chain.base.id in offered:
            now = _of_document(library, offered[chain.base.id])
        elif chain.base.kind == "folder" and Path(chain.base.source).is_dir():
            try:
                now = _of_folder(Path(chain.base.source), before, cancel)
            except BadInput:
                continue
        else:
            continue
        changes = compare(chain.base, before, now)
        if changes.count:
            known_pace = known_pace or pace(app)
            found.append(_with_estimates(app, conversation_id, chain, changes, before, now, known_pace))
    return found


def compare(document: Document, before: Mapping[str, FileRow], now: Mapping[str, _Now]) -> Changes:
    """Files that were left out and those that are now do not count."""
    gone = [path for path, row in before.items() if path not in now and row.pages]
    new = [path for path, file in now.items() if path not in before and not file.left_out]
    by_content = {now[path].sha256: path for path in new if now[path].sha256}
    renamed = tuple((path, by_content.pop(before[path].sha256)) for path in gone if before[path].sha256 in by_content)
    old_names, new_names = {old for old, _ in renamed}, {name for _, name in renamed}
    return Changes(
        document.id,
        document.name,
        tuple(path for path in new if path not in new_names),
        tuple(
            path
            for path, row in before.items()
            if row.pages and path in now and now[path].sha256 not in (row.sha256, "")
        ),
        tuple(path for path in gone if path not in old_names),
        renamed,
    )


def apply_changes(
    app: App,
    conversation_id: str,
    document_id: str,
    way: Way,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Document:
    """Brings one folder or archive up to date and returns the document that holds the new text. WrongUse if nothing
    changed; BadInput where the folder can no longer be read; Cancelled where it was taken out meanwhile."""
    if way not in ("append", "again"):
        raise WrongUse(f"There is no way {way!r} to take changes.", "Use append or again.")
    library = app.library
    chain = next((chain for chain in chains(library, conversation_id) if chain.base.id == document_id), None)
    if chain is None:
        raise WrongUse("This document is not in the conversation any more.", "Reload the page.")
    fresh = _fresh(app, conversation_id, chain, progress, cancel)
    if document_id not in {document.id for document in library.documents(conversation_id)}:
        _forget_unused(app, [fresh.id])
        raise Cancelled(f"{chain.base.name} was taken out of the conversation.", "Add it again to read it.")
    before = chain.files(library)
    changes = compare(chain.base, before, _of_document(library, fresh.id))
    if not changes.count:
        learn_left_out(library, document_id, fresh.id)
        library.forget_offers(conversation_id, document_id)
        _forget_unused(app, [fresh.id])
        raise WrongUse(f"{chain.base.name} is as it was when it was read.", "There is nothing to bring up to date.")
    if way == "again":
        _replace(app, conversation_id, document_id, fresh)
        _mark_earlier(library, conversation_id, {document_id, *(update.id for update in chain.updates)})
        return fresh
    update = _store_update(library, chain, fresh, changes)
    library.attach(conversation_id, update.id)
    library.set_version(conversation_id, Version(document_id, update.id, "updated"))
    library.forget_offers(conversation_id, document_id)
    _share_copy(app, fresh, update)
    _forget_unused(app, [fresh.id])
    _mark_earlier_pages(library, conversation_id, chain, changes)
    return update


def take_place(app: App, conversation_id: str, document: Document, fresh: Document) -> None:
    """Another reading of a document takes its place; of a folder that changed meanwhile, as when it is read again."""
    library = app.library
    chain = next((c for c in chains(library, conversation_id) if c.base.id == document.id), None)
    changed = chain is not None and compare(document, chain.files(library), _of_document(library, fresh.id)).count
    updates = {update.id for update in chain.updates} if chain is not None else set()
    _replace(app, conversation_id, document.id, fresh)
    if changed:
        _mark_earlier(library, conversation_id, {document.id, *updates})


def _replace(app: App, conversation_id: str, document_id: str, fresh: Document) -> None:
    mapped = [d for d in app.library.documents(conversation_id) if d.kind == MAP and d.source == document_id]
    app.library.replace_attached(conversation_id, document_id, fresh.id)
    _move_maps(app, conversation_id, fresh, mapped)


def dismiss(app: App, conversation_id: str, document_id: str) -> None:
    """Takes back an offer: the archive that was added again is dropped."""
    offered = [
        v for v in app.library.versions(conversation_id) if v.state == "offered" and v.document_id == document_id
    ]
    app.library.forget_offers(conversation_id, document_id)
    _forget_unused(app, [version.newer_id for version in offered])


def _move_maps(app: App, conversation_id: str, fresh: Document, mapped: Sequence[Document]) -> None:
    """Where a map stood in for the folder, a new one does."""
    from app.before_reading.repository_map import use_map

    for old in mapped:
        app.library.detach(conversation_id, old.id)
        _forget_unused(app, [old.id])
        use_map(app, conversation_id, fresh)


def _of_document(library: Library, document_id: str) -> dict[str, _Now]:
    return {row.path: _Now(row.size, row.modified, row.sha256, not row.pages) for row in library.files(document_id)}


def _of_folder(root: Path, before: Mapping[str, FileRow], cancel: threading.Event | None) -> dict[str, _Now]:
    now: dict[str, _Now] = {}
    for path, (size, modified) in ingest.list_folder(root, cancel=cancel).items():
        row = before.get(path)
        same = row is not None and (row.size, row.modified) == (size, modified)
        now[path] = _Now(size, modified, row.sha256 if same and row is not None else _hash(root, path))
    return now


def _hash(root: Path, path: str) -> str:
    try:
        with os.fdopen(open_inside(root, path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (NotInside, OSError):
        return ""


def _fresh(
    app: App,
    conversation_id: str,
    chain: Chain,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> Document:
    """The folder as it is now, or the archive that was added again, as a document of the library."""
    from app.documents import ingest_rows

    library = app.library
    for version in library.versions(conversation_id):
        if version.state == "offered" and version.document_id == chain.base.id:
            return library.document(version.newer_id)
    earlier = earlier_reading(library, chain.base.id)
    languages = ingest.ocr_of(chain.base.extractor) or app.settings.ocr
    extracted = ingest.read_folder(
        Path(chain.base.source), progress=progress, cancel=cancel, earlier=earlier, ocr=languages
    )
    document = library.add_document(
        folder_sha256(library, extracted, chain.base.source),
        extracted.name,
        extracted.kind,
        extracted.extractor,
        ingest_rows(extracted),
        extracted.size,
        chain.base.source,
    )
    keep_files(library, document, extracted)
    return document


def _store_update(library: Library, chain: Chain, fresh: Document, changes: Changes) -> Document:
    """A document of a page that says what it replaces, then the new text of the files that were added or changed."""
    named = {*changes.added, *changes.changed}
    files = {row.path: row for row in library.files(fresh.id)}
    pages = {row.index: row for row in library.pages(fresh.id, words=True)}
    rows = [PageRow(1, "changes", update_text(chain.base.name, changes))]
    kept: list[FileRow] = []
    for path in [path for path in files if path in named]:
        row = files[path]
        if not row.pages:
            kept.append(row)
            continue
        kept.append(replace(row, first_page=len(rows) + 1))
        rows += [replace(pages[index], index=len(rows) + 1 + place) for place, index in enumerate(row.page_range)]
    kept += [FileRow(path, 0, 0, "", skipped=DELETED) for path in changes.deleted]
    for old, new in changes.renamed:
        kept.append(FileRow(old, 0, 0, "", skipped=RENAMED))
        kept.append(replace(files[new], first_page=0, pages=0, skipped=f"renamed from {old}"))
    gone = [path for path in changes.changed if path not in files]  # changed into something that is not read
    kept += [FileRow(path, 0, 0, "", skipped=DELETED) for path in gone]
    facts = "".join(sorted(f"{row.path}\0{row.sha256}\0{row.skipped}\n" for row in kept))
    last = [chain.base, *chain.updates][-1]  # not the base: files that go back and forth make a new update each time
    sha256 = hashlib.sha256(f"update of {last.sha256}\n{facts}".encode("utf-8", "surrogateescape")).hexdigest()
    size = sum(row.size for row in kept if row.pages)
    name = f"{chain.base.name}, newer versions"
    document = library.add_document(sha256, name, UPDATE, fresh.extractor, rows, size, chain.base.source)
    library.set_files(document.id, kept)
    return document


def update_text(name: str, changes: Changes) -> str:
    """What the model reads before the new versions."""
    lines = [
        f"Files of {name} changed after they were given above. What follows replaces the earlier versions of them."
    ]
    lines += [f"Changed: {path}" for path in changes.changed]
    lines += [f"Added: {path}" for path in changes.added]
    lines += [f"Deleted, its earlier text no longer counts: {path}" for path in changes.deleted]
    lines += [f"Renamed, its text is as before: {old} is now {new}" for old, new in changes.renamed]
    return "\n".join(lines) + "\n"


def _with_estimates(
    app: App,
    conversation_id: str,
    chain: Chain,
    changes: Changes,
    before: Mapping[str, FileRow],
    now: Mapping[str, _Now],
    known: Pace,
) -> Changes:
    """By what a byte of this document costs in tokens; the new text is not read yet."""
    tokens = app.document_tokens()
    counts = tokens.counts(chain.base.id)
    total = sum(counts.pages)
    read_bytes = sum(row.size for row in app.library.files(chain.base.id) if row.pages)
    per_byte = total / read_bytes if read_bytes else 0.25
    readable = (path for path in (*changes.added, *changes.changed) if path not in before or before[path].pages)
    new = round(sum(now[path].size for path in readable) * per_byte)
    touched = {*changes.changed, *changes.deleted, *(old for old, _ in changes.renamed)}
    first = min((before[p].first_page for p in touched if before[p].pages), default=len(counts.pages) + 1)
    if chain.updates:  # reading again makes one text of the folder and its updates
        first = min([first, *(row.first_page for u in chain.updates for row in _replaced(app.library, chain.base, u))])
    kept = sum(counts.pages[: first - 1])
    behind = [tokens.counts(document.id) for document in _behind(app.library, conversation_id, chain)]
    stale = sum(sum(counts.pages[page - 1] for page in before[p].page_range) for p in touched if before[p].pages)
    again = max(0, total - kept - stale) + new + sum(c.around + sum(c.pages) for c in behind)
    place = total + sum(c.around + sum(c.pages) for c in behind)
    renewed = sum(counts.pages[page - 1] for old, _ in changes.renamed for page in before[old].page_range)
    return replace(
        changes,
        append=estimate(app, new + NOTE_TOKENS, place, known),
        again=estimate(app, again + renewed, kept, known),
    )


NOTE_TOKENS = 60
"""About what the page that names the changes takes."""


def _replaced(library: Library, base: Document, update: Document) -> list[FileRow]:
    named = {row.path for row in library.files(update.id)}
    return [row for row in library.files(base.id) if row.pages and row.path in named]


def _behind(library: Library, conversation_id: str, chain: Chain) -> list[Document]:
    """Documents that stand behind this one and are not part of it: reading it again moves them."""
    attached = library.documents(conversation_id)
    place = next(number for number, document in enumerate(attached) if document.id == chain.base.id)
    own = {update.id for update in chain.updates}
    return [document for document in attached[place + 1 :] if document.id not in own]


def _forget_unused(app: App, document_ids: Sequence[str]) -> None:
    from app.documents import remove_unused

    remove_unused(app, document_ids)


def _share_copy(app: App, fresh: Document, update: Document) -> None:
    """Pages of a newer archive are drawn from it, so the update keeps its file."""
    from app.documents import share_copy

    share_copy(app, fresh, update.sha256)


def _mark_earlier(library: Library, conversation_id: str, documents: set[str]) -> None:
    """Citations and passages of earlier answers say that they are from a version that was replaced."""
    _mark(library, conversation_id, dict.fromkeys(documents))


def _mark_earlier_pages(library: Library, conversation_id: str, chain: Chain, changes: Changes) -> None:
    gone = {*changes.changed, *changes.deleted}
    pages = {
        document.id: {page for row in library.files(document.id) if row.path in gone for page in row.page_range}
        for document in (chain.base, *chain.updates)
    }
    _mark(library, conversation_id, pages)


def _mark(library: Library, conversation_id: str, pages: Mapping[str, set[int] | None]) -> None:
    for message in library.messages(conversation_id):
        changed = {}
        for key in ("citations", "passages"):
            rows = message.details.get(key) or []
            marked = [_marked(row, pages) for row in rows]
            if marked != rows:
                changed[key] = marked
        if changed:
            library.update_message(message.id, **changed)


def _marked(row: dict[str, object], pages: Mapping[str, set[int] | None]) -> dict[str, object]:
    document, name = str(row.get("document_id")), str(row.get("document"))
    if document not in pages or name.endswith(EARLIER):
        return row
    old = pages[document]
    return {**row, "document": name + EARLIER} if old is None or row.get("page") in old else row


def as_object(changes: Changes) -> dict[str, object]:
    """For JSON; `renamed` is a list of [old, new]."""
    return asdict(changes)
