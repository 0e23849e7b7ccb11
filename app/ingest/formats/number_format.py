"""Numbers and dates of a spreadsheet as people see them: an Excel number format applied to a stored number."""

from __future__ import annotations

import re
from calendar import day_name, month_name
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache

# Formats that files name by number only. Those that follow the reader's country are told as ISO dates.
BUILT_IN = {
    0: "General", 1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 5: "$#,##0;($#,##0)", 6: "$#,##0;($#,##0)",
    7: "$#,##0.00;($#,##0.00)", 8: "$#,##0.00;($#,##0.00)", 9: "0%", 10: "0.00%", 11: "0.00E+00", 12: "# ?/?",
    13: "# ??/??", 14: "yyyy-mm-dd", 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm AM/PM", 19: "h:mm:ss AM/PM",
    20: "h:mm", 21: "h:mm:ss", 22: "yyyy-mm-dd h:mm", 37: "#,##0;(#,##0)", 38: "#,##0;(#,##0)",
    39: "#,##0.00;(#,##0.00)", 40: "#,##0.00;(#,##0.00)", 45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0", 48: "##0.0E+0",
    49: "@", **dict.fromkeys((*range(27, 32), 36, *range(50, 55), 57, 58), "yyyy-mm-dd"),
    **dict.fromkeys((32, 33, 34, 35, 55, 56), "h:mm:ss"),
}  # fmt: skip
_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"?|\\(?P<escaped>.)|_(?P<space>.)|\*(?P<fill>.)|\[(?P<bracket>[^\]]*)\]'
    r"|(?P<general>General)|(?P<half>AM/PM|A/P)|(?P<exponent>E[+-])"
    r"|(?P<date>y+|m+|d+|h+|s+|e+|g+)|(?P<digit>[0#?])|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
_CONDITION = re.compile(r"(<=|>=|<>|<|>|=)\s*(-?\d+(?:\.\d+)?)")
_MONTHS = tuple(month_name)[1:]
_DAYS = tuple(day_name)
_MOST_SERIAL = 2_958_466  # the last day of the year 9999
Tokens = list[tuple[str, str]]


@lru_cache(maxsize=2_000)
def formatter(code: str, from_1904: bool = False) -> Callable[[float], str]:
    """What shows a number in this format. It never fails: an odd format or number is shown as General does."""
    sections = [_tokens(section) for section in _sections(code[:500])]
    conditions = [_condition(section) for section in sections]

    def show(value: float) -> str:
        tokens, value = _choose(sections, conditions, value)
        kinds = {kind for kind, _ in tokens}
        try:
            if _is_date(tokens):
                return _date(tokens, value, from_1904)
            if "general" in kinds or not tokens:
                return _literals(tokens, "general", general(value))
            if "text" in kinds:
                return _literals(tokens, "text", general(value))
            if any(kind == "other" and text == "/" for kind, text in tokens) and "digit" in kinds:
                return general(value)  # fractions
            return _number(tokens, value)
        except (ValueError, OverflowError, InvalidOperation):
            return general(value)

    return show


