"""What a page's label says to a reader: a number printed on it, a place in a file, or a page of a file in a folder.

The label of a page of a file in a folder or archive is "docs/manual.pdf:p3", with what is printed on that page behind
it where it is another name: "docs/manual.pdf:p3 (xii)".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

EARLIER = " (earlier version)"
"""Behind the name of a document of which a cited page was replaced by a newer version."""
_PLACE = re.compile(r"[ :]|L\d")
_FILE_PAGE = re.compile(r"(?P<path>.+?):p(?P<page>\d+)(?: \((?P<printed>.*)\))?", re.DOTALL)
_PRINTED_ONLY = re.compile(r"(?P<path>.+?\.pdf):p(?P<printed>[^\s:/]+)", re.IGNORECASE | re.DOTALL)
"""As earlier versions wrote it: they kept no number of the page beside what is printed on it."""
_FILE_LINES = re.compile(r".+:L\d+(?:-\d+)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FilePage:
    """A page of a file inside a folder or archive. page counts from 1 within the file, 0 where that is not known.

    printed: what is printed on it where that is not its number, else "".
    """

    path: str
    page: int
    printed: str = ""

    @property
    def number(self) -> str:
        return str(self.page) if self.page else self.printed


def names_place(label: str) -> bool:
    """Whether a label says by itself where to look ("Slide 4", "Sheet Budget, rows 41-80", "src/a.py:L1-80"), and is
    no number printed on a page ("xii", "12")."""
    return _PLACE.search(label) is not None


def names_file(label: str) -> bool:
    """Whether a label names a file in a folder, which the label of a document that is one file must not."""
    return file_page(label) is not None or _FILE_LINES.fullmatch(label) is not None


@lru_cache(maxsize=4096)
def file_page(label: str) -> FilePage | None:
    """None for a label that names no page of a file in a folder."""
    match = _FILE_PAGE.fullmatch(label)
    if match:
        return FilePage(match["path"], int(match["page"]), match["printed"] or "")
    match = _PRINTED_ONLY.fullmatch(label)
    return FilePage(match["path"], 0, match["printed"]) if match else None


def file_label(path: str, page: int, printed: str) -> str:
    """The label of a file's page, as `file_page` reads it."""
    return f"{path}:p{page}" + (f" ({printed})" if printed and printed != str(page) else "")
