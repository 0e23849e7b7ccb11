"""Office and e-book files: a zip of XML parts, opened with limits; XML without entities, nothing fetched."""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, BinaryIO
from urllib.parse import unquote

from lxml import etree

from app.errors import BadInput

MOST_PARTS = 50_000
MOST_PART_BYTES = 256 << 20
MOST_STREAMED_BYTES = 1 << 30
_DOCTYPES = tuple("<!DOCTYPE".encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le"))
_STRICT = b"http://purl.oclc.org/ooxml/"  # the same vocabulary under other names
_NAMESPACES = {
    b"http://purl.oclc.org/ooxml/officeDocument/relationships": (
        b"http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    ),
    b"http://purl.oclc.org/ooxml/wordprocessingml/main": (
        b"http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    ),
    b"http://purl.oclc.org/ooxml/spreadsheetml/main": b"http://schemas.openxmlformats.org/spreadsheetml/2006/main",
    b"http://purl.oclc.org/ooxml/presentationml/main": b"http://schemas.openxmlformats.org/presentationml/2006/main",
    b"http://purl.oclc.org/ooxml/drawingml/main": b"http://schemas.openxmlformats.org/drawingml/2006/main",
    b"http://purl.oclc.org/ooxml/drawingml/chart": b"http://schemas.openxmlformats.org/drawingml/2006/chart",
    b"http://purl.oclc.org/ooxml/officeDocument/math": b"http://schemas.openxmlformats.org/officeDocument/2006/math",
}
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError, etree.XMLSyntaxError)


def damaged(name: str) -> BadInput:
    return BadInput(f"{name} is damaged or cut off.", "Copy or download it again, or open and save it in its program.")


def parse(data: bytes, name: str, doctype: bool = False) -> etree._Element:
    """The root of a part. doctype: whether a document type may be declared; its entities are never expanded."""
    if not doctype and any(mark in data for mark in _DOCTYPES):
        raise _with_entities(name)
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
    )
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise damaged(name) from error
    _refuse_doctype(root, name, doctype)
    return root


def _refuse_doctype(root: etree._Element, name: str, allowed: bool) -> None:
    declared = root.getroottree().docinfo.internalDTD
    if declared is not None and (not allowed or any(True for _ in declared.iterentities())):
        raise _with_entities(name)


def _with_entities(name: str) -> BadInput:
    return BadInput(
        f"{name} declares a document type or entities of its own, which no honest file of this kind does.",
        "Open it in its program and save it anew, if you trust it.",
    )


def local(element: etree._Element) -> str:
    """The name of an element without its namespace; "" for an entity left in the text."""
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def attribute(element: etree._Element, name: str, default: str = "") -> str:
    """An attribute by its local name, in whatever namespace."""
    value = element.get(name)
    if value is not None:
        return value
    end = "}" + name
    return next((value for key, value in element.attrib.items() if key.endswith(end)), default)


def whole(text: str, default: int = 0) -> int:
    """A whole number from 0 of at most nine digits; `default` for anything else, such as "²" or a thousand digits."""
    return int(text) if text.isdecimal() and len(text) < 10 else default


def child(element: etree._Element | None, *names: str) -> etree._Element | None:
    """The first child called names[0], in it the first called names[1], and so on."""
    for name in names:
        if element is None:
            return None
        element = next((inner for inner in element if local(inner) == name), None)
    return element


class Package:
    """Parts by name. Every failure is a BadInput that names the file."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        try:
            self._zip = zipfile.ZipFile(file)
        except _DAMAGED as error:
            raise damaged(name) from error
        members = self._zip.infolist()
        if len(members) > MOST_PARTS:
            raise BadInput(f"{name} consists of more than {MOST_PARTS:,} parts.", "It looks made to do harm.")
        if any(member.flag_bits & 1 for member in members):
            raise BadInput(f"{name} is protected by a password.", "Save it without one and open that file.")
        self._members = {_plain(member.filename): member for member in members}

    def __contains__(self, part: str) -> bool:
        return _plain(part) in self._members

    def names(self) -> Iterator[str]:
        return (member.filename for member in self._members.values())

    def read(self, part: str) -> bytes:
        """A part's bytes, checked against its checksum."""
        member = self._member(part, MOST_PART_BYTES)
        try:
            data = self._zip.read(member)
        except _DAMAGED as error:
            raise damaged(self.name) from error
        except RuntimeError as error:  # encrypted, told only by the part's own header
            raise BadInput(f"{self.name} is protected by a password.", "Save it without one.") from error
        return data

    def xml(self, part: str, doctype: bool = False) -> etree._Element:
        data = self.read(part)
        if _STRICT in data:
            for strict, usual in _NAMESPACES.items():
                data = data.replace(strict, usual)
        return parse(data, self.name, doctype)

    def stream(self, part: str, tags: tuple[str, ...]) -> Iterator[etree._Element]:
        """Elements with these local names, complete, in order; what is done with is let go of. For large parts."""
        member = self._member(part, MOST_STREAMED_BYTES)
        try:
            with self._zip.open(member) as file:
                yield from _stream(file, tags, self.name)
        except _DAMAGED as error:
            raise damaged(self.name) from error

    def _member(self, part: str, most: int) -> zipfile.ZipInfo:
        member = self._members.get(_plain(part))
        if member is None:
            raise damaged(self.name)
        if member.file_size > most:
            raise BadInput(
                f"{self.name} unpacks to more than {most >> 20} MB ({part}).", "Split it, or save it as PDF or text."
            )
        return member

    def relations(self, part: str) -> list[tuple[str, str, str]]:
        """(id, last word of the type, part it leads to) of a part ("" for the package); links outside are left out."""
        folder, _, base = part.rpartition("/")
        where = posixpath.join(folder, "_rels", base + ".rels")
        if where not in self:
            return []
        found = []
        for relation in self.xml(where):
            if relation.get("TargetMode", "") == "External" or not relation.get("Target"):
                continue
            target = unquote(relation.get("Target", "")).replace("\\", "/")
            path = target.lstrip("/") if target.startswith("/") else posixpath.normpath(posixpath.join(folder, target))
            found.append((relation.get("Id", ""), relation.get("Type", "").rpartition("/")[2], path))
        return found

    def related(self, part: str, kind: str) -> list[str]:
        """Existing parts that `part` leads to by relations of this kind."""
        return [path for _, found, path in self.relations(part) if found == kind and path in self]

    def main_part(self) -> str:
        found = self.related("", "officeDocument")
        if not found:
            raise damaged(self.name)
        return found[0]


def _plain(part: str) -> str:
    return part.replace("\\", "/").lstrip("/").lower()


def _stream(file: IO[bytes], tags: tuple[str, ...], name: str) -> Iterator[etree._Element]:
    found = etree.iterparse(
        file,
        events=("end",),
        tag=[f"{{*}}{tag}" for tag in tags],
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        remove_comments=True,
        remove_pis=True,
    )
    first = True
    for _, element in found:
        if first:
            _refuse_doctype(element, name, False)
            first = False
        yield element
        element.clear(keep_tail=False)
        parent = element.getparent()
        if parent is not None:
            while len(parent) and parent[0] is not element:
                del parent[0]
