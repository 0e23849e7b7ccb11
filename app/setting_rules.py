"""The rules of settings: from what was written to a value, or ValueError('need ...')."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

Parse = Callable[[object], Any]
"""Value of a TOML file, text of the environment or of a flag, or a ready value -> value. ValueError('need ...')."""


def choice(*values: str, later: Mapping[str, str] | None = None) -> Parse:
    def parse(given: object) -> str:
        chosen = str(given).strip()
        if chosen in values:
            return chosen
        why = (later or {}).get(chosen)
        raise ValueError(f"need {' or '.join(values)}" + (f" ({why})" if why else ""))

    return parse


def text(given: object) -> str:
    if isinstance(given, str | os.PathLike) and str(given).strip():
        return str(given).strip()
    raise ValueError("need a name or a path")


def whole(low: int, high: int, need: str, read: Callable[[str], int] = int, auto: bool = False) -> Parse:
    """A whole number in low..high, written as `read` understands it; with auto, None and 'auto' stand for None."""

    def parse(given: object) -> int | None:
        if auto and (given is None or given == "auto"):
            return None
        try:
            if isinstance(given, bool) or not isinstance(given, int | str):
                raise ValueError
            value = given if isinstance(given, int) else read(given)
        except ValueError:
            raise ValueError(f"need {need}") from None
        if not low <= value <= high:
            raise ValueError(f"need {need}")
        return value

    return parse


def switch(given: object) -> bool:
    if isinstance(given, bool):
        return given
    said = str(given).strip().lower()
    if said not in ("true", "false"):
        raise ValueError("need true or false")
    return said == "true"


def pattern_name(given: object) -> str:
    name = str(given).strip()
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
        raise ValueError("need exact, balanced, fast or the name of an attention pattern")
    return name


def ocr_languages(given: object) -> str:
    """Names of tesseract's languages joined by +, or nothing."""
    name = str(given).strip()
    if name and not re.fullmatch(r"[A-Za-z][\w/]{1,40}(\+[A-Za-z][\w/]{1,40}){0,5}", name):
        raise ValueError("need names of languages such as eng or deu+eng, or nothing")
    return name


def device_name(given: object) -> str:
    """auto, cpu, cuda or cuda:N; a bare N is that card."""
    name = str(given).strip()
    if not isinstance(given, bool) and name.isdecimal():
        name = f"cuda:{int(name)}"
    if re.fullmatch(r"auto|cpu|cuda(:(0|[1-9]\d*))?", name):
        return name
    raise ValueError("need auto, cpu, cuda, or cuda:N for card N")


def divisor_of_64(given: object) -> int:
    need = "1, 2, 4, 8, 16, 32 or 64"
    value = whole(1, 64, need)(given)
    if 64 % value:
        raise ValueError(f"need {need}")
    return value


def number(low: float, high: float, auto: bool = False) -> Parse:
    def parse(given: object) -> float | None:
        if auto and (given is None or given == "auto"):
            return None
        try:
            if isinstance(given, bool) or not isinstance(given, int | float | str):
                raise ValueError
            value = float(given)
        except ValueError:
            raise ValueError(f"need a number from {low:g} to {high:g}") from None
        if not low <= value <= high:
            raise ValueError(f"need a number from {low:g} to {high:g}")
        return value

    return parse
