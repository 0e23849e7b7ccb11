"""A choice of pages, as people write it: '1-12,15'."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import Any

from app.errors import WrongUse

_RANGE = re.compile(r"(\d+)(-(\d+)?)?")
Ranges = tuple[tuple[int, int | None], ...]
"""(first, last) page numbers from 1, both included; last None means to the end."""


@dataclass(frozen=True, slots=True)
class PageChoice:
    """Which pages of which document are read. A document without an entry is read by `every`, else in full."""

    documents: Mapping[str, Ranges] = field(default_factory=lambda: MappingProxyType({}))
    every: Ranges | None = None

    @classmethod
    def parse(cls, text: str, document_id: str | None = None) -> PageChoice:
        """'1-12,15', '30-' or 'none', for one document or for every document. Raises WrongUse."""
        ranges = parse_ranges(text)
        return cls(every=ranges) if document_id is None else cls({document_id: ranges})

    def join(self, other: PageChoice) -> PageChoice:
        """Both choices; the other one's entries win."""
        return PageChoice({**self.documents, **other.documents}, self.every if other.every is None else other.every)

    def pages(self, document_id: str, total: int) -> tuple[int, ...]:
        """Page numbers from 1, ascending. Raises WrongUse for a page that the document does not have."""
        ranges = self.documents.get(document_id, self.every)
        if ranges is None:
            return tuple(range(1, total + 1))
        chosen: set[int] = set()
        for first, last in ranges:
            if first > total or (last or 0) > total:
                raise WrongUse(
                    f"Page {max(first, last or 0)} was chosen, but the document has {total} pages.",
                    f"Choose among pages 1-{total}.",
                )
            chosen.update(range(first, (last or total) + 1))
        return tuple(sorted(chosen))


def parse_ranges(text: str) -> Ranges:
    if text.strip().lower() in ("none", "no", "-"):
        return ()
    ranges: list[tuple[int, int | None]] = []
    for part in re.split(r"[,;\s]+", re.sub(r"\s*[-–]\s*", "-", text.strip())):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise WrongUse(f"{text!r} is no choice of pages.", "Write pages like 1-12,15.")
        first = int(found[1])
        last = int(found[3]) if found[3] else (None if found[2] else first)
        if first < 1 or (last is not None and last < first):
            raise WrongUse(f"{part!r} is no range of pages.", "Write the smaller page first, from 1 on.")
        ranges.append((first, last))
    return tuple(ranges)


def format_pages(pages: Sequence[int]) -> str:
    """(1, 2, 3, 7) -> '1-3,7'."""
    parts: list[str] = []
    start = previous = None
    for page in [*pages, None]:
        if previous is not None and page == previous + 1:
            previous = page
            continue
        if start is not None:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = page
    return ",".join(parts)


def choice_as_text(pages: PageChoice | None) -> dict[str, str] | None:
    """A choice of pages for an answer's details: the ranges by document id, those of every other one under ''."""
    if pages is None:
        return None
    every = {} if pages.every is None else {"": pages.every}
    return {id: _as_text(ranges) for id, ranges in {**pages.documents, **every}.items()}


def _as_text(ranges: Ranges) -> str:
    """((1, 12), (30, None)) -> '1-12,30-'."""
    return ",".join(f"{first}-{last or ''}" for first, last in ranges) or "none"


def choice_from(details: Mapping[str, Any]) -> PageChoice | None:
    """The choice of pages that an answer's message has stored."""
    stored = details.get("pages")
    if not stored:
        return None
    return reduce(PageChoice.join, (PageChoice.parse(ranges, id or None) for id, ranges in stored.items()))
