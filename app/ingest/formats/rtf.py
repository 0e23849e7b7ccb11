"""Rich Text Format (.rtf): its text, without pictures and embedded objects."""

from __future__ import annotations

import re
from typing import BinaryIO

from striprtf.striprtf import rtf_to_text

from app.errors import BadInput
from app.ingest.formats.flow import Flow
from app.ingest.formats.pages import Pages

MOST_BYTES = 50_000_000
_HEX = re.compile(rb"(?:[0-9a-fA-F]{64,}\s*){4,}")  # the bytes of pictures, which are most of a file
_CODE_PAGE = re.compile(rb"\\ansicpg(\d{3,5})")


def read(file: BinaryIO, name: str, out: Pages, password: str | None = None) -> None:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadInput(f"{name} is larger than {MOST_BYTES / 1e6:g} MB.", "Save it as DOCX or PDF and open that.")
    out.pictures += data.count(b"\\pict")
    if b"\\objdata" in data:
        out.warn("Embedded objects were not read.")
    if data.rstrip()[-1:] not in (b"}", b"\0"):
        out.warn("It seems to be cut off: its end is missing.")
    data = _HEX.sub(b"", data)
    told = _CODE_PAGE.search(data[:2000])
    encoding = f"cp{told[1].decode()}" if told else "cp1252"
    try:
        "".encode(encoding)
    except LookupError:
        encoding = "cp1252"
    text = rtf_to_text(data.decode("latin-1"), encoding=encoding, errors="replace")
    flow = Flow(out)
    for paragraph in text.split("\n"):
        line = paragraph.strip()
        flow.text(" | ".join(cell.strip() for cell in line.strip("|").split("|")) if line.endswith("|") else line)
    flow.close()
