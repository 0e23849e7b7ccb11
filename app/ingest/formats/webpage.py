"""Web pages (.html, .xhtml): what a reader sees, in text order. No script runs, nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.entities import html5
from typing import BinaryIO

from lxml import etree

from app.errors import BadInput
from app.ingest import textfile
from app.ingest.formats import drawing, tables
from app.ingest.formats.flow import Flow
from app.ingest.formats.package import local
from app.ingest.formats.pages import LimitReached, Pages, clean


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CHARSET = re.compile(
    rb"""<(?:meta\b[^>]{0,300}?\bcharset|\?xml\b[^>]{0,100}?\bencoding)\s*=\s*["']?([\w.:-]{2,40})""", re.IGNORECASE
)
_UNSEEN = _words("script style template noscript head title datalist iframe object embed canvas audio video")
_COUNTED = {"iframe": "embedded pages", "object": "embedded objects", "embed": "embedded objects",
            "canvas": "drawings", "audio": "sounds", "video": "videos"}  # fmt: skip
_BLOCKS = _words("""
    address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure footer
    form header hgroup hr html legend main menu nav ol optgroup option p section summary ul select
""")
_HEADINGS = {f"h{level}": level - 1 for level in range(1, 7)}
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_NAMED = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)([A-Za-z][A-Za-z0-9]{1,30});")
_SPACE = re.compile(r"[ \t\n\r\f]+")


def read(file: BinaryIO, name: str, out: Pages, password: str | None = None) -> None:
    most = out.limits.text_bytes
    data = file.read(most + 1)
    flow = Flow(out)
    Walker(flow, out).walk(tree(data[:most], name, out))
    flow.close()
    if len(data) > most:
        raise LimitReached(f"it is larger than {most / 1e6:g} MB")


