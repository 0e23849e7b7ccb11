"""Sizes, lengths, times and lists as people write them: '20GB' is bytes, '12k' is tokens (1k = 1024)."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")
_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES[_letter] = _BYTES[_letter + "b"] = 1000**_power
    _BYTES[_letter + "ib"] = 1024**_power
_TOKENS = {"": 1, "k": 1024, "m": 1024**2}


def parse_size(text: str) -> int:
    """'20GB', '512 MiB' or '1000000' -> bytes. ValueError when it is none of these."""
    return _scaled(text, _BYTES)


def parse_length(text: str) -> int:
    """'12k', '1M' or '12288' -> tokens. ValueError when it is none of these."""
    return _scaled(text, _TOKENS)


def format_size(size: int | float) -> str:
    """Bytes -> '94 MB', '1.5 GB'."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def format_time(seconds: float) -> str:
    """Seconds -> '40 s', '3 min', '1 h 20 min': as exact as an estimate deserves."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def listed(names: Sequence[str], most: int = 5) -> str:
    """'a, b and 3 more'."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def _scaled(text: str, units: dict[str, int]) -> int:
    found = _NUMBER.match(text)
    factor = units.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise ValueError(f"cannot read {text!r} as an amount")
    return int(float(found[1]) * factor)
