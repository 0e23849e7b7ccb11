"""Numbers of Word's numbered paragraphs ("4.2", "(a)", "iv."): Word stores the rules, readers cite the numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from lxml import etree

from app.ingest.formats.package import attribute, child, local

LEVELS = 9
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
          (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Level:
    start: int
    format: str
    text: str
    legal: bool  # all numbers in it in digits


@dataclass(slots=True)
class _List:
    """counts are shared by all lists made from the same definition, as Word does, unless one restarts them."""

    levels: dict[int, _Level]
    counts: list[int | None]
    restarts: dict[int, int] = field(default_factory=dict)


class Numbering:
    """Counts through a document from its start; root: the numbering part, or None."""

    def __init__(self, root: etree._Element | None) -> None:
        self._lists: dict[str, _List] = {}
        if root is None:
            return
        definitions: dict[str, _List] = {}
        for element in root:
            if local(element) == "abstractNum":
                levels = dict(_level(inner) for inner in element if local(inner) == "lvl")
                definitions[attribute(element, "abstractNumId")] = _List(levels, [None] * LEVELS)
        for element in root:
            if local(element) != "num":
                continue
            link = child(element, "abstractNumId")
            base = definitions.get(attribute(link, "val")) if link is not None else None
            if base is not None:
                self._lists[attribute(element, "numId")] = _overridden(element, base)

    def next(self, list_id: str, level: int) -> str:
        """The number of the next paragraph on this level (from 0), a bullet, or ""."""
        found = self._lists.get(list_id)
        rule = found.levels.get(level) if found is not None else None
        if found is None or rule is None or not 0 <= level < LEVELS:
            return ""
        if level in found.restarts:
            found.counts[level] = found.restarts.pop(level)
        else:
            before = found.counts[level]
            found.counts[level] = rule.start if before is None else before + 1
        found.counts[level + 1 :] = [None] * (LEVELS - level - 1)
        if rule.format == "bullet":
            return "•"
        if rule.format == "none":
            return ""
        text = rule.text
        for place in range(level + 1):
            if f"%{place + 1}" in text:
                text = text.replace(f"%{place + 1}", _shown(found, place, rule.legal))
        return text


def _level(element: etree._Element) -> tuple[int, _Level]:
    def value(name: str, default: str) -> str:
        found = child(element, name)
        return default if found is None else attribute(found, "val", default)

    legal = child(element, "isLgl") is not None
    level = _Level(_number(value("start", "1"), 1), value("numFmt", "decimal"), value("lvlText", "")[:100], legal)
    return _number(attribute(element, "ilvl", "0"), 0), level


def _overridden(element: etree._Element, base: _List) -> _List:
    levels, restarts = dict(base.levels), {}
    for override in element:
        if local(override) != "lvlOverride":
            continue
        place = _number(attribute(override, "ilvl", "0"), 0)
        start = child(override, "startOverride")
        if start is not None:
            restarts[place] = _number(attribute(start, "val", "1"), 1)
        own = child(override, "lvl")
        if own is not None:
            levels[place] = _level(own)[1]
    return _List(levels, base.counts, restarts) if restarts or levels != base.levels else base


def _shown(found: _List, place: int, legal: bool) -> str:
    rule = found.levels.get(place)
    count = found.counts[place]
    if rule is None:
        return ""
    number = rule.start if count is None else count
    match "decimal" if legal else rule.format:
        case "upperRoman":
            return _roman(number).upper()
        case "lowerRoman":
            return _roman(number)
        case "upperLetter":
            return _letters(number).upper()
        case "lowerLetter":
            return _letters(number)
        case "decimalZero":
            return f"{number:02}"
        case "ordinal":
            ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
            return f"{number}{ending}"
        case "none":
            return ""
    return str(number)


def _roman(number: int) -> str:
    if not 0 < number < 4000:
        return str(number)
    text = ""
    for value, letters in _ROMAN:
        text += letters * (number // value)
        number %= value
    return text


def _letters(number: int) -> str:
    """a to z, then aa, bb, as Word counts."""
    if not 0 < number <= 26 * 20:
        return str(number)
    return chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)


def _number(text: str, default: int) -> int:
    try:
        return min(max(int(text), 0), 1_000_000)
    except ValueError:
        return default
