"""The child process that reads one file or the text files of one folder: `python -m app.ingest.worker`.

One JSON object comes in on stdin (the request), JSON lines go out on the stdout it was started with. Nothing is ever
unpickled or evaluated. The limits are set before the first byte of the file is looked at. The last message is
{"type": "done"} or {"type": "error", ...}; without it the parent knows that the child was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from app.errors import BadInput, PasswordNeeded
from app.ingest import detect, formats, kinds, textfile
from app.ingest.extracted import Limits
from app.ingest.positioned import open_descriptor

_CHUNK = 1 << 20


def set_limits(limits: Limits) -> None:
    """Processor time, address space, no files written, no core dump. Windows has none of these: the parent watches."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))


class Channel:
    """Writes messages; flushed one by one, so that nothing that was read is lost when the child is killed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def emit(self, message: dict[str, Any]) -> None:
        self._stream.write(json.dumps(message).encode("ascii") + b"\n")
        self._stream.flush()


def read_document(request: dict[str, Any], file: BinaryIO, limits: Limits, channel: Channel) -> None:
    """A file of any kind, told apart by its content first and its name second."""
    name: str = request["name"]
    if request.get("part"):  # pages behind the first ones: another child has looked at the file
        from app.ingest.pdf import read_pdf

        pages = (request["first"], request["last"])
        read_pdf(file, name, request["password"], limits, channel.emit, *pages, ocr=request.get("ocr", ""))
        return
    size, sha256 = _hash(file)
    if not size:
        raise BadInput(f"{name} is empty (0 bytes).", "Copy or download it again.")
    kind = detect.kind_of(name, file)
    channel.emit({"type": "file", "kind": kind, "size": size, "sha256": sha256})
    if kind == "pdf":
        from app.ingest.pdf import read_pdf

        read_pdf(file, name, request["password"], limits, channel.emit, ocr=request.get("ocr", ""))
    elif kind in formats.KINDS:
        _read_format(kind, name, file, request["password"], limits, channel)
    else:
        _read_text(name, file, size, limits, channel)


def _read_format(kind: str, name: str, file: BinaryIO, password: str | None, limits: Limits, channel: Channel) -> None:
    if file.read(len(detect.OLE)) == detect.OLE:
        from app.ingest.formats.locked import unlocked

        file = unlocked(file, name, password)
        kind = detect.kind_of(name, file)
    file.seek(0)
    out = formats.Pages(limits)
    stopped = formats.read(kind, file, name, out, password)
    out.finish()
    channel.emit({"type": "start", "total": len(out.pages)})
    for warning in out.warnings:
        channel.emit({"type": "warning", "text": f"{name}: {warning}"})
    channel.emit({"type": "outline", "entries": [asdict(entry) for entry in out.outline]})
    for index, (label, text) in enumerate(out.pages, 1):
        flag = "" if text else "empty"
        channel.emit({"type": "text_page", "index": index, "label": label, "text": text, "flag": flag})
    if stopped:
        channel.emit({"type": "stopped", "reason": stopped})


def _hash(file: BinaryIO) -> tuple[int, str]:
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    file.seek(0)
    return size, digest.hexdigest()


def _read_text(name: str, file: BinaryIO, size: int, limits: Limits, channel: Channel) -> None:
    head = file.read(4096)
    what = kinds.signature(head)
    if what:
        spite = "is not a PDF in spite of its name: it is" if name.lower().endswith(".pdf") else "is"
        raise BadInput(f"{name} {spite} {what}, which cannot be read.", kinds.signature_hint(what))
    claimed = "PDF" if name.lower().endswith(".pdf") else detect.claimed(name)
    if claimed:
        article = "an" if claimed[0] in "EO" else "a"
        raise BadInput(
            f"{name} is not {article} {claimed} in spite of its name.",
            "Open the original file, or rename it if it is plain text.",
        )
    data = head + file.read(max(0, limits.text_bytes - len(head)))
    cut = size > len(data)
    if cut:
        data = data[: data.rfind(b"\n") + 1] or data
    try:
        text, warning = textfile.decode(data)
    except textfile.NotText as error:
        raise BadInput(f"{name} is not a text file: {error}", f"Supported are {kinds.SUPPORTED}.") from error
    if not text.strip():
        raise BadInput(f"{name} holds nothing but blanks.", "Open a file with text in it.")
    pages = textfile.split_pages(text)
    channel.emit({"type": "start", "total": len(pages)})
    if warning:
        channel.emit({"type": "warning", "text": f"{name}: {warning}"})
    for index, page in enumerate(pages[: limits.pages], 1):
        channel.emit({"type": "text_page", "index": index, "label": page.label, "text": page.text})
    if cut:
        channel.emit({"type": "stopped", "reason": f"it is larger than {limits.text_bytes / 1e6:g} MB"})
    elif len(pages) > limits.pages:
        channel.emit({"type": "stopped", "reason": f"it has more than {limits.pages:,} pages"})


def read_tree(request: dict[str, Any], limits: Limits, channel: Channel) -> None:
    """All text files of a folder; its documents are only named, the parent gives each a child of its own."""
    from app.ingest.disk import DiskTree
    from app.ingest.walk import list_tree, walk_tree

    tree = DiskTree(Path(request["path"]))
    for message in list_tree(tree, limits) if request["job"] == "list" else walk_tree(tree, limits, request["known"]):
        channel.emit(message)


def read_archive(request: dict[str, Any], file: BinaryIO, limits: Limits, channel: Channel) -> None:
    """All text files of an archive; its documents are only named, the parent gives each a child of its own."""
    from app.ingest.archives import walk_archive

    size, sha256 = _hash(file)
    channel.emit({"type": "file", "kind": "archive", "size": size, "sha256": sha256})
    for message in walk_archive(file, request["name"], limits):
        channel.emit(message)


def _read_one(request: dict[str, Any], file: BinaryIO, limits: Limits, channel: Channel) -> None:
    if request["job"] == "archive":
        read_archive(request, file, limits, channel)
    elif request.get("member"):
        from app.ingest.archives import open_member

        read_document(request, open_member(file, request["name"], request["member"], limits), limits, channel)
    else:
        read_document(request, file, limits, channel)


def _error(error: BaseException, name: str) -> dict[str, Any]:
    if isinstance(error, BadInput):
        return {
            "type": "error",
            "password": isinstance(error, PasswordNeeded),
            "message": error.message,
            "hint": error.hint,
        }
    if isinstance(error, MemoryError):
        return {"type": "crash", "reason": "it needs too much memory", "detail": ""}
    return {
        "type": "crash",
        "reason": f"its reader failed on it ({type(error).__name__})",
        "detail": traceback.format_exc(),
    }


def main() -> int:
    stdin = sys.stdin.buffer
    channel = Channel(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # whatever a library prints must not land between the messages
    request = json.loads(stdin.readline())
    limits = Limits(**request["limits"])
    set_limits(limits)
    try:
        if request["job"] in ("folder", "list"):
            read_tree(request, limits, channel)
        elif request["job"] == "signatures":
            from app.ingest.signatures import read_signatures

            for message in read_signatures(request["files"]):
                channel.emit(message)
        else:
            with open_descriptor(request["fd"]) if "fd" in request else open(request["path"], "rb") as file:
                _read_one(request, file, limits, channel)
        channel.emit({"type": "done"})
    except Exception as error:  # the parent turns it into a sentence and logs the rest
        channel.emit(_error(error, request["name"]))
    return 0


def request_line(job: str, name: str, limits: Limits, **more: Any) -> bytes:
    """The one line that starts the work. The password travels here, never on a command line."""
    return json.dumps({"job": job, "name": name, "limits": asdict(limits), **more}).encode("ascii") + b"\n"


if __name__ == "__main__":
    sys.exit(main())
