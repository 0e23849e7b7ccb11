"""What the label of a page says to a reader."""

from __future__ import annotations

import re

_PLACE = re.compile(r"[ :]|L\d")


def names_place(label: str) -> bool:
    """Whether a label says by itself where to look ("Slide 4", "Sheet Budget, rows 41-80", "src/a.py:L1-80"), and is
    no number printed on a page ("xii", "12")."""
    return _PLACE.search(label) is not None
