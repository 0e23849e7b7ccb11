"""What a reader of a format collects: pages with labels, an outline, warnings; within the limits of one document."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from app.ingest.extracted import Limits, OutlineEntry

LABEL_CHARACTERS = 60
PAGE_CHARACTERS = 3_000
WARNING_CHARACTERS = 500
MOST_WARNINGS = 100
MOST_OUTLINE = 20_000
# Control characters, marks that are never seen (soft hyphen, zero width space and no-break), private halves of pairs.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u2060\ufeff\ud800-\udfff]")
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")  # they would turn what stands around a label on the screen
_SPACES = re.compile("[\u00a0\u2007\u202f]")


class LimitReached(Exception):
    """The document is longer than one may be. reason: the end of "Reading stopped, because ..."."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def clean(text: str) -> str:
    """Text as people see it: no control characters, ordinary spaces, \\n as the only line end."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\v", "\n").replace("\f", "\n")
    return _UNSEEN.sub("", _SPACES.sub(" ", text))


def one_line(text: str, most: int = LABEL_CHARACTERS) -> str:
    """A title or label on one line, cut with "..." at `most` characters."""
    text = " ".join(_TURNS.sub("", clean(text)).split())
    return text if len(text) <= most else text[: most - 3].rstrip() + "..."


@dataclass(slots=True)
class Pages:
    """pages: (label, text) in order. pictures: pictures without text that were passed over."""

    limits: Limits
    pages: list[tuple[str, str]] = field(default_factory=list)
    outline: list[OutlineEntry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    pictures: int = 0
    _bytes: int = 0

    def add(self, label: str, text: str) -> None:
        """One page. Raises LimitReached, with everything before it kept."""
        text = clean(text).strip("\n")
        self._bytes += len(text.encode())
        if self._bytes > self.limits.text_bytes:
            raise LimitReached(f"it holds more than {self.limits.text_bytes / 1e6:g} MB of text")
        if len(self.pages) >= self.limits.pages:
            raise LimitReached(f"it has more than {self.limits.pages:,} pages")
        self.pages.append((one_line(label), text))

    def mark(self, title: str, level: int) -> None:
        """A line of the outline that leads to the next page to be added."""
        if len(self.outline) >= MOST_OUTLINE:
            self.warn(f"Its table of contents was cut after {MOST_OUTLINE:,} lines.")
        elif title := one_line(title, 200):
            self.outline.append(OutlineEntry(title, len(self.pages) + 1, level))

    def warn(self, text: str) -> None:
        """A whole sentence about what is missing or doubtful; the file's name is put before it."""
        text = one_line(text, WARNING_CHARACTERS)
        if text in self.warnings or len(self.warnings) > MOST_WARNINGS:
            return
        self.warnings.append(text if len(self.warnings) < MOST_WARNINGS else "There is more of that kind.")

    def finish(self) -> None:
        """Adds what was counted to the warnings."""
        self.outline = [entry for entry in self.outline if entry.page <= len(self.pages)]
        if self.pictures:
            what = "1 picture was" if self.pictures == 1 else f"{self.pictures:,} pictures were"
            self.warn(f"{what} not read.")
