"""What a file is, by its content first and its name second. Looks at few bytes and unpacks at most a kilobyte."""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from app.ingest import kinds

HEAD = 4096
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""First bytes of old Office files, and of newer ones that are encrypted."""
_MOST_DIRECTORY = 8 << 20
_PACKED = {  # by their first bytes: what unpacks them a little
    b"\x1f\x8b": lambda data: zlib.decompressobj(31).decompress(data, 1024),
    b"BZh": lambda data: bz2.BZ2Decompressor().decompress(data, 1024),
    b"\xfd7zXZ": lambda data: lzma.LZMADecompressor(memlimit=256 << 20).decompress(data, 1024),
}
_TAR_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz")
_BY_SUFFIX = {
    **dict.fromkeys((".docx", ".docm", ".dotx", ".dotm"), "docx"),
    **dict.fromkeys((".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm"), "pptx"),
    **dict.fromkeys((".xlsx", ".xlsm", ".xltx", ".xltm", ".xlsb"), "xlsx"),
    **dict.fromkeys((".odt", ".ott"), "odt"),
    **dict.fromkeys((".ods", ".ots"), "ods"),
    **dict.fromkeys((".odp", ".otp"), "odp"),
    ".epub": "epub",
}
_TEXT_BY_SUFFIX = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".xls", ".xlsx"), "csv"),  # many programs export text under Excel's name
    **dict.fromkeys((".html", ".htm", ".xhtml", ".xht"), "html"),
    ".ipynb": "notebook",
    ".eml": "email",
}
_MIME_TYPES = {
    b"application/epub+zip": "epub",
    b"application/vnd.oasis.opendocument.text": "odt",
    b"application/vnd.oasis.opendocument.spreadsheet": "ods",
    b"application/vnd.oasis.opendocument.presentation": "odp",
}
_OFFICE_FOLDERS = {b"word/": "docx", b"ppt/": "pptx", b"xl/": "xlsx"}
_WEB_PAGE = re.compile(
    rb"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,500}?-->\s*)?<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)
_NAMES = {
    "docx": "Word document",
    "pptx": "PowerPoint file",
    "xlsx": "Excel workbook",
    "odt": "OpenDocument text",
    "ods": "OpenDocument sheet",
    "odp": "OpenDocument presentation",
    "epub": "EPUB book",
}


def kind_of(name: str, file: BinaryIO) -> str:
    """pdf, docx, ... (app.ingest.formats.KINDS), archive, code, markdown or text. Leaves the file at its beginning."""
    file.seek(0)
    head = file.read(HEAD)
    kind = kind_of_head(name, head)
    if head.startswith(b"PK\x03\x04"):
        kind = _kind_of_zip(file, head, kind) or kind
    elif kind == "text" and any(head.startswith(mark) for mark in _PACKED) and _holds_tar(file):
        kind = "archive"
    file.seek(0)
    return kind


def kind_of_head(name: str, head: bytes) -> str:
    """The same where only the first bytes are known; what is in a zip is then told by its name."""
    low = name.lower()
    suffix = "." + low.rpartition(".")[2] if "." in low else ""
    if kinds.looks_like_pdf(name, head):
        return "pdf"
    if head.startswith(b"PK\x03\x04"):
        return _BY_SUFFIX.get(suffix, "archive")
    if head.startswith(OLE) and suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]  # encrypted
    if head[257:262] == b"ustar" or (low.endswith(_TAR_NAMES) and b"\0" in head):
        return "archive"
    if head.startswith(b"{\\rtf"):
        return "rtf"
    if kinds.signature(head):
        return "text"  # refused in words by whoever reads it as text
    if suffix in _TEXT_BY_SUFFIX:
        is_page = _TEXT_BY_SUFFIX[suffix] == "csv" and _WEB_PAGE.match(head)
        return "html" if is_page else _TEXT_BY_SUFFIX[suffix]
    kind = kinds.text_kind(name)
    return "html" if kind == "text" and _WEB_PAGE.match(head) else kind


def claimed(name: str) -> str:
    """What the name says that the file is ("Word document"), or ""."""
    return _NAMES.get(_BY_SUFFIX.get("." + name.lower().rpartition(".")[2], ""), "")


def _holds_tar(file: BinaryIO) -> bool:
    file.seek(0)
    data = file.read(1 << 20)  # bzip2 needs a whole block
    for mark, unpack in _PACKED.items():
        if data.startswith(mark):
            try:
                return unpack(data)[257:262] == b"ustar"
            except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
                return False
    return False


def _kind_of_zip(file: BinaryIO, head: bytes, by_name: str) -> str:
    if head[30:38] == b"mimetype":
        told = head[38:].lstrip(b"\0")
        for mime, kind in _MIME_TYPES.items():
            if mime in told[:200]:
                return kind
    names = list(_zip_names(file))
    if b"[content_types].xml" in names:
        for folder, kind in _OFFICE_FOLDERS.items():
            if any(name.startswith(folder) for name in names):
                return kind
    if b"content.xml" in names and by_name in ("odt", "ods", "odp"):
        return by_name
    if b"meta-inf/container.xml" in names and any(name.endswith(b".opf") for name in names):
        return "epub"
    return "archive" if names else ""


def _zip_names(file: BinaryIO) -> Iterator[bytes]:
    """Names in the directory at the end of a zip, in lower case; none where it is cut off or very large."""
    size = file.seek(0, 2)
    file.seek(max(0, size - (64 << 10) - 22))
    tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) < end + 20:
        return
    length = int.from_bytes(tail[end + 12 : end + 16], "little")
    start = size - len(tail) + end - length
    if length > _MOST_DIRECTORY or start < 0:
        return
    file.seek(start)
    directory = file.read(length)
    place = 0
    while directory[place : place + 4] == b"PK\x01\x02":
        name, extra, comment = (int.from_bytes(directory[place + at : place + at + 2], "little") for at in (28, 30, 32))
        yield directory[place + 46 : place + 46 + name].replace(b"\\", b"/").lower()
        place += 46 + name + extra + comment
