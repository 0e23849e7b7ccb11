"""Reads a file in this process, as the reading child would, for tests of what comes out of it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from app.ingest import Limits, detect, formats
from app.ingest.formats import Pages


def read(path: Path, limits: Limits | None = None) -> Pages:
    out = Pages(limits or Limits())
    with open(path, "rb") as file:
        formats.read(detect.kind_of(path.name, file), file, path.name, out)
    out.finish()
    return out


def text(out: Pages) -> str:
    return "\n\n".join(text for _, text in out.pages)


def labels(out: Pages) -> list[str]:
    return [label for label, _ in out.pages]


def zipped(parts: Mapping[str, str | bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(name, content, zipfile.ZIP_STORED if name == "mimetype" else None)
    return data.getvalue()


def changed(path: Path, change: Mapping[str, bytes | None], new: Path) -> Path:
    """A copy of a zip with some of its parts replaced, added, or (None) left out."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as file:
        for name in old.namelist():
            content = change.get(name, old.read(name))
            if content is not None:
                file.writestr(name, content)
        for name in set(change) - set(old.namelist()):
            file.writestr(name, change[name] or b"")
    return new
