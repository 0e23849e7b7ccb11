"""What reading a file gives back, and the limits under which files are read.

Positions: pages count from 1. Sizes are bytes of the file, `characters` are Unicode code points.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

PAGE_FLAGS = ("", "scanned", "empty", "garbled")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one file may cost. One that needs more is refused, or kept in part with a warning of what is missing.

    cpu_seconds, wall_seconds, wall_seconds_per_page: time in the child process (the wall limit grows with the pages).
    memory_bytes: address space of the child. text_bytes, pages: UTF-8 bytes of text and pages in one document.
    ocr_page_seconds: for recognising one scanned page.
    folder_file_bytes: larger text files inside a folder are skipped and listed. folder_entries: files walked.
    """

    cpu_seconds: int = 60
    wall_seconds: float = 120.0
    wall_seconds_per_page: float = 0.25
    memory_bytes: int = 1 << 30
    text_bytes: int = 20_000_000
    pages: int = 5_000
    ocr_page_seconds: float = 120.0
    folder_file_bytes: int = 1_000_000
    folder_entries: int = 50_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value <= 0:
                raise ValueError(f"{field.name}: got {value}, need more than 0")


@dataclass(frozen=True, slots=True)
class ExtractedPage:
    """One page of a document. index counts from 1; label is printed on it, or names lines ("L1-80", "src/a.py:L1-80").

    flag: "" for a page with text, "scanned" (a picture of a page), "empty", "garbled" (damaged, or no real characters).
    pictures, formulas: how many the page shows that its text does not hold. running: header and footer lines that were
    left out of the text. ocr: the text was recognised on a picture of the page, and may hold wrong letters; words are
    then its words with their places (`app.ingest.recognised`).
    """

    index: int
    label: str
    text: str
    flag: str = ""
    pictures: int = 0
    formulas: int = 0
    running: str = ""
    ocr: bool = False
    words: str = ""

    def __post_init__(self) -> None:
        if self.flag not in PAGE_FLAGS:
            raise ValueError(f"flag: got {self.flag!r}, need one of {PAGE_FLAGS}")

    @property
    def unread(self) -> str:
        """What the page shows and its text does not hold, as "2 pictures, 1 formula"; "" if nothing."""
        return unread(self.pictures, self.formulas)


def unread(pictures: int, formulas: int) -> str:
    """Counts in words: "1 picture, 2 formulas", or "" for none."""
    counted = [(pictures, "picture"), (formulas, "formula")]
    return ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in counted if count)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder that was left out, relative to the folder that was read, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ExtractedFile:
    """One file inside a folder or archive: what it was when it was read, and where its text stands.

    modified: nanoseconds since 1970, 0 where unknown. sha256: hex, of its bytes, "" where they were not read.
    first_page and pages: its pages in the whole document, 0 and 0 for a file that was left out; skipped then says why.
    scanned: of a file that was left out because it holds no text, how many of its pages are pictures.
    """

    path: str
    size: int
    modified: int
    sha256: str
    extractor: str = ""
    first_page: int = 0
    pages: int = 0
    skipped: str = ""
    scanned: int = 0


@dataclass(frozen=True, slots=True)
class FilePageText:
    """A page of a file inside a folder or archive. label: within the file, "L1-80", "p3", "Slide 4"; others as in
    ExtractedPage."""

    label: str
    text: str
    flag: str = ""
    pictures: int = 0
    formulas: int = 0
    ocr: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True)
class OutlineEntry:
    """One line of a document's own table of contents; page counts from 1, level from 0."""

    title: str
    page: int
    level: int


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of one file or folder.

    kind: pdf, text, markdown, code, folder. sha256: hex, of the bytes read (for a folder: of names and contents).
    extractor: name and version of everything that shaped the text; ends in "+partial" if a limit left pages out.
    warnings: whole sentences for the user, never empty when something is missing or was guessed.
    files: of a folder or archive, those read in the order of their pages, then those that were opened and left out.
    """

    name: str
    kind: str
    sha256: str
    size: int
    extractor: str
    pages: tuple[ExtractedPage, ...]
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()
    outline: tuple[OutlineEntry, ...] = ()
    files: tuple[ExtractedFile, ...] = ()

    @property
    def characters(self) -> int:
        return sum(len(page.text) for page in self.pages)


def page_ranges(numbers: list[int], most: int = 12) -> str:
    """[1, 2, 3, 7] -> "pages 1-3 and 7"; at most `most` ranges, then a count."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in spans[:most]]
    rest = sum(b - a + 1 for a, b in spans[most:])
    if rest:
        shown.append(f"{rest} more")
    text = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"{'page' if len(numbers) == 1 else 'pages'} {text}"
