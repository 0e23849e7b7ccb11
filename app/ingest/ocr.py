"""Text of scanned pages by tesseract, where it is installed and the user asked for it.

A page is rendered by pdfium and goes to tesseract through a pipe, so nothing is written to disk. The program runs in
the reading child's process group: whoever ends the child ends it too.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from app.errors import AppError, WrongUse
from app.ingest.extracted import Limits
from app.ingest.layout import RawLine
from app.ingest.recognised import PlacedWord, written

if TYPE_CHECKING:
    import pypdfium2

DPI = 300
MOST_PIXELS = 40_000_000
LEAST_CONFIDENCE = 25.0  # of 100: below, tesseract mostly reads dirt
PAGE_PARTS = 2  # ranges of at least so many pages are read at once
_LANGUAGES = re.compile(r"[A-Za-z][\w/]{1,40}(\+[A-Za-z][\w/]{1,40}){0,5}")
_PACKAGES = (
    "the package is tesseract-ocr in Debian and Ubuntu, tesseract in Fedora, Arch and Homebrew, "
    "UB-Mannheim.TesseractOCR in winget"
)
INSTALL = f"To have them read, install the program tesseract ({_PACKAGES})."
INSTALL_HINT = f"Install tesseract ({_PACKAGES}), and open the file again with --ocr eng."
_NO_LANGUAGES = frozenset({"osd", "equ", "snum"})  # data files of tesseract that are none


def program() -> str | None:
    """Where tesseract is, or None."""
    return shutil.which("tesseract")


def hint() -> str:
    """What a user of the command line can do about scanned pages on this machine."""
    if program() is None:
        return f"They need OCR. {INSTALL_HINT}"
    names = ", ".join(readable()) or "eng"
    return f"Open the file again with --ocr LANGUAGE to have them recognised (languages here: {names})."


def languages() -> tuple[str, ...]:
    """What tesseract has data for."""
    tesseract = program()
    return _languages(tesseract) if tesseract is not None else ()


def readable() -> tuple[str, ...]:
    """The languages among them."""
    return tuple(name for name in languages() if name not in _NO_LANGUAGES)


def version() -> str:
    """The version, as a part of the extractor's name."""
    tesseract = program()
    return _version(tesseract) if tesseract is not None else "?"


@functools.cache
def _languages(tesseract: str) -> tuple[str, ...]:
    lines = _ask(tesseract, "--list-langs").splitlines()
    return tuple(sorted(line.strip() for line in lines[1:] if line.strip()))


@functools.cache
def _version(tesseract: str) -> str:
    found = re.search(r"tesseract\s+v?(\S+)", _ask(tesseract, "--version"))
    return found[1] if found else "?"


def _ask(tesseract: str, option: str) -> str:
    try:
        done = subprocess.run(
            [tesseract, option], capture_output=True, timeout=20, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).decode("utf-8", "replace")


def check(language: str) -> None:
    """Raises AppError or WrongUse where OCR in this language (or "deu+eng") is not possible, with what to install."""
    if not _LANGUAGES.fullmatch(language):
        raise WrongUse(f"{language!r} names no language for OCR.", "Use names such as eng, deu or deu+eng.")
    if program() is None:
        raise AppError("OCR needs the program tesseract, which is not installed.", INSTALL_HINT)
    missing = [name for name in language.split("+") if name not in languages()]
    if missing:
        raise WrongUse(
            f"tesseract has no data for {', '.join(missing)}.",
            f"Install {' '.join(f'tesseract-ocr-{name}' for name in missing)}; here are: {', '.join(languages())}.",
        )


def recognise(page: pypdfium2.PdfPage, language: str, limits: Limits) -> tuple[tuple[RawLine, ...], str] | None:
    """The lines that tesseract sees on the page, and their words with their places (see `app.ingest.recognised`);
    None if it fails or takes too long."""
    width, height = page.get_size()
    scale = min(DPI / 72, (MOST_PIXELS / max(width * height, 1.0)) ** 0.5)
    bitmap = page.render(scale=scale, grayscale=True)  # pyright: ignore[reportArgumentType]
    picture = bitmap.to_numpy()
    if picture.ndim == 3:
        picture = picture[:, :, 0]
    rows, columns = picture.shape
    command = [program() or "tesseract", "stdin", "stdout", "-l", language, "--dpi", str(round(72 * scale)), "tsv"]
    try:
        done = subprocess.run(
            command,
            input=b"P5\n%d %d\n255\n" % (columns, rows) + picture.tobytes(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limits.ocr_page_seconds,
            env={**os.environ, "OMP_THREAD_LIMIT": "1"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_tsv(done.stdout.decode("utf-8", "replace"), columns, rows) if done.returncode == 0 else None


def parse_tsv(table: str, width: int, height: int) -> tuple[tuple[RawLine, ...], str]:
    """tesseract's table of words as lines, and as words with their places. Its columns: level, page, block, paragraph,
    line, word, left, top, width, height, confidence, text; width and height are those of the picture, in the same
    pixels."""
    lines: dict[tuple[str, ...], list[PlacedWord]] = {}
    for row in table.splitlines()[1:]:
        cells = row.split("\t", 11)
        if len(cells) == 12 and cells[0] == "5" and cells[11].strip() and float(cells[10]) >= LEAST_CONFIDENCE:
            left, top, across, down = map(int, cells[6:10])
            box = (left / width, top / height, (left + across) / width, (top + down) / height)
            lines.setdefault(tuple(cells[1:5]), []).append(PlacedWord(cells[11].strip(), box))
    found = []
    for words in lines.values():
        top, foot = min(word.box[1] for word in words), max(word.box[3] for word in words)
        found.append(RawLine(" ".join(word.text for word in words), top, foot, foot))
    return tuple(found), written(lines.values())
