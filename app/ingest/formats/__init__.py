"""Readers of formats beside PDF and plain text, one module each; they run in the reading child only.

Each module has `read(file, name, out, password)`: it fills `out` (app.ingest.formats.pages.Pages) from the open file,
raises BadInput or PasswordNeeded for a file that it cannot read, and lets LimitReached pass. Nothing is written to disk
and nothing is fetched.
"""

from __future__ import annotations

from importlib import import_module
from typing import BinaryIO

from app.errors import BadInput
from app.ingest.formats.pages import LimitReached, Pages

__all__ = ["KINDS", "Pages", "read", "version", "versions"]

# kind: (module, version of what it makes of a file). A higher version means that stored text is read anew.
_READERS = {
    "docx": ("word", 1),
    "pptx": ("slides", 1),
    "xlsx": ("workbook", 1),
    "csv": ("delimited", 1),
    "html": ("webpage", 1),
    "epub": ("epub", 1),
    "notebook": ("notebook", 1),
    "email": ("mail", 1),
    "rtf": ("rtf", 1),
    "odt": ("opendocument", 1),
    "ods": ("opendocument", 1),
    "odp": ("opendocument", 1),
}
KINDS = frozenset(_READERS)
_PARSED_AS_HTML = ("html", "epub", "email")


def version(kind: str) -> str:
    """The extractor's name and version for a document of this kind."""
    name = f"{kind} {_READERS[kind][1]}"
    if kind not in _PARSED_AS_HTML:
        return name
    from importlib.metadata import version as installed  # here, since it is slow to load and children do not need it

    return f"{name} (lxml {installed('lxml')})"


def versions() -> str:
    """One short text that changes when any reader does: part of a folder's extractor."""
    return " ".join(f"{kind} {number}" for kind, (_, number) in _READERS.items())


def read(kind: str, file: BinaryIO, name: str, out: Pages, password: str | None = None) -> str:
    """Fill `out`; returns why reading stopped early ("it has more than 5,000 pages"), or "". Raises BadInput."""
    reason = ""
    try:
        import_module(f"app.ingest.formats.{_READERS[kind][0]}").read(file, name, out, password)
    except LimitReached as limit:
        reason = limit.reason
    if not reason and not any(text for _, text in out.pages):
        only = f", only {out.pictures:,} pictures" if out.pictures > 1 else ", only a picture" if out.pictures else ""
        raise BadInput(
            f"{name} holds no text{only}.",
            "Save it as PDF, then make its text readable, for example with `ocrmypdf in.pdf out.pdf`."
            if only
            else "Open a file with text in it.",
        )
    return reason
