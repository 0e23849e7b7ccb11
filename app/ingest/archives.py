"""Zip and tar archives as trees, read in memory: nothing is written to the disk, so no entry can reach outside.

Entries with odd names, links, devices, encrypted and doubled entries are left out and named in `skipped`.
"""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from app.errors import BadInput
from app.ingest import detect, kinds, textfile
from app.ingest.disk import NotInside
from app.ingest.extracted import Limits
from app.ingest.walk import Message, walk_tree

MOST_UNPACKED = 2 << 30
MOST_MEMBER = 300_000_000
MOST_KEPT = 200_000_000
MOST_NAME = 1_000
_DIRECTORY_ENTRY = 46
UTF8_NAME = 0x800  # flag bit 11 of an entry
UNICODE_PATH = 0x7075
_ASIAN = frozenset({"cp932", "shift_jis", "gb18030", "gbk", "gb2312", "big5", "big5hkscs", "cp949", "euc_kr"})
BROKEN = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError,
    RuntimeError, ValueError,
)  # fmt: skip


class Stopped(Exception):
    """The archive could be read up to a place. The message ends "Reading stopped, because ..."."""


def usable_name(name: str) -> tuple[str, str]:
    """(path with "/" between its parts, ""), or (name, why an entry of this name is left out)."""
    path = name.replace("\\", "/")
    if path.startswith("/") or path[1:2] == ":":
        return name, "an absolute path, which leads outside the archive"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        return name, "a path that leads outside the archive"
    if not parts or "\0" in path:
        return name, "a name that cannot be used"
    if len(path) > MOST_NAME:
        return name[:100] + "...", f"a name of more than {MOST_NAME:,} characters"
    return "/".join(parts), ""


class ArchiveTree:
    """What `app.ingest.walk.Tree` asks for. skipped: (path, reason) of entries that never get into the tree.

    stopped: why the rest of the archive is missing, "" if it was read to its end.
    """

    def __init__(self, name: str, limits: Limits) -> None:
        self._name, self._limits = name, limits
        self._folders: dict[str, dict[str, os.stat_result]] = {"": {}}
        self.skipped: list[tuple[str, str]] = []
        self.stopped = ""

    def entries(self, folder: str) -> dict[str, os.stat_result]:
        return self._folders[folder]

    def open(self, path: str) -> tuple[BinaryIO, int, int]:
        raise NotImplementedError

    def _add(self, name: str, mode: int, size: int) -> str:
        """Puts an entry in its place; returns its path, or "" if it is left out."""
        path, reason = usable_name(name)
        if not reason and stat.S_ISLNK(mode):
            reason = "a link"
        elif not reason and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            reason = "not a regular file"
        if not reason and not self._make_folders(path.split("/")[:-1]):
            reason = "inside of something that is no folder"
        if reason:
            self.skipped.append((path, reason))
            return ""
        above, _, last = path.rpartition("/")
        siblings = self._folders[above + "/" if above else ""]
        if stat.S_ISDIR(mode):
            self._make_folders(path.split("/"))
            return ""
        if last in siblings:
            self.skipped.append((path, "replaced by a later entry of the same name"))
        siblings[last] = _status(stat.S_IFREG, size)
        return path

    def _make_folders(self, parts: list[str]) -> bool:
        folder = ""
        for part in parts:
            info = self._folders[folder].setdefault(part, _status(stat.S_IFDIR, 0))
            if not stat.S_ISDIR(info.st_mode):
                return False
            folder += part + "/"
            self._folders.setdefault(folder, {})
            if len(self._folders) > self._limits.folder_entries:
                raise _too_many(self._name, self._limits)
        return True


class ZipTree(ArchiveTree):
    """Entries are unpacked one by one, when they are asked for."""

    def __init__(self, file: BinaryIO, name: str, limits: Limits) -> None:
        super().__init__(name, limits)
        if _entries_told(file) > limits.folder_entries:
            raise _too_many(name, limits)
        try:
            self._zip = zipfile.ZipFile(file)
        except BROKEN as error:
            raise BadInput(f"{name} is damaged or cut off.", "Copy or download it again.") from error
        members = self._zip.infolist()
        if len(members) > limits.folder_entries:
            raise _too_many(name, limits)
        self._members: dict[str, zipfile.ZipInfo] = {}
        self._unpacked = 0
        locked = 0
        for member, shown in zip(members, _zip_names(members)):
            mode = member.external_attr >> 16
            if not stat.S_IFMT(mode):
                mode = stat.S_IFDIR if member.is_dir() or shown.endswith(("/", "\\")) else stat.S_IFREG
            path = self._add(shown, mode, member.file_size)
            if path:
                self._members[path] = member
                locked += member.flag_bits & 1
        if locked and locked == len(self._members):
            raise BadInput(f"{name} is protected by a password.", "Unpack it and open the folder.")

    def __contains__(self, path: str) -> bool:
        return path in self._members

    def open(self, path: str) -> tuple[BinaryIO, int, int]:
        member = self._members.get(path)
        if member is None:
            raise NotInside("it is not in the archive")
        if member.flag_bits & 1:
            raise NotInside("protected by a password")
        try:
            file = self._zip.open(member)
        except BROKEN as error:
            raise NotInside("packed in a way that cannot be read, or damaged") from error
        return _Counted(file, self), member.file_size, 0  # type: ignore[return-value]

    def path_of(self, content: str, ending: str) -> str:
        """Of the member whose bytes have this sha256, among those of this ending; "" if there is none."""
        for path, member in self._members.items():
            if not path.endswith(ending) or member.file_size > MOST_MEMBER:
                continue
            digest = hashlib.sha256()
            with contextlib.suppress(NotInside):  # locked or damaged, so not the one
                file, _, _ = self.open(path)
                while block := file.read(1 << 20):
                    digest.update(block)
            if digest.hexdigest() == content:
                return path
        return ""

    def count(self, more: int) -> None:
        self._unpacked += more
        if self._unpacked > MOST_UNPACKED:
            raise Stopped(f"it unpacks to more than {MOST_UNPACKED >> 30} GB")


