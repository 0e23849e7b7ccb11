"""Walk a folder inside the child: what is read, what is left out and why. Links are never followed.

`walk_folder` yields messages: {"type": "start", "total": files}, then for each file in order of its path one of
  {"type": "file_text", "path", "kind", "size", "modified", "sha256", "warning", "pages": [[label, text], ...]}
  {"type": "pdf", "path"}                      (the parent reads it in a child of its own)
  {"type": "unchanged", "path"}                (same size and time as the parent knows it: not opened)
and {"type": "skip", "path", "reason"} for all that is left out, a file with "size", "modified" and, if read, "sha256".
Paths are relative, with "/" between their parts. modified: nanoseconds since 1970.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from app.ingest import kinds, textfile
from app.ingest.extracted import Limits

if TYPE_CHECKING:
    import pathspec

DEPTH = 64
BEYOND_LIMIT = "beyond the limit on text in one folder"
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_REPARSE_POINT = 0x400  # Windows: links and junctions

Message = dict[str, Any]
Ignore = tuple[str, "pathspec.GitIgnoreSpec"]  # (folder of the .gitignore with a trailing "/", its patterns)


class NotInside(Exception):
    """A path that may not be read; the message is the reason shown in the list of skipped files."""


def open_inside(root: Path, relative: str) -> int:
    """Open a regular file below `root` for reading; raises NotInside.

    No part below `root` may be a link, checked at the moment of opening, and a FIFO or a device never blocks.
    """
    parts = PurePosixPath(relative).parts
    if not parts or any(part in ("..", "/", "") for part in parts):
        raise NotInside("outside the folder")
    try:
        fd = _open_by_parts(root, parts) if os.open in os.supports_dir_fd else _open_by_path(root, parts)
    except OSError as error:
        raise NotInside(_reason(error)) from error
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise NotInside("not a regular file")
        if info.st_nlink > 1:
            raise NotInside("a hard link, which may lead outside the folder")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_by_parts(root: Path, parts: tuple[str, ...]) -> int:
    folder = os.open(root, os.O_RDONLY | _DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | _DIRECTORY | _NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], _READ | _NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)


def _open_by_path(root: Path, parts: tuple[str, ...]) -> int:
    path = root
    for part in parts:
        path = path / part
        if _is_link(os.lstat(path)):
            raise OSError(errno.ELOOP, "a link")
    return os.open(path, _READ)


def _is_link(info: os.stat_result) -> bool:
    return stat.S_ISLNK(info.st_mode) or bool(getattr(info, "st_file_attributes", 0) & _REPARSE_POINT)


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a link"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no permission to read it"
    return f"cannot be opened ({error.strerror or type(error).__name__})"


def walk_folder(root: Path, limits: Limits, known: Mapping[str, Sequence[int]] | None = None) -> Iterator[Message]:
    """Everything below `root`; see the module's text. `root` itself may be a link, since the user named it.

    known: (size, modified) by path of files whose text the parent has.
    """
    files: list[str] = []
    for message in _list(root, limits):
        if message["type"] == "found":
            files.append(message["path"])
        else:
            yield message
    yield {"type": "start", "total": len(files)}
    text_bytes = pages = 0
    for path in files:
        message = _read(root, path, limits, (known or {}).get(path))
        if message["type"] == "file_text":
            text_bytes += sum(len(text.encode()) for _, text in message["pages"])
            pages += len(message["pages"])
            if text_bytes > limits.text_bytes or pages > limits.pages:
                message = _skip(path, BEYOND_LIMIT)
        yield message


def _skip(path: str, reason: str) -> Message:
    return {"type": "skip", "path": path, "reason": reason}


def _list(root: Path, limits: Limits) -> Iterator[Message]:
    """Paths to read ("found") and to skip, in order. A stack, not recursion: folders may be nested deep."""
    stack: list[tuple[str, tuple[Ignore, ...]]] = [("", ())]
    seen = 0
    while stack:
        path, ignores = stack.pop()
        if path and not path.endswith("/"):
            yield {"type": "found", "path": path}
            continue
        try:
            entries = _entries(root, path)
        except OSError as error:
            yield _skip(path or "/", _reason(error))
            continue
        seen += len(entries)
        if seen > limits.folder_entries:
            yield _skip(path or "/", f"the folder holds more than {limits.folder_entries:,} files")
            return
        if ".gitignore" in entries:
            ignores = (*ignores, *_gitignore(root, path))
        inner: list[tuple[str, tuple[Ignore, ...]]] = []
        for name in sorted(entries):
            child = path + name
            reason = _reason_to_skip(child, name, entries[name], ignores)
            if reason:
                yield _skip(child, reason)
            elif stat.S_ISDIR(entries[name].st_mode):
                inner.append((child + "/", ignores))
            else:
                inner.append((child, ignores))
        stack.extend(reversed(inner))


def _entries(root: Path, path: str) -> dict[str, os.stat_result]:
    """Names in one folder with their own (not their target's) status."""
    if os.scandir not in os.supports_fd:
        folder = root / path
        if path and _is_link(os.lstat(folder)):
            raise OSError(errno.ELOOP, "a link")
        with os.scandir(folder) as found:
            return {entry.name: entry.stat(follow_symlinks=False) for entry in found}
    fd = os.open(root, os.O_RDONLY | _DIRECTORY)
    try:
        for part in PurePosixPath(path).parts:
            inner = os.open(part, os.O_RDONLY | _DIRECTORY | _NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = inner
        with os.scandir(fd) as found:
            return {entry.name: entry.stat(follow_symlinks=False) for entry in found}
    finally:
        os.close(fd)


def _reason_to_skip(path: str, name: str, info: os.stat_result, ignores: tuple[Ignore, ...]) -> str:
    if _is_link(info):
        return "a link"
    if stat.S_ISDIR(info.st_mode):
        if path.count("/") >= DEPTH:
            return f"more than {DEPTH} folders deep"
        return kinds.skipped_folder(name) or ("ignored by .gitignore" if _ignored(path + "/", ignores) else "")
    if not stat.S_ISREG(info.st_mode):
        return "not a regular file"
    return kinds.skipped_name(name) or ("ignored by .gitignore" if _ignored(path, ignores) else "")


def _gitignore(root: Path, folder: str) -> tuple[Ignore, ...]:
    import pathspec  # here, since only folders need it and each child starts anew

    try:
        fd = open_inside(root, folder + ".gitignore")
    except NotInside:
        return ()  # listed as skipped under its own name
    with os.fdopen(fd, "rb") as file:
        lines = file.read(1 << 20).decode("utf-8", errors="replace").splitlines()
    specs: list[str] = []
    for line in lines:
        try:
            pathspec.GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue  # git too passes over a pattern that it cannot read
        specs.append(line)
    return ((folder, pathspec.GitIgnoreSpec.from_lines(specs)),)


def _ignored(path: str, ignores: tuple[Ignore, ...]) -> bool:
    """The deepest .gitignore that says anything about the path decides, as in git."""
    for folder, spec in reversed(ignores):
        decision = spec.check_file(path[len(folder) :]).include
        if decision is not None:
            return decision
    return False


def list_folder(root: Path, limits: Limits) -> Iterator[Message]:
    """Only names, sizes and times: {"type": "found", "path", "size", "modified"} and what is skipped by its name."""
    for message in _list(root, limits):
        if message["type"] == "found":
            try:
                info = os.stat(root / message["path"], follow_symlinks=False)
            except OSError as error:
                message = _skip(message["path"], _reason(error))
            else:
                message |= {"size": info.st_size, "modified": info.st_mtime_ns}
        yield message


def _read(root: Path, path: str, limits: Limits, known: Sequence[int] | None) -> Message:
    try:
        fd = open_inside(root, path)
    except NotInside as error:
        return _skip(path, str(error))
    name = path.rpartition("/")[2]
    info = os.fstat(fd)
    facts: Message = {"size": info.st_size, "modified": info.st_mtime_ns}
    with os.fdopen(fd, "rb") as file:
        if known is not None and list(facts.values()) == list(known):
            return {"type": "unchanged", "path": path}
        head = file.read(4096)
        if kinds.looks_like_pdf(name, head):
            return {"type": "pdf", "path": path}
        if info.st_size > limits.folder_file_bytes:
            return _skip(path, f"larger than {limits.folder_file_bytes / 1e6:g} MB") | facts
        data = head + file.read(limits.folder_file_bytes)
    facts |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    reason = kinds.skipped_content(name, data)
    if reason:
        return _skip(path, reason) | facts
    try:
        text, warning = textfile.decode(data)
    except textfile.NotText:
        return _skip(path, "a binary file") | facts
    return {
        "type": "file_text",
        "path": path,
        "kind": kinds.text_kind(name),
        "warning": warning,
        "pages": [[page.label, page.text] for page in textfile.split_pages(text)],
        **facts,
    }
