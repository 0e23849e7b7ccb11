"""What is seen of a document that is read in parts: each window with what was found in it, and how much is covered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.citation_report import file_object
from app.citations import Citation
from app.pages import format_pages

PartPhase = Literal["waiting", "asking", "done", "kept"]
READ: frozenset[str] = frozenset({"done", "kept"})


@dataclass(frozen=True, slots=True)
class PartState:
    """One window of one document. pages: page numbers from 1, ascending. number counts from 1 over all documents.

    state: "kept" was asked before, for the same question, and is not asked again. quotes: sentences of its pages that
    help, each checked against the text. text: what the model wrote of it, where that is more than quotes. dropped: how
    many quotes of the model stand nowhere in the part and were left out. key tells the window and its text apart.
    """

    number: int
    document_id: str
    document: str
    pages: tuple[int, ...]
    state: PartPhase = "waiting"
    quotes: tuple[Citation, ...] = ()
    text: str = ""
    dropped: int = 0
    key: str = ""

    @property
    def found(self) -> bool:
        return bool(self.quotes or self.text)

    @property
    def read(self) -> bool:
        return self.state in READ

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Pages of all documents in the choice, how many of them were read, and those with no text to read."""

    pages_read: int
    pages: int
    without_text: int = 0

    @property
    def complete(self) -> bool:
        return self.pages_read == self.pages

    def as_dict(self) -> dict[str, Any]:
        return {
            "pages_read": self.pages_read,
            "pages": self.pages,
            "share": round(self.pages_read / self.pages, 4) if self.pages else 1.0,
            "without_text": self.without_text,
        }


@dataclass(frozen=True, slots=True)
class PartsState:
    """All windows, in reading order. level: 0 while windows are asked, from 1 on while findings are put together."""

    parts: tuple[PartState, ...]
    without_text: int = 0
    level: int = 0

    @property
    def current(self) -> PartState | None:
        return next((part for part in self.parts if part.state == "asking"), None)

    @property
    def done(self) -> int:
        return sum(part.read for part in self.parts)

    @property
    def coverage(self) -> Coverage:
        every = {(part.document_id, page) for part in self.parts for page in part.pages}
        unread = {(part.document_id, page) for part in self.parts if not part.read for page in part.pages}
        return Coverage(len(every) - len(unread), len(every), self.without_text)

    def rows(self) -> list[dict[str, Any]]:
        """For a message's details: the windows that are read, and the places of those that are not."""
        return [part.as_dict() for part in self.parts]

    def public(self) -> list[dict[str, Any]]:
        """For `--json`."""
        return [
            {
                "document": part.document,
                "pages": format_pages(part.pages),
                "read": part.read,
                "found": part.found,
                "quotes": [
                    {"page": q.page, **file_object(q.label), "quote": q.quote, "status": q.status} for q in part.quotes
                ],
            }
            for part in self.parts
        ]


def parts_from(details: Mapping[str, Any]) -> PartsState | None:
    """The parts that an answer's message has stored."""
    rows = details.get("parts")
    if not rows:
        return None
    return PartsState(_read(rows), int(details.get("parts_without_text") or 0))


def citation_from(row: Mapping[str, Any]) -> Citation:
    """A citation as it was stored in JSON."""
    return Citation(**{**row, "places": tuple(row.get("places", ()))})


def _read(rows: Sequence[Mapping[str, Any]]) -> tuple[PartState, ...]:
    parts = []
    for row in rows:
        quotes = tuple(map(citation_from, row["quotes"]))
        parts.append(PartState(**{**row, "pages": tuple(row["pages"]), "quotes": quotes}))
    return tuple(parts)
