"""Citations in words and as objects: the same on a terminal, in JSON and in exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from app.citations import Citation
from app.citations.citation import line_label
from app.page_labels import EARLIER, FilePage, file_page, names_place

NO_PAGE = "no page"
SYMBOLS = {"verified": "✓", "near": "≈", "not_found": "✗", "attributed": "↗"}
_WORDS = {
    "attributed": "found by the app: it shares the words of the answer",
    "verified": "quote found",
    "near": "nearly this wording",
    "not_found": "quote not found in the document",
}
_NAMED = "named by the answer, which uses its words"


def citation_object(citation: Citation) -> dict[str, Any]:
    """For programs. page 0: none. found_by: "app" where nothing but the app's comparison of words led to the page.

    said: the page that the answer named instead, or "". lines: [first, last] where pages have line numbers, else null.
    file, file_page: in a folder or archive the path of the file and the page in it, else null; the page is null too
    where the file has lines instead.
    """
    by_app = citation.status == "attributed" and not citation.named
    return {
        "document": citation.document,
        "page": citation.page,
        "label": citation.label,
        **file_object(citation.label),
        "quote": citation.quote,
        "status": citation.status,
        "said": citation.said,
        "found_by": "app" if by_app else "answer",
        "last_page": citation.last_page or citation.page,
        "lines": [citation.first_line, citation.last_line] if citation.first_line else None,
    }


def file_object(label: str) -> dict[str, Any]:
    """The file inside a folder or archive that a page's label names, and the page in that file."""
    file = file_page(label)
    if file is not None:
        return {"file": file.path, "file_page": file.page or None}
    lines = line_label(label)
    return {"file": (lines.path if lines else "") or None, "file_page": None}


def stored_citation(stored: Mapping[str, Any]) -> Citation:
    """From a message's details; what an older version did not store is empty."""
    known = {field.name for field in fields(Citation)}
    kept = {name: value for name, value in stored.items() if name in known}
    return Citation(**{**kept, "places": tuple(kept.get("places") or ())})


def status_words(citation: Citation) -> str:
    """How far it was checked, and what the answer said instead: "quote found; the answer said p. 3"."""
    words = _NAMED if citation.status == "attributed" and citation.named else _WORDS[citation.status]
    return f"{words}; the answer said {citation.said}" if citation.said else words


def citation_place(citation: Citation) -> str:
    """'manual.pdf, page 12', 'manual.pdf, pages 12-13', 'src/a.py:12-20', 'docs/manual.pdf, page 3', or 'no page'."""
    if citation.first_line:
        path = citation.label.rpartition(":")[0] or citation.document
        lines = "" if citation.last_line == citation.first_line else f"-{citation.last_line}"
        return f"{path}:{citation.first_line}{lines}"
    if citation.last_page:
        file = file_page(citation.label)
        if file is not None and file.page:
            last = file.page + citation.last_page - citation.page
            return f"{_file_name(file, citation.document)}, pages {file.page}-{last}"
        return f"{citation.document}, pages {citation.page}-{citation.last_page}"
    return place(citation.document, citation.page, citation.label)


def place(document: str, page: int, label: str) -> str:
    """'manual.pdf, page 12', with the label where it differs: 'manual.pdf, page 12 (printed xii)', 'a.pptx, page 4
    (Slide 4)'. A page of a file in a folder goes by the file: 'docs/manual.pdf, page 3'.

    page 0 is that of a quote which stands nowhere and for which the answer named no page.
    """
    if not page:
        return NO_PAGE
    file = file_page(label)
    if file is not None:
        printed = f" (printed {file.printed})" if file.page and file.printed else ""
        return f"{_file_name(file, document)}, page {file.number}{printed}"
    if not label or label == str(page):
        return f"{document}, page {page}"
    return f"{document}, page {page} ({label if names_place(label) else f'printed {label}'})"


def short_place(document: str, page: int, label: str) -> tuple[str, str]:
    """(file or document, 'p. 3') for tables; page is not 0."""
    file = file_page(label)
    return (_file_name(file, document), f"p. {file.number}") if file is not None else (document, f"p. {page}")


def _file_name(file: FilePage, document: str) -> str:
    return file.path + EARLIER * document.endswith(EARLIER)
