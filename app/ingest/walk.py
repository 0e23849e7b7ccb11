"""Walk a folder or an archive inside the child: what is read, what is left out and why. Links are never followed.

`walk_tree` yields messages: {"type": "start", "total": files}, then for each file in order of its path one of
  {"type": "file_text", "path", "kind", "size", "modified", "sha256", "warnings", "pages": [[label, text, flag], ...],
   "outline": [{"title", "page", "level"}, ...]}
  {"type": "document", "path", "kind"}         (the parent gives it a child of its own)
  {"type": "unchanged", "path"}                (same size and time as the parent knows it: not opened)
and {"type": "skip", "path", "reason"} for all that is left out, of a file with "size", "modified" and, where it was
read, "sha256". Paths are relative, with "/" between their parts. modified: nanoseconds since 1970.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, BinaryIO, Protocol

from app.errors import BadInput
from app.ingest import detect, formats, kinds, textfile
from app.ingest.disk import NotInside, is_link, reason_of
from app.ingest.extracted import Limits
from app.ingest.git_rules import GitRules
from app.ingest.timer import OutOfTime, processor_time

DEPTH = 64
FILE_SECONDS = 10.0
"""Of processor time for one file that is read here: the others share the child with it."""
BEYOND_LIMIT = "beyond the limit on text in one folder"
RULES_BYTES = 1 << 20
_READ_HERE = frozenset({"csv", "html", "notebook", "email"})
"""Formats read by Python alone and mostly small: a child for each of a thousand would take minutes to start."""
_MOST_READ_HERE = {"notebook": 50_000_000, "email": 50_000_000}  # their bulk is pictures and attachments, not text
_WEB = frozenset(
    {".html", ".htm", ".xhtml", ".css", ".scss", ".less", ".js", ".json", ".xml", ".yml", ".yaml", ".toml"}
)

Message = dict[str, Any]


class Tree(Protocol):
    """Folders and files, on a disk or in an archive."""

    def entries(self, folder: str) -> Mapping[str, os.stat_result]:
        """What lies in a folder ("" or "a/b/"). Raises OSError."""
        ...

    def open(self, path: str) -> tuple[BinaryIO, int, int]:
        """(file, size, time of its last change). Raises NotInside."""
        ...


def walk_tree(tree: Tree, limits: Limits, known: Mapping[str, Sequence[int]] | None = None) -> Iterator[Message]:
    """Everything in the tree; see the module's text.

    known: (size, modified) by path of files whose text the parent has.
    """
    files: list[str] = []
    repository = False
    for message in _list(tree, limits):
        if message["type"] == "found":
            files.append(message["path"])
        else:
            repository |= message["path"] == ".git"
            yield message
    yield {"type": "start", "total": len(files)}
    as_source = repository or any(_is_program(path) for path in files)
    text_bytes = pages = 0
    for path in files:
        message = _read(tree, path, limits, (known or {}).get(path), as_source)
        if message["type"] == "file_text":
            text_bytes += sum(len(text.encode()) for _, text, _ in message["pages"])
            pages += len(message["pages"])
            if text_bytes > limits.text_bytes or pages > limits.pages:
                message = _skip(path, BEYOND_LIMIT)
        yield message


def list_tree(tree: Tree, limits: Limits) -> Iterator[Message]:
    """Only names, sizes and times: {"type": "found", "path", "size", "modified"} and what is skipped by its name."""
    return _list(tree, limits)


def _is_program(path: str) -> bool:
    """Source code that is no part of a plain web page: where it lies, HTML is source too."""
    name = path.rpartition("/")[2]
    return kinds.text_kind(name) == "code" and "." + name.lower().rpartition(".")[2] not in _WEB


def _skip(path: str, reason: str) -> Message:
    return {"type": "skip", "path": path, "reason": reason}


def _list(tree: Tree, limits: Limits) -> Iterator[Message]:
    """Paths to read ("found") and to skip, in order. A stack, not recursion: folders may be nested deep."""
    stack: list[tuple[str, GitRules, os.stat_result | None]] = [("", GitRules(), None)]
    seen = 0
    while stack:
        path, rules, info = stack.pop()
        if info is not None:
            yield {"type": "found", "path": path, "size": info.st_size, "modified": info.st_mtime_ns}
            continue
        try:
            entries = tree.entries(path)
        except OSError as error:
            yield _skip(path or "/", reason_of(error))
            continue
        seen += len(entries)
        if seen > limits.folder_entries:
            yield _skip(path or "/", f"the folder holds more than {limits.folder_entries:,} files")
            return
        if rules.in_repository and ".git" in entries:
            yield _skip(path.rstrip("/"), _other_repository(entries[".git"]))
            continue
        rules = rules.inside(path, entries, lambda name: _text(tree, name))
        for name in rules.passed_over:
            yield _skip(f"{name} (some patterns)", "too many wildcards, so these patterns were not followed")
        inner: list[tuple[str, GitRules, os.stat_result | None]] = []
        for name in sorted(entries):
            child, info = path + name, entries[name]
            reason = _reason_to_skip(child, name, info, rules)
            if reason:
                yield _skip(child, reason)
            elif stat.S_ISDIR(info.st_mode):
                inner.append((child + "/", rules, None))
            else:
                inner.append((child, rules, info))
        stack.extend(reversed(inner))


def _other_repository(git: os.stat_result) -> str:
    """In a submodule or another working tree .git is a file."""
    if stat.S_ISDIR(git.st_mode):
        return "another git repository inside this one: open it by itself"
    return "a git submodule, another project: open it by itself"


def _reason_to_skip(path: str, name: str, info: os.stat_result, rules: GitRules) -> str:
    if is_link(info):
        return "a link"
    if stat.S_ISDIR(info.st_mode):
        if path.count("/") >= DEPTH:
            return f"more than {DEPTH} folders deep"
        return kinds.skipped_folder(name) or rules.reason(path + "/")
    if not stat.S_ISREG(info.st_mode):
        return "not a regular file"
    return kinds.skipped_name(name) or rules.reason(path)


def _text(tree: Tree, path: str) -> str:
    try:
        file, _, _ = tree.open(path)
        with file:
            return file.read(RULES_BYTES).decode("utf-8", errors="replace")
    except NotInside:
        return ""


def _read(tree: Tree, path: str, limits: Limits, known: Sequence[int] | None, as_source: bool) -> Message:
    try:
        file, size, modified = tree.open(path)
        with file:
            if known is not None and [size, modified] == list(known):
                return {"type": "unchanged", "path": path}
            return _read_open(file, path, {"size": size, "modified": modified}, limits, as_source)
    except NotInside as error:
        return _skip(path, str(error))


def _read_open(file: BinaryIO, path: str, facts: Message, limits: Limits, as_source: bool) -> Message:
    name = path.rpartition("/")[2]
    head = file.read(detect.HEAD)
    kind = detect.kind_of_head(name, head)
    if kind == "html" and as_source:
        kind = kinds.text_kind(name)
    if kind == "archive":
        return _skip(path, "an archive: open it by itself") | facts
    if kind == "pdf" or (kind in formats.KINDS and kind not in _READ_HERE):
        return {"type": "document", "path": path, "kind": kind}
    most = _MOST_READ_HERE.get(kind, limits.folder_file_bytes)
    if facts["size"] > most:
        return _skip(path, f"larger than {most / 1e6:g} MB") | facts
    data = head + file.read(most)
    facts |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    reason = kinds.skipped_content(name, data)
    if reason:
        return _skip(path, reason) | facts
    try:
        with processor_time(FILE_SECONDS):
            found = _format(kind, name, data, limits) if kind in _READ_HERE else _plain(data)
    except textfile.NotText:
        return _skip(path, "a binary file") | facts
    except OutOfTime:
        return _skip(path, f"it took more than {FILE_SECONDS:g} seconds of processor time") | facts
    except BadInput as error:
        return _skip(path, str(error)) | facts
    except (MemoryError, RecursionError, ValueError, LookupError, TypeError, AttributeError) as error:
        return _skip(path, f"its reader failed on it ({type(error).__name__})") | facts
    return {"type": "file_text", "path": path, "kind": kind, **found, **facts}


def _plain(data: bytes) -> Message:
    text, warning = textfile.decode(data)
    pages = [[page.label, page.text, ""] for page in textfile.split_pages(text)]
    return {"pages": pages, "warnings": [warning] if warning else [], "outline": []}


def _format(kind: str, name: str, data: bytes, limits: Limits) -> Message:
    out = formats.Pages(limits)
    stopped = formats.read(kind, io.BytesIO(data), name, out)
    out.finish()
    if stopped:
        out.warnings.append(f"Only its first {len(out.pages)} pages were read, because {stopped}.")
    pages = [[label, text, "" if text else "empty"] for label, text in out.pages]
    return {"pages": pages, "warnings": out.warnings, "outline": [asdict(entry) for entry in out.outline]}
