"""What the parts of Library share: the writing connection and the cleaning of values on their way in."""

import re
import secrets
import time
from pathlib import Path

from storage.connection import Writer
from storage.errors import NotFound

_SURROGATES = re.compile("[\ud800-\udfff]")
_HEX64 = re.compile(r"[0-9a-f]{64}")


def new_id() -> str:
    return secrets.token_hex(16)


def now() -> float:
    return time.time()


def storable(text: str) -> str:
    """`text` with half characters (lone surrogates, which no file can hold as UTF-8) replaced by U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


def checked_hex64(field: str, value: str) -> str:
    if not isinstance(value, str) or not _HEX64.fullmatch(value):
        raise ValueError(f"{field}: got {value!r}, need 64 lowercase hexadecimal digits")
    return value


def not_found(what: str, id: str) -> NotFound:
    return NotFound(f"There is no {what} {id!r}.", "It may have been deleted; reload the list.")


class LibraryPart:
    """A part of Library, over the connection that all parts share."""

    folder: Path
    _writer: Writer
