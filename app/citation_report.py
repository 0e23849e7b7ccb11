"""Citations in words and as objects: the same on a terminal, in JSON and in exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from app.citations import Citation
from app.page_labels import names_place

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
    """
    by_app = citation.status == "attributed" and not citation.named
    return {
        "document": citation.document,
        "page": citation.page,
        "label": citation.label,
        "quote": citation.quote,
        "status": citation.status,
        "said": citation.said,
        "found_by": "app" if by_app else "answer",
        "last_page": citation.last_page or citation.page,
        "lines": [citation.first_line, citation.last_line] if citation.first_line else None,
    }


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
    """'manual.pdf, page 12', 'manual.pdf, pages 12-13', 'src/a.py:12-20', or 'no page'."""
    if citation.first_line:
        path = citation.label.rpartition(":")[0] or citation.document
        lines = "" if citation.last_line == citation.first_line else f"-{citation.last_line}"
        return f"{path}:{citation.first_line}{lines}"
    if citation.last_page:
        return f"{citation.document}, pages {citation.page}-{citation.last_page}"
    return place(citation.document, citation.page, citation.label)


def place(document: str, page: int, label: str) -> str:
    """'manual.pdf, page 12', with the label where it differs: 'manual.pdf, page 12 (printed xii)', 'a.pptx, page 4
    (Slide 4)'.

    page 0 is that of a quote which stands nowhere and for which the answer named no page.
    """
    if not page:
        return NO_PAGE
    if not label or label == str(page):
        return f"{document}, page {page}"
    return f"{document}, page {page} ({label if names_place(label) else f'printed {label}'})"
