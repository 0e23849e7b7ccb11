"""E-books (.epub): chapters in the order of reading; the book's own table of contents is the outline and the labels."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import unquote

from lxml import etree

from app.errors import BadInput
from app.ingest.formats import webpage
from app.ingest.formats.flow import Flow
from app.ingest.formats.package import Package, attribute, child, damaged, local
from app.ingest.formats.pages import Pages, one_line

_FONT_DISGUISE = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
Title = tuple[str, int]  # text, level from 0


def read(file: BinaryIO, name: str, out: Pages, password: str | None = None) -> None:
    package = Package(file, name)
    _refuse_protected(package, name)
    book = _book(package, name)
    root = package.xml(book, doctype=True)
    folder = posixpath.dirname(book)
    files: dict[str, tuple[str, str, str]] = {}
    for item in root.iter("{*}item"):
        path = posixpath.normpath(posixpath.join(folder, unquote(attribute(item, "href"))))
        files[attribute(item, "id")] = (path, attribute(item, "media-type"), attribute(item, "properties"))
    titles = _contents(package, root, files, folder)
    chapter = 0
    for reference in root.iter("{*}itemref"):
        path, kind, properties = files.get(attribute(reference, "idref"), ("", "", ""))
        if "nav" in properties.split():
            continue  # the table of contents, which is the outline
        if "html" not in kind or path not in package:
            if path:
                out.warn(f"{one_line(posixpath.basename(path))} was not read ({kind or 'it is missing'}).")
            continue
        chapter += 1
        _chapter(package, path, chapter, titles.get(path, {}), out)


def _chapter(package: Package, path: str, number: int, titles: dict[str, Title], out: Pages) -> None:
    before = len(out.pages)
    root = webpage.tree(package.read(path), package.name, out)
    start = titles.get("")
    anchors = {key: title for key, title in titles.items() if key}
    own = start[0] if start else _first_heading(root)
    flow = Flow(out, section=own or f"Section {number}")
    if start:
        out.mark(*start)
    elif own:
        out.mark(own, 0)
    marks = len(out.outline)
    webpage.Walker(flow, out, anchors).walk(root)
    flow.close()
    told = {(own, before + 1)}  # a title in the table of contents and on the page is one line of the outline
    for entry in out.outline[marks:]:
        if (entry.title, entry.page) in told:
            out.outline.remove(entry)
        told.add((entry.title, entry.page))
    if len(out.pages) == before:  # a cover, a blank page
        del out.outline[marks - (1 if start or own else 0) :]


def _first_heading(root: etree._Element) -> str:
    heading = next(root.iter("{*}h1", "{*}h2", "{*}h3"), None)
    return one_line("".join(map(str, heading.itertext()))) if heading is not None else ""


def _book(package: Package, name: str) -> str:
    if "META-INF/container.xml" in package:
        for element in package.xml("META-INF/container.xml", doctype=True).iter("{*}rootfile"):
            if attribute(element, "full-path") in package:
                return attribute(element, "full-path")
    found = next((part for part in package.names() if part.lower().endswith(".opf")), None)
    if found is None:
        raise damaged(name)
    return found


def _refuse_protected(package: Package, name: str) -> None:
    """Copy protection encrypts the chapters; disguised fonts alone do no harm."""
    if "META-INF/encryption.xml" not in package:
        return
    root = package.xml("META-INF/encryption.xml")
    methods = {attribute(element, "Algorithm") for element in root.iter("{*}EncryptionMethod")}
    if methods - set(_FONT_DISGUISE) or "META-INF/rights.xml" in package:
        raise BadInput(f"{name} is copy-protected (DRM) and cannot be read.", "Open a copy without protection.")


def _contents(
    package: Package, root: etree._Element, files: dict[str, tuple[str, str, str]], folder: str
) -> dict[str, dict[str, Title]]:
    """{file: {anchor or "": (title, level)}} from the navigation document, or from the older NCX file."""
    found: dict[str, dict[str, Title]] = {}
    for path, kind, properties in files.values():
        if "nav" in properties.split() and path in package:
            entries = _nav(package.xml(path, doctype=True))
        elif kind == "application/x-dtbncx+xml" and path in package and not found:
            entries = _ncx(package.xml(path, doctype=True))
        else:
            continue
        for title, target, level in entries:
            place, _, anchor = target.partition("#")
            file = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(place)))
            found.setdefault(file, {}).setdefault(anchor, (title, level))
    for titles in found.values():
        if "" not in titles and titles:  # a file known only by an anchor near its top
            first = next(iter(titles))
            titles[""] = titles.pop(first)
    return found


def _nav(root: etree._Element) -> Iterator[tuple[str, str, int]]:
    lists = [e for e in root.iter("{*}nav") if attribute(e, "type", "toc") == "toc"]
    for link in lists[0].iter("{*}a") if lists else ():
        level = sum(local(above) == "ol" for above in link.iterancestors()) - 1
        title = one_line("".join(map(str, link.itertext())), 200)
        if title and link.get("href"):
            yield title, link.get("href", ""), max(0, level)


def _ncx(root: etree._Element) -> Iterator[tuple[str, str, int]]:
    for point in root.iter("{*}navPoint"):
        level = sum(local(above) == "navPoint" for above in point.iterancestors())
        text, content = child(point, "navLabel", "text"), child(point, "content")
        if text is not None and text.text and content is not None:
            yield one_line(text.text, 200), attribute(content, "src"), level