def general(value: float) -> str:
    """As in a cell that is wide enough: whole numbers in full, others with up to ten digits."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.10g}".replace("e", "E")


def _sections(code: str) -> list[str]:
    return re.split(r';(?=(?:[^"]*"[^"]*")*[^"]*$)', code.replace("\\;", "\\\x01"))[:4]


def _tokens(section: str) -> Tokens:
    tokens: Tokens = []
    for match in _TOKEN.finditer(section):
        kind = match.lastgroup or "other"
        text = match.group(kind)
        match kind:
            case "quoted":
                tokens.append(("literal", text))
            case "escaped":
                tokens.append(("literal", text.replace("\x01", ";")))
            case "space" | "fill":
                tokens.append(("literal", ""))
            case "bracket":
                low = text.lower()
                if low and set(low) in ({"h"}, {"m"}, {"s"}):
                    tokens.append(("elapsed", low))
                elif text.startswith("$"):
                    tokens.append(("literal", text[1:].split("-")[0]))
                elif _CONDITION.match(text):
                    tokens.append(("condition", text))
            case "date":
                tokens.append(("date", text.lower()))
            case "other" if text == "@":
                tokens.append(("text", text))
            case _:
                tokens.append((kind, text))
    return tokens


def _condition(tokens: Tokens) -> tuple[str, float] | None:
    for kind, text in tokens:
        match = _CONDITION.match(text) if kind == "condition" else None
        if match:
            return match[1], float(match[2])
    return None


def _choose(sections: list[Tokens], conditions: list[tuple[str, float] | None], value: float) -> tuple[Tokens, float]:
    if any(conditions):
        for section, condition in zip(sections, conditions):
            if condition is None or _holds(value, *condition):
                return section, abs(value) if condition is not None and value < 0 else value
        return [("general", "")], value
    if value < 0 and len(sections) > 1:
        return sections[1], abs(value)
    if value == 0 and len(sections) > 2:
        return sections[2], value
    return sections[0], value


def _holds(value: float, sign: str, bound: float) -> bool:
    return {
        "<": value < bound, ">": value > bound, "<=": value <= bound, ">=": value >= bound,
        "=": value == bound, "<>": value != bound,
    }[sign]  # fmt: skip


def _literals(tokens: Tokens, place: str, text: str) -> str:
    if not tokens:
        return text
    shown = [text if kind == place else part if kind in ("literal", "other") else "" for kind, part in tokens]
    return "".join(shown).strip()


def _is_date(tokens: Tokens) -> bool:
    return any(kind in ("date", "elapsed", "half") for kind, _ in tokens)


def _date(tokens: Tokens, value: float, from_1904: bool) -> str:
    if not 0 <= value < _MOST_SERIAL:
        return general(value)
    step = 10 ** (3 - min(3, sum(kind == "digit" for kind, _ in tokens)))  # milliseconds that are shown
    milliseconds = round(value * 86_400_000 / step) * step
    start = datetime(1904, 1, 1) if from_1904 else datetime(1899, 12, 30 if value >= 60 else 31)
    moment = start + timedelta(milliseconds=milliseconds)
    twelve = any(kind == "half" for kind, _ in tokens)
    total_seconds = milliseconds // 1000
    shown: list[str] = []
    fraction = 0
    for place, (kind, part) in enumerate(tokens):
        match kind:
            case "elapsed":
                unit = {"h": total_seconds // 3600, "m": total_seconds // 60, "s": total_seconds}[part[0]]
                shown.append(str(unit).zfill(len(part)))
            case "half":
                shown.append("AM" if moment.hour < 12 else "PM")
            case "date":
                shown.append(_date_part(part, moment, twelve, _is_minutes(tokens, place)))
            case "digit":
                digits = f"{moment.microsecond // 1000:03}"
                shown.append(digits[fraction] if fraction < 3 else "")
                fraction += 1
            case "literal" | "other":
                shown.append(part)
    return "".join(shown).strip()


def _is_minutes(tokens: Tokens, place: int) -> bool:
    """An m stands for minutes next to hours or seconds."""
    if tokens[place][1][0] != "m" or len(tokens[place][1]) > 2:
        return False
    before = next((part for kind, part in reversed(tokens[:place]) if kind in ("date", "elapsed")), "")
    after = next((part for kind, part in tokens[place + 1 :] if kind in ("date", "elapsed")), "")
    return before[:1] == "h" or after[:1] == "s"


def _date_part(part: str, moment: datetime, twelve: bool, minutes: bool) -> str:
    length = len(part)
    match part[0]:
        case "y" | "e":
            return f"{moment.year % 100:02}" if length <= 2 and part[0] == "y" else str(moment.year)
        case "m" if minutes:
            return str(moment.minute).zfill(length)
        case "m":
            name = _MONTHS[moment.month - 1]
            return {3: name[:3], 4: name, 5: name[0]}.get(length, str(moment.month).zfill(min(length, 2)))
        case "d":
            name = _DAYS[moment.weekday()]
            return name[:3] if length == 3 else name if length > 3 else str(moment.day).zfill(length)
        case "h":
            return str((moment.hour % 12 or 12) if twelve else moment.hour).zfill(length)
        case "s":
            return str(moment.second).zfill(length)
    return ""


def _number(tokens: Tokens, value: float) -> str:
    """Digits by their placeholders, with what stands before, between and behind them."""
    places = [place for place, (kind, _) in enumerate(tokens) if kind == "digit"]
    if not places:
        return _literals(tokens, "", "")
    first, last = places[0], places[-1]
    inner = tokens[first : last + 1]
    point = next((place for place, token in enumerate(inner) if token == ("other", ".")), len(inner))
    exponent = next((place for place, (kind, _) in enumerate(inner) if kind == "exponent"), len(inner))
    behind = [text for _, text in tokens[last + 1 :]]
    commas = next((count for count, text in enumerate(behind) if text != ","), len(behind))
    number = Decimal(repr(value)) / (Decimal(1000) ** commas)
    number *= Decimal(100) ** sum(text == "%" for kind, text in tokens if kind == "other")
    whole, decimals = inner[: min(point, exponent)], inner[point + 1 : exponent] if point < exponent else []
    least = sum(text == "0" for kind, text in decimals if kind == "digit")
    most = sum(kind == "digit" for kind, _ in decimals)
    if exponent < len(inner):
        digits = _scientific(number, most, sum(kind == "digit" for kind, _ in inner[exponent:]))
    else:
        rounded = number.quantize(Decimal(1).scaleb(-most), ROUND_HALF_UP)
        text, _, rest = f"{abs(rounded):f}".partition(".")
        while len(rest) > least and rest.endswith("0"):
            rest = rest[:-1]
        digits = _grouped(text, whole) + ("." + rest if rest else "")
        if rounded < 0:
            digits = "-" + digits
    before = "".join(text for kind, text in tokens[:first] if kind in ("literal", "other"))
    after = "".join(text for kind, text in tokens[last + 1 + commas :] if kind in ("literal", "other"))
    if digits.startswith("-"):
        return f"-{before}{digits[1:]}{after}".strip()
    return f"{before}{digits}{after}".strip()


def _grouped(text: str, whole: Tokens) -> str:
    least = sum(part == "0" for kind, part in whole if kind == "digit")
    text = text.lstrip("0").zfill(least) if least else text.lstrip("0")
    if any(token == ("other", ",") for token in whole):
        return f"{int(text or '0'):,}".zfill(len(text)) if text else ""
    if all(kind == "digit" for kind, _ in whole):
        return text
    shown: list[str] = []  # digits with marks between them, as in telephone numbers: filled from the right
    for place in range(len(whole) - 1, -1, -1):
        kind, part = whole[place]
        if kind != "digit":
            shown.append(part)
        elif text:
            shown.append(text[-1])
            text = text[:-1]
    return text + "".join(reversed(shown))


def _scientific(number: Decimal, decimals: int, exponent_digits: int) -> str:
    mantissa, _, exponent = f"{number:.{decimals}E}".partition("E")
    power = int(exponent)
    return f"{mantissa}E{'-' if power < 0 else '+'}{str(abs(power)).zfill(max(1, exponent_digits))}"