def tree(data: bytes, name: str, out: Pages) -> etree._Element:
    """A page's elements. XHTML is read as XML first, since a self-closing <title/> swallows the page in HTML."""
    text = decoded(data, name, out)
    utf8 = text.encode("utf-8", "replace")
    if data.lstrip()[:5] == b"<?xml" or b'xmlns="http://www.w3.org/1999/xhtml"' in data[:2000]:
        xml = etree.XMLParser(
            encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False,
            remove_comments=True, remove_pis=True,
        )  # fmt: skip
        named = _NAMED.sub(lambda match: html5.get(match[1] + ";", match[0]), text)
        try:
            return etree.fromstring(named.encode("utf-8", "replace"), xml)
        except etree.XMLSyntaxError:
            pass  # most pages that say they are XML are not
    parser = etree.HTMLParser(encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True, huge_tree=True)
    try:
        root = etree.fromstring(utf8, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise BadInput(f"{name} holds nothing that a browser would show.", "Save the page again.") from error
    if any("depth" in entry.message for entry in parser.error_log):
        out.warn("What is nested more than 2,000 levels deep was not read.")
    if root is None:
        raise BadInput(f"{name} holds nothing that a browser would show.", "Save the page again.")
    return root


def decoded(data: bytes, name: str, out: Pages) -> str:
    """By mark, then by what the page declares, then as any text."""
    declared = _CHARSET.search(data[:4096])
    if declared and not data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        encoding = declared[1].decode("ascii").lower()
        encoding = {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252", "gb2312": "gb18030",
                    "gbk": "gb18030", "shift_jis": "cp932", "euc-kr": "cp949", "ks_c_5601-1987": "cp949",
                    "big5": "big5hkscs"}.get(encoding, encoding)  # fmt: skip
        try:
            return textfile.declared(data, encoding).replace("\r\n", "\n").replace("\r", "\n")
        except (LookupError, UnicodeError):
            pass  # what is declared is not what is there
    try:
        text, warning = textfile.decode(data)
    except textfile.NotText as error:
        raise BadInput(f"{name} is not a web page: {error}", "Save the page again.") from error
    if warning:
        out.warn(warning)
    return text


class Walker:
    """Hands blocks to a Flow.

    anchors: {id: (title, level from 0)} of elements at which a chapter begins.
    """

    def __init__(self, flow: Flow, out: Pages, anchors: Mapping[str, tuple[str, int]] | None = None) -> None:
        self._flow, self._out = flow, out
        self._anchors = dict(anchors or {})
        self._parts: list[str] = []
        self._lists: list[int] = []  # numbers of the open lists' last items, -1 for bullets
        self._heading: int | None = None
        self._prefix = ""
        self._pre = 0
        self._raised: list[int] = []

    def walk(self, root: etree._Element) -> None:
        has_main = next((e for e in root.iter("{*}main", "{*}article") if _count_words(e) > 30), None) is not None
        walk = etree.iterwalk(root, events=("start", "end"))
        for event, element in walk:
            if event == "end":
                self._end(element)
                self._tail(element)
            elif isinstance(element.tag, str):  # else an entity of the page's own, which is never expanded
                tag = local(element).lower()
                if self._is_left_out(element, tag, has_main):
                    walk.skip_subtree()
                    element[:] = []  # its end comes all the same
                    element.text = None
                elif tag == "table" and _is_data(element):
                    self._flush()
                    self._table(element)
                    walk.skip_subtree()
                    element[:] = []
                else:
                    self._start(element, tag)
        self._flush()

    def _is_left_out(self, element: etree._Element, tag: str, has_main: bool) -> bool:
        if tag in _COUNTED:
            self._out.warn(f"Not read: {_COUNTED[tag]}.")
        if tag == "nav" and has_main and _count_words(element):
            self._out.warn("Menus beside the text were left out.")
            return True
        hidden = element.get("hidden") is not None or _HIDDEN.search(element.get("style", "")) is not None
        if hidden and _count_words(element):
            self._out.warn("Text that the page hides was left out.")
        return tag in _UNSEEN or hidden

    def _start(self, element: etree._Element, tag: str) -> None:
        chapter = self._anchors.pop(element.get("id") or element.get("name") or "", None)
        if chapter:
            self._flush()
            self._flow.section(*chapter)
        if tag in _HEADINGS:
            self._flush()
            self._heading = _HEADINGS[tag]
        elif tag in ("ul", "ol", "menu"):
            self._flush()
            start = element.get("start", "1")
            first = int(start) - 1 if start.isdecimal() and len(start) < 8 else 0
            self._lists.append(first if tag == "ol" else -1)
        elif tag == "li":
            self._flush()
            self._item()
        elif tag == "pre":
            self._flush()
            self._pre += 1
        elif tag in _BLOCKS or tag in ("tr", "table"):
            self._flush()
        elif tag in ("td", "th") and self._parts:
            self._parts.append(" ")
        elif tag == "br":
            self._parts.append("\n")
        elif tag == "img" or tag == "image":
            self._image(element)
        elif tag == "input" and element.get("type", "text").lower() in ("text", "submit", "button", "email", "number"):
            self._parts.append(element.get("value", ""))
        elif tag == "sup":
            self._raised.append(len(self._parts))
        if element.text and isinstance(element.tag, str):
            self._text(element.text)

    def _end(self, element: etree._Element) -> None:
        tag = local(element).lower()
        if tag in _HEADINGS or tag in _BLOCKS or tag in ("li", "tr", "pre"):
            self._flush()
        if tag in ("ul", "ol", "menu") and self._lists:
            self._lists.pop()
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
        elif tag == "sup" and self._raised:
            start = self._raised.pop()
            inside = "".join(self._parts[start:])
            self._parts[start:] = [drawing.raised("".join(self._parts[max(0, start - 3) : start]), inside)]

    def _tail(self, element: etree._Element) -> None:
        if element.tail:
            self._text(element.tail)

    def _text(self, text: str) -> None:
        self._parts.append(text if self._pre else _SPACE.sub(" ", text))

    def _item(self) -> None:
        indent = "  " * max(0, len(self._lists) - 1)
        if self._lists and self._lists[-1] >= 0:
            self._lists[-1] += 1
            self._prefix = f"{indent}{self._lists[-1]}. "
        else:
            self._prefix = f"{indent}- "

    def _image(self, element: etree._Element) -> None:
        text = drawing.alternative_text(element.get("alt", ""))
        if text:
            self._parts.append(f" {text} ")
        elif element.get("alt") is None or element.get("src", "").startswith("data:"):
            self._out.pictures += 1  # an empty alt says that it is for decoration only

    def _flush(self) -> None:
        text = "".join(self._parts)
        self._parts.clear()
        self._raised.clear()
        if not self._pre:
            text = "\n".join(" ".join(line.split()) for line in clean(text).split("\n")).strip()
        if text.strip():
            if self._heading is not None:
                self._flow.heading(text, self._heading)
            else:
                self._flow.text(self._prefix + text)
            self._prefix = ""
        self._heading = None

    def _table(self, table: etree._Element) -> None:
        caption = next((e for e in table if local(e).lower() == "caption"), None)
        if caption is not None:
            self._flow.text(tables.cell_text("".join(_seen(caption))))
        rows, headers = [], 0
        for row in table.iter("{*}tr", "{*}TR"):
            cells = [e for e in row if local(e).lower() in ("td", "th")]
            if cells and len(rows) == headers and all(local(e).lower() == "th" for e in cells):
                headers += 1
            rows.append([
                tables.Cell("".join(_seen(e)), _span(e, "colspan"), _span(e, "rowspan")) for e in cells
            ])  # fmt: skip
        self._flow.table(tables.grid(rows, self._out.warn), headers or 1)


def _span(element: etree._Element, name: str) -> int:
    value = element.get(name, "1").strip()
    return min(max(1, int(value)), tables.MOST_COLUMNS) if value.isdecimal() and len(value) < 6 else 1


def _is_data(table: etree._Element) -> bool:
    """Not one that lays out a page: those hold tables or headings."""
    return next(table.iterdescendants("{*}table", "{*}h1", "{*}h2", "{*}h3"), None) is None


def _seen(element: etree._Element) -> list[str]:
    """The text of a cell: its blocks are parted by spaces."""
    parts: list[str] = []
    walk = etree.iterwalk(element, events=("start", "end"))
    for event, inner in walk:
        tag = local(inner).lower()
        if event == "start":
            if tag in _UNSEEN or inner.get("hidden") is not None or _HIDDEN.search(inner.get("style") or ""):
                walk.skip_subtree()
                inner[:] = []
                inner.text = None
            elif tag == "br" or tag in _BLOCKS or tag == "li":
                parts.append(" ")
            elif tag == "img":
                parts.append(drawing.alternative_text(inner.get("alt", "")))
            if inner.text:
                text = inner.text
                parts.append(drawing.raised("".join(parts[-3:]), text) if tag == "sup" else text)
        if event != "start" and inner is not element:
            if event == "end" and (tag in _BLOCKS or tag == "li"):
                parts.append(" ")
            parts.append(inner.tail or "")
    return parts


def _count_words(element: etree._Element) -> int:
    """Words inside, counted to 31."""
    count = 0
    for text in element.itertext():
        count += len(text.split())
        if count > 30:
            break
    return count
