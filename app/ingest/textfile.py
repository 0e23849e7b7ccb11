"""Text files: bytes to text in whatever encoding, and text to logical pages that cite lines.

Joining the pages of one file gives its text back exactly (with \\n line ends), so a quote is always found again.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from app.ingest import encodings

PAGE_CHARACTERS = 3_000
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ORDINARY_CONTROLS = frozenset("\t\n\r\f\x1b")  # escape: terminal logs in colour

_NO_CHARSETS = frozenset({"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined"})
"""What Python takes for encodings and no document is in; the first two need time that grows with the square."""


class NotText(Exception):
    """The bytes are no text; the message ends the sentence "NAME is not a text file: ..."."""


@dataclass(frozen=True, slots=True)
class TextPage:
    """A run of lines: text with its line ends, first and last line from 1."""

    text: str
    first_line: int
    last_line: int

    @property
    def label(self) -> str:
        return f"L{self.first_line}" if self.first_line == self.last_line else f"L{self.first_line}-{self.last_line}"


def decode(data: bytes) -> tuple[str, str]:
    """Bytes to (text with \\n line ends, a warning or ""). Raises NotText for binary data."""
    text, warning = _decode(data)
    if "\0" in text:
        raise NotText("it holds zero bytes.")
    controls = sum(1 for char in text if char < " " and char not in _ORDINARY_CONTROLS)
    if controls > 0.03 * len(text):
        raise NotText("it holds mostly control characters.")
    return text.replace("\r\n", "\n").replace("\r", "\n"), warning


def _decode(data: bytes) -> tuple[str, str]:
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            text = data[len(mark) :].decode(encoding, errors="replace")
            return text, _replaced_warning(text, encoding)
    if b"\0" in data:
        encoding = encodings.wide(data)
        if not encoding:
            raise NotText("it holds zero bytes.")
        return data.decode(encoding, errors="replace"), _guessed(encoding)
    try:
        text = data.decode("utf-8")
        encoding = encodings.escaped(data)
        return (data.decode(encoding), "") if encoding else (text, "")
    except UnicodeDecodeError:
        pass
    # A log with a few broken bytes is still UTF-8: guessing would spoil all its other characters.
    text = data.decode("utf-8", errors="replace")
    broken, beyond_ascii = text.count("\ufffd"), sum(1 for char in text if char > "\x7f")
    if broken * 5 <= beyond_ascii:
        return text, _replaced_warning(text, "utf-8")
    return _guess(data)


def _guess(data: bytes) -> tuple[str, str]:
    encoding = encodings.one_byte(data) or guess(data)
    if not encoding:
        raise NotText("its encoding was not recognised.")
    return data.decode(encoding, errors="replace"), _guessed(encoding)


def guess(data: bytes) -> str:
    """What charset-normalizer takes the bytes for, or ""."""
    import charset_normalizer  # only files that are neither UTF-8 nor in a known alphabet pay for it

    matches = charset_normalizer.from_bytes(data)
    best = matches.best()
    if best is None:
        return ""
    # It names the first of equals, by alphabet cp1250; western text is far commoner.
    equals = [match for match in matches if (match.chaos, match.coherence) == (best.chaos, best.coherence)]
    return next((match for match in equals if match.encoding == "cp1252"), best).encoding


def _guessed(encoding: str) -> str:
    return f"The file is not UTF-8; its encoding was guessed ({encoding}), some characters may be wrong."


def _replaced_warning(text: str, encoding: str) -> str:
    broken = text.count("\ufffd")
    return f"{broken} characters were not valid {encoding} and are shown as \ufffd." if broken else ""


def declared(data: bytes, charset: str) -> str:
    """Bytes by the charset that a document declares; LookupError or UnicodeError where it is none, or not theirs."""
    try:
        name = codecs.lookup(charset).name
    except ValueError as error:  # a zero byte in it
        raise LookupError(charset) from error
    if name in _NO_CHARSETS:
        raise LookupError(charset)
    return data.decode(name)


def split_pages(text: str, size: int = PAGE_CHARACTERS) -> list[TextPage]:
    """Logical pages of about `size` characters, cut at line bounds; a longer line is cut at a space, else anywhere."""
    pages: list[TextPage] = []
    parts: list[str] = []
    length, first, line_number = 0, 1, 1

    def close(last: int) -> None:
        nonlocal length
        if parts:
            pages.append(TextPage("".join(parts), first, last))
            parts.clear()
            length = 0

    for line in _lines(text):
        if parts and length + len(line) > size:
            close(line_number - 1)
        if not parts:
            first = line_number
        start = 0
        while len(line) - start > size:
            cut = line.rfind(" ", start + size // 2, start + size) + 1 or start + size
            parts.append(line[start:cut])
            close(line_number)
            first, start = line_number, cut
        parts.append(line[start:])
        length += len(line) - start
        line_number += 1
    close(max(1, line_number - 1))
    return pages


def _lines(text: str) -> list[str]:
    """Lines with their ends; only \\n ends a line, as in editors (str.splitlines knows ten others)."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
