"""Styles of a Word document: which are headings, and which number their paragraphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lxml import etree

from app.ingest.formats.package import attribute, child, local, whole


@dataclass(frozen=True, slots=True)
class Style:
    """outline: heading level from 0, None for running text. list_id: "" where the style numbers nothing."""

    name: str
    based_on: str
    outline: int | None
    list_id: str
    list_level: int


def styles(root: etree._Element) -> Iterator[tuple[str, Style]]:
    for element in root:
        if local(element) != "style":
            continue
        name = child(element, "name")
        base = child(element, "basedOn")
        outline = child(element, "pPr", "outlineLvl")
        level = attribute(outline, "val") if outline is not None else ""
        own = list_of(child(element, "pPr"))
        shown = attribute(name, "val") if name is not None else ""
        if not level and shown.casefold().startswith("heading ") and whole(shown[8:]):
            level = str(whole(shown[8:]) - 1)
        yield (
            attribute(element, "styleId"),
            Style(
                shown,
                attribute(base, "val") if base is not None else "",
                whole(level, -1) if whole(level, -1) >= 0 else None,
                own[0] if own else "",
                own[1] if own else 0,
            ),
        )


def list_of(properties: etree._Element | None) -> tuple[str, int] | None:
    """(list, level from 0) that paragraph properties name, or None."""
    found = child(properties, "numPr")
    if found is None:
        return None
    list_id, level = child(found, "numId"), child(found, "ilvl")
    place = attribute(level, "val", "0") if level is not None else "0"
    return (attribute(list_id, "val") if list_id is not None else ""), whole(place)