class TarTree(ArchiveTree):
    """Read once from its start, since a packed tar cannot be entered in the middle: texts are kept in memory, of
    documents only their beginning, `member` reads one of them."""

    def __init__(self, file: BinaryIO, name: str, limits: Limits) -> None:
        super().__init__(name, limits)
        self._contents: dict[str, tuple[bytes, int]] = {}
        kept = 0
        try:
            for member, reader in _tar_members(file, name, limits):
                mode = _tar_mode(member)
                path = self._add(member.name, mode, member.size)
                if not path or reader is None or _left_out(path):
                    continue
                most = limits.folder_file_bytes if kept < MOST_KEPT else detect.HEAD
                if path.lower().endswith((".ipynb", ".eml")) and kept < MOST_KEPT:
                    most = 50_000_000
                data = reader.read(most + 1 if member.size <= most else detect.HEAD)
                kept += len(data)
                self._contents[path] = (data, member.size)
        except Stopped as stop:
            self.stopped = str(stop)
        except BROKEN:
            self.stopped = "it is damaged or cut off"
        if self.stopped and not self._contents:
            raise BadInput(f"{name} could not be read, because {self.stopped}.", "Copy or download it again.")

    def open(self, path: str) -> tuple[BinaryIO, int, int]:
        if path not in self._contents:
            raise NotInside("cut off" if self.stopped else "it is not in the archive")
        data, size = self._contents[path]
        return io.BytesIO(data), size, 0


class _Counted(io.RawIOBase):
    """A member of a zip. What is wrong with its bytes shows when they are read."""

    def __init__(self, file: object, tree: ZipTree) -> None:
        self._file, self._tree = file, tree

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            data = self._file.read(size)  # type: ignore[attr-defined]
        except BROKEN as error:
            raise NotInside("damaged") from error
        self._tree.count(len(data))
        return data


def walk_archive(file: BinaryIO, name: str, limits: Limits) -> Iterator[Message]:
    """Messages as of `app.ingest.walk.walk_tree`, then {"type": "stopped", "reason"} where the rest is missing."""
    tree = open_tree(file, name, limits)
    for path, reason in tree.skipped:
        yield {"type": "skip", "path": path, "reason": reason}
    try:
        yield from walk_tree(tree, limits)
    except Stopped as stop:
        tree.stopped = str(stop)
    if tree.stopped:
        yield {"type": "stopped", "reason": tree.stopped}


def open_tree(file: BinaryIO, name: str, limits: Limits) -> ZipTree | TarTree:
    """Raises BadInput for an archive that holds nothing readable."""
    file.seek(0)
    is_zip = file.read(2) == b"PK"
    file.seek(0)
    return ZipTree(file, name, limits) if is_zip else TarTree(file, name, limits)


def open_member(file: BinaryIO, name: str, path: str, limits: Limits, content: str = "") -> io.BytesIO:
    """One document of an archive, in memory. Raises BadInput, NotInside or Stopped.

    content: its sha256 where that is known; a zip is then searched for it if nothing has this path, since earlier
    versions read some names otherwise.
    """
    too_large = BadInput(f"{path} is larger than {MOST_MEMBER // 1_000_000} MB.", "Unpack it and open it by itself.")
    file.seek(0)
    if file.read(2) == b"PK":
        tree = ZipTree(file, name, limits)
        if content and path not in tree:
            path = tree.path_of(content, os.path.splitext(path)[1]) or path
        member, size, _ = tree.open(path)
        if size > MOST_MEMBER:
            raise too_large
        return io.BytesIO(member.read(MOST_MEMBER))
    found: bytes | None = None
    for entry, reader in _tar_members(file, name, limits):
        if reader is not None and usable_name(entry.name) == (path, ""):
            if entry.size > MOST_MEMBER:
                raise too_large
            found = reader.read()  # a later entry of the same name replaces it
    if found is None:
        raise BadInput(f"{path} is not in {name}.", "Open the archive again.")
    return io.BytesIO(found)


