"""Office files that a password protects: an old container around the encrypted file, opened in memory."""

from __future__ import annotations

import io
from typing import BinaryIO

import msoffcrypto
from msoffcrypto.exceptions import DecryptionError, FileFormatError, InvalidKeyError, ParseError

from app.errors import BadInput, PasswordNeeded

_MARK = "EncryptedPackage".encode("utf-16-le")
_MOST_BYTES = 200_000_000


def unlocked(file: BinaryIO, name: str, password: str | None) -> BinaryIO:
    """The file inside. Raises PasswordNeeded, or BadInput for a container that holds no encrypted file."""
    file.seek(0)
    data = file.read(_MOST_BYTES + 1)
    if _MARK not in data or len(data) > _MOST_BYTES:
        raise BadInput(
            f"{name} is an old Office document, which cannot be read.", "Save it as .docx, .xlsx, .pptx or PDF."
        )
    if not password:
        raise PasswordNeeded(f"{name} is protected by a password.", "Give its password to read it.")
    opened = io.BytesIO()
    try:
        office = msoffcrypto.OfficeFile(io.BytesIO(data))
        office.load_key(password=password, verify_password=True)  # type: ignore[call-arg]
        office.decrypt(opened)
    except InvalidKeyError as error:
        raise PasswordNeeded(f"The password of {name} is not right.", "Check capital letters and try again.") from error
    except (DecryptionError, FileFormatError, ParseError, OSError, ValueError, KeyError, AttributeError) as error:
        raise BadInput(
            f"{name} is encrypted in a way that cannot be opened.", "Save it without protection and open that file."
        ) from error
    opened.seek(0)
    return opened
