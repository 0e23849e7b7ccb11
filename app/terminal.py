"""What a terminal may be sent. Documents, file names and answers are other people's text: escape sequences in it could
recolour the screen, set the clipboard or hide what follows."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_CONTROL = re.compile(r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 but tab and ends of lines, delete, C1, and the marks that turn the direction of text around."""


def printable(text: str) -> str:
    """The same text with every control character shown as the replacement character."""
    return _CONTROL.sub("\ufffd", text)


class CleanStream:
    """A text stream whose `write` sends printable text only; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(printable(text))
        return len(text)

    def write_raw(self, text: str) -> int:
        """For the app's own cursor movements."""
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def clean_output() -> Iterator[None]:
    """While it lasts, everything printed to stdout and stderr is printable."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", CleanStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