def _tar_members(file: BinaryIO, name: str, limits: Limits) -> Iterator[tuple[tarfile.TarInfo, BinaryIO | None]]:
    """Each entry with a reader of its bytes, which is good until the next one."""
    file.seek(0)
    unpacked = count = 0
    with tarfile.open(fileobj=_Unpacked(_plain_tar(file)), mode="r|") as tar:  # type: ignore[call-overload]
        for member in tar:
            count += 1
            unpacked += member.size
            if count > limits.folder_entries:
                raise _too_many(name, limits)
            yield member, tar.extractfile(member) if member.isreg() else None  # type: ignore[misc]
            if unpacked > MOST_UNPACKED:
                raise Stopped(f"it unpacks to more than {MOST_UNPACKED >> 30} GB")


def _plain_tar(file: BinaryIO) -> BinaryIO:
    head = file.read(6)
    file.seek(0)
    if head.startswith(b"\x1f\x8b"):
        import gzip

        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if head.startswith(b"BZh"):
        return bz2.BZ2File(file)  # type: ignore[return-value]
    if head.startswith(b"\xfd7zXZ"):
        return lzma.LZMAFile(file)  # type: ignore[return-value]
    return file


class _Unpacked:
    """Counts what comes out of the packer: an entry may claim any size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._count = file, 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._count += len(data)
        if self._count > MOST_UNPACKED:
            raise Stopped(f"it unpacks to more than {MOST_UNPACKED >> 30} GB")
        return data


def _tar_mode(member: tarfile.TarInfo) -> int:
    if member.isdir():
        return stat.S_IFDIR
    if member.isreg() and not member.issparse():
        return stat.S_IFREG
    return stat.S_IFLNK if member.issym() or member.islnk() else stat.S_IFIFO


def _left_out(path: str) -> bool:
    """Whether the walk leaves it out by its name alone, so that its bytes are not needed."""
    *folders, name = path.split("/")
    return any(map(kinds.skipped_folder, folders)) or bool(kinds.skipped_name(name))


def _status(kind: int, size: int) -> os.stat_result:
    return os.stat_result((kind | 0o600, 0, 0, 1, 0, 0, size, 0, 0, 0))


def _too_many(name: str, limits: Limits) -> BadInput:
    return BadInput(f"{name} holds more than {limits.folder_entries:,} entries.", "Unpack it and open a folder of it.")


def _entries_told(file: BinaryIO) -> int:
    """How many entries the zip's directory has room for, without reading it."""
    size = file.seek(0, 2)
    file.seek(max(0, size - (64 << 10) - 22))
    tail = file.read()
    file.seek(0)
    end = tail.rfind(b"PK\x05\x06")
    length = int.from_bytes(tail[end + 12 : end + 16], "little") if end >= 0 else 0
    return length // (_DIRECTORY_ENTRY + MOST_NAME) if length < 0xFFFFFFFF else size // (_DIRECTORY_ENTRY + 1)


def _zip_names(members: list[zipfile.ZipInfo]) -> list[str]:
    """A name marked as UTF-8 is so, and one that stands as UTF-8 in the entry's extra field too.

    Others are UTF-8 all the same where their bytes are; else of an Asian code page if all of them together look so and
    the name's own bytes fit it; else of DOS (code page 437), which has a character for every byte: names of different
    bytes stay different.
    """
    unmarked = b"\n".join(_raw_name(member) for member in members if not member.flag_bits & UTF8_NAME)
    asian = ""
    try:
        unmarked.decode("utf-8")
    except UnicodeDecodeError:
        asian = guess if (guess := textfile.guess(unmarked)) in _ASIAN else ""
    return [member.filename if member.flag_bits & UTF8_NAME else _zip_name(member, asian) for member in members]


def _raw_name(member: zipfile.ZipInfo) -> bytes:
    return member.orig_filename.split("\0")[0].encode("cp437", "replace")  # as zipfile decoded it


def _zip_name(member: zipfile.ZipInfo, asian: str) -> str:
    raw = _raw_name(member)
    told = _told_name(member.extra, raw)
    if told:
        return told
    # where a whole archive is in an Asian code page, a short name of it may be UTF-8 by chance
    for encoding in (asian, "utf-8") if asian else ("utf-8",):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    return raw.decode("cp437")


def _told_name(extra: bytes, raw: bytes) -> str:
    """The name in Info-ZIP's extra field 0x7075, if it is that of these bytes; "" if there is none."""
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        field, extra = extra[4 : 4 + size], extra[4 + size :]
        if kind == UNICODE_PATH and len(field) > 5 and field[0] == 1:
            if int.from_bytes(field[1:5], "little") != zlib.crc32(raw):
                return ""  # it was renamed by a program that does not know the field
            with contextlib.suppress(UnicodeDecodeError):
                return field[5:].decode("utf-8").split("\0")[0]
    return ""
