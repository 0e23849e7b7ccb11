"""Files inside a folder or archive as the library keeps them: stored with their document, known at the next reading."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from app import ingest
from app.ingest.collected import PDF, label_in_file
from app.page_labels import file_page
from storage import FileRow

if TYPE_CHECKING:
    from storage import Document, Library, PageRow

SETTLED_NS = 2_000_000_000
"""A file that was changed so shortly before it was read may have been changed again within the clock's grain."""


def keep_files(library: Library, document: Document, extracted: ingest.Extracted) -> None:
    """Stores the list of files. Of a document that was stored before only sizes and times are brought up to date."""
    rows = [
        FileRow(f.path, f.size, f.modified, f.sha256, f.extractor, f.first_page, f.pages, f.skipped, f.scanned)
        for f in extracted.files
    ]
    stored = library.files(document.id)
    if stored:
        now = {row.path: row for row in rows}
        kept = [
            replace(row, size=now[row.path].size, modified=now[row.path].modified) if row.path in now else row
            for row in stored
        ]
        known = {row.path for row in stored}
        rows = [*kept, *(row for row in rows if row.path not in known and not row.pages)]
    if rows:
        library.set_files(document.id, rows)


def folder_sha256(library: Library, extracted: ingest.Extracted, source: str) -> str:
    """What a folder's document is stored under: its content, and its place too where the same content lies in another
    folder already, as each may change for itself."""
    own = hashlib.sha256(f"{source}\0{extracted.sha256}".encode("utf-8", "surrogateescape")).hexdigest()
    same = library.find_document(extracted.sha256, extracted.extractor)
    apart = (same is not None and same.source != source) or library.find_document(own, extracted.extractor) is not None
    return own if apart else extracted.sha256


def learn_left_out(library: Library, document_id: str, fresh_id: str) -> None:
    """Files that a fresh reading left out are known from now on, so that they are not taken for new ones again."""
    known = library.files(document_id)
    paths = {row.path for row in known}
    library.set_files(
        document_id, [*known, *(r for r in library.files(fresh_id) if not r.pages and r.path not in paths)]
    )


def earlier_reading(library: Library, document_id: str | None) -> ingest.Earlier:
    """What the next reading of the same folder may take from this document; nothing without one."""
    if document_id is None:
        return ingest.Earlier(text=lambda sha256, extractor: known_text(library, sha256, extractor))
    document = library.document(document_id)
    files = [row for row in library.files(document_id) if row.pages]
    settled = int(document.added * 1e9) - SETTLED_NS
    trusted = [row for row in files if 0 < row.modified < settled]
    return ingest.Earlier(
        order=[(row.path, row.sha256) for row in files],
        unchanged={row.path: (row.size, row.modified) for row in trusted},
        facts={row.path: (row.sha256, row.extractor) for row in trusted},
        text=lambda sha256, extractor: known_text(library, sha256, extractor),
    )


def known_text(library: Library, sha256: str, extractor: str) -> list[ingest.FilePageText] | None:
    """Pages that this extractor once made of these bytes, in a folder or alone."""
    inside = library.file_pages(sha256, extractor)
    if inside is not None:
        path, rows = inside
        labels = [row.label.removeprefix(f"{ingest.printable(path)}:") for row in rows]
        if extractor.startswith(PDF):
            labels = [label_in_file("pdf", number, _printed(row.label, number)) for number, row in enumerate(rows, 1)]
        return [_page(label, row) for label, row in zip(labels, rows, strict=True)]
    alone = library.find_document(sha256, extractor)
    if alone is None:
        return None
    return [_page(label_in_file(alone.kind, row.index, row.label), row) for row in library.pages(alone.id, words=True)]


def _printed(label: str, number: int) -> str:
    """What is printed on a page of a PDF in a folder; earlier versions kept only that in its label."""
    file = file_page(label)
    if file is None:
        return ""
    return file.printed or (str(file.page) if file.page != number else "")


def _page(label: str, row: PageRow) -> ingest.FilePageText:
    return ingest.FilePageText(label, row.text, row.flag, row.pictures, row.formulas, row.ocr, row.words)
