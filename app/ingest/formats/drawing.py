"""What Word, PowerPoint and Excel files share: charts, diagrams, formulas, texts of pictures, raised digits."""

from __future__ import annotations

import re
from collections.abc import Callable

from lxml import etree

from app.ingest.formats.package import Package, attribute, child, local, whole

_FILE_NAME = re.compile(r"\S+\.(png|jpe?g|gif|bmp|tiff?|emf|wmf|svg|webp)", re.IGNORECASE)
_RAISED = re.compile(r"[-+−–]?\w{1,4}")
_ORDINALS = frozenset({"st", "nd", "rd", "th", "er", "re", "e", "o", "a", "tm", "sm", "me", "ème"})
MOST_POINTS = 10_000


def raised(before: str, text: str) -> str:
    """Superscript as plain text: 10 and a raised 2 are "10^2", 1 and a raised st are "1st"."""
    after_word = before[-1:].isalnum() or before[-1:] == ")"
    return "^" + text if after_word and _RAISED.fullmatch(text) and text.casefold() not in _ORDINALS else text


def alternative_text(description: str) -> str:
    """ "[Picture: a map]", or "" where the description says nothing."""
    description = " ".join(description.split())
    return f"[Picture: {description}]" if description and not _FILE_NAME.fullmatch(description) else ""


def formula(element: etree._Element) -> str:
    """Office Math on one line: fractions with "/", powers with "^", indices with "_"."""
    match local(element):
        case "t":
            return element.text or ""
        case "f":
            return f"({_inside(element, 'num')})/({_inside(element, 'den')})"
        case "sSup":
            return f"{_inside(element, 'e')}^{_grouped(element, 'sup')}"
        case "sSub":
            return f"{_inside(element, 'e')}_{_grouped(element, 'sub')}"
        case "sSubSup":
            return f"{_inside(element, 'e')}_{_grouped(element, 'sub')}^{_grouped(element, 'sup')}"
        case "rad":
            degree = _inside(element, "deg")
            return f"{'root' if degree else 'sqrt'}({degree}{', ' if degree else ''}{_inside(element, 'e')})"
        case "nary":
            properties = child(element, "naryPr", "chr")
            sign = "∫" if properties is None else attribute(properties, "val", "∫")
            ends = (("_", "sub"), ("^", "sup"))
            limits = "".join(mark + _grouped(element, part) for mark, part in ends if _inside(element, part))
            return f"{sign}{limits} {_inside(element, 'e')}"
        case "d":
            return "(" + ", ".join(formula(part) for part in element if local(part) == "e") + ")"
        case "mr":
            return ", ".join(map(formula, element)) + "; "
    return "".join(map(formula, element))


def _inside(element: etree._Element, name: str) -> str:
    found = child(element, name)
    return "" if found is None else formula(found).strip()


def _grouped(element: etree._Element, name: str) -> str:
    text = _inside(element, name)
    return text if len(text) == 1 else f"({text})"


def paragraphs(element: etree._Element) -> list[str]:
    """The paragraphs of a DrawingML text body, lower levels indented."""
    found = []
    for paragraph in element.iter("{*}p"):
        parts: list[str] = []
        _inline(paragraph, parts)
        properties = child(paragraph, "pPr")
        level = attribute(properties, "lvl", "0") if properties is not None else "0"
        text = "".join(parts).strip("\n")
        if text.strip():
            found.append("  " * min(8, whole(level)) + text.strip())
    return found


def _inline(element: etree._Element, parts: list[str]) -> None:
    for inner in element:
        match local(inner):
            case "r" | "fld":
                text = "".join(part.text or "" for part in inner if local(part) == "t")
                properties = child(inner, "rPr")
                shift = attribute(properties, "baseline", "0") if properties is not None else "0"
                parts.append(raised("".join(parts[-3:]), text) if not shift.startswith("-") and shift != "0" else text)
            case "br":
                parts.append("\n")
            case "oMath" | "oMathPara":
                parts.append(formula(inner))
            case "AlternateContent":
                chosen = inner[0] if len(inner) else None
                if chosen is not None:
                    _inline(chosen, parts)
            case "m":
                _inline(inner, parts)


def chart(package: Package, part: str, warn: Callable[[str], None]) -> list[list[str]]:
    """A chart as the table behind it: a column of categories, then one for each series; its title is the first cell.

    `warn` is told when it has more points than are read.
    """
    root = package.xml(part)
    title = child(root, "chart", "title")
    name = " ".join(paragraphs(title)) if title is not None else ""
    series = []
    for element in root.iter("{*}ser"):
        heading = child(element, "tx")
        label = " ".join(_points(heading).values()) if heading is not None else ""
        categories = next((inner for inner in element if local(inner) in ("cat", "xVal")), None)
        values = next((inner for inner in element if local(inner) in ("val", "yVal")), None)
        series.append((label, _points(categories), _points(values)))
    places = sorted({place for _, categories, values in series for place in (*categories, *values)})
    rows = [[f"Chart: {name}" if name else "Chart", *(label for label, _, _ in series)]]
    if len(places) > MOST_POINTS:
        warn(f"A chart was cut after {MOST_POINTS:,} of its {len(places):,} points.")
    for place in places[:MOST_POINTS]:
        named = next((categories[place] for _, categories, _ in series if place in categories), "")
        rows.append([named, *(values.get(place, "") for _, _, values in series)])
    return rows


def _points(element: etree._Element | None) -> dict[int, str]:
    if element is None:
        return {}
    found: dict[int, str] = {}
    for point in element.iter("{*}pt"):
        value = child(point, "v")
        index = whole(attribute(point, "idx", "0"), -1)
        if value is not None and value.text and index >= 0:
            # several levels of categories share one index: the outer ones come later and stand before
            text = _short_number(value.text)
            found[index] = f"{text} {found[index]}" if index in found else text
    if not found:
        direct = child(element, "v")
        if direct is not None and direct.text:
            found[0] = direct.text
    return found


def _short_number(text: str) -> str:
    """Stored numbers carry digits that no chart shows: 0.30000000000000004."""
    if len(text) < 12:
        return text
    try:
        return f"{float(text):.10g}"
    except ValueError:
        return text


def diagram(package: Package, part: str) -> list[str]:
    """The texts of a SmartArt diagram, in the order in which they were typed."""
    return [
        line
        for point in package.xml(part).iter("{*}pt")
        if attribute(point, "type", "node") in ("node", "asst")
        for line in paragraphs(point)
    ]
