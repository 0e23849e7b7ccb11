"""Small files made to cost hours, to fill the memory, or to mislead whoever looks at labels."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.constants import PageLabelStyle

from app.citation_report import citation_place
from app.citations import PageSource, attribute
from app.errors import BadInput
from app.ingest import Limits, read_file, walk
from app.ingest.disk import DiskTree
from app.ingest.extracted import OutlineEntry
from app.ingest.formats import Pages, flow, pages
from app.ingest.formats.package import whole
from app.ingest.textfile import declared
from tests.app.ingest.formats_help import read, text, zipped
from tests.app.ingest.test_formats_web import opendocument
from tests.app.small_pdfs import FACTS, write_pdf

SECONDS = 5.0  # of processor time; where the time grows with the square of the length, each of these takes minutes


def notebook(source: str) -> bytes:
    return json.dumps({"cells": [{"cell_type": "markdown", "source": source}]}).encode()


def test_headings_of_a_notebook_take_linear_time(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes(notebook("# a" + " " * 100_000 + "b\n## Tides ##\n"))
    start = time.process_time()
    out = read(tmp_path / "a.ipynb")
    assert time.process_time() - start < SECONDS
    assert out.outline[-1] == OutlineEntry("Tides", 1, 1)


def test_a_long_text_is_cut_in_linear_time() -> None:
    long = "\u4e00 \U0001f600 " * 4_000_000
    start = time.process_time()
    parts = flow.pieces(long, 3_000)
    assert time.process_time() - start < SECONDS
    assert "".join("".join(parts).split()) == "\u4e00\U0001f600" * 4_000_000
    assert max(map(len, parts)) <= 3_000


@pytest.mark.parametrize("name", ["punycode", "IDNA", "unicode_escape", "zlib_codec", "undefined", "a\0b", "x" * 9_999])
def test_a_declared_charset_is_one_of_documents(name: str) -> None:
    with pytest.raises((LookupError, UnicodeError)):
        declared(b"a-b", name)


@pytest.mark.parametrize("name", ["punycode", "idna", "unicode_escape"])
def test_a_page_in_no_charset_is_read_as_any_text(tmp_path: Path, name: str) -> None:
    page = f'<html><head><meta charset="{name}"></head><body>Tides \\x41 xn--4-</body></html>'
    (tmp_path / "a.html").write_text(page, encoding="utf-8")
    assert text(read(tmp_path / "a.html")) == "Tides \\x41 xn--4-"


def test_a_zero_byte_in_the_charset_of_a_mail(tmp_path: Path) -> None:
    head = b'From: Ann\nSubject: Pier\nMIME-Version: 1.0\nContent-Type: text/plain; charset="a\0b"\n\n'
    (tmp_path / "a.eml").write_bytes(head + "It is clösed.".encode())
    assert "It is clösed." in text(read(tmp_path / "a.eml"))


@pytest.mark.parametrize("number", ["²", "9" * 5_000, "-1", "", "1e9"])
def test_what_is_no_number_is_none(number: str) -> None:
    assert whole(number, 7) == 7


@pytest.mark.parametrize("level", ["²", "9" * 30, "0"])
def test_an_odd_heading_level(tmp_path: Path, level: str) -> None:
    body = f'<office:text><text:h text:outline-level="{level}">Tides</text:h></office:text>'
    (tmp_path / "a.odt").write_bytes(opendocument("text", body))
    out = read(tmp_path / "a.odt")
    assert 0 <= out.outline[0].level < 10


def test_one_file_of_a_folder_does_not_use_up_the_time_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.html").write_text("<html><body>" + "<p>x</p>" * 100_000 + "</body></html>")
    (tmp_path / "b.txt").write_text("Tides")
    monkeypatch.setattr(walk, "FILE_SECONDS", 0.05)
    messages = list(walk.walk_tree(DiskTree(tmp_path), Limits()))
    assert [m["reason"] for m in messages if m["type"] == "skip"] == [
        "it took more than 0.05 seconds of processor time"
    ]
    assert [m["path"] for m in messages if m["type"] == "file_text"] == ["b.txt"]


def test_folders_of_an_archive_count_as_entries(tmp_path: Path) -> None:
    parts = {"/".join([str(number), *"abcdefgh" * 20, "x.txt"]): "Tides" for number in range(5)}
    (tmp_path / "a.zip").write_bytes(zipped(parts))
    with pytest.raises(BadInput, match="more than 500 entries"):
        read_file(tmp_path / "a.zip", limits=Limits(folder_entries=500))


def test_labels_do_not_turn_what_stands_around_them() -> None:
    out = Pages(Limits())
    out.mark("a\u202efdp.\u2066", 0)
    out.add("Sheet \u202egnp\u2069", "Tides \u202bstay\u202c")
    assert out.pages == [("Sheet gnp", "Tides \u202bstay\u202c")]
    assert out.outline[0].title == "afdp."


def test_a_page_label_of_a_pdf_is_one_short_line(tmp_path: Path) -> None:
    writer = PdfWriter(clone_from=write_pdf(tmp_path / "a.pdf", [*FACTS]))
    writer.set_page_label(0, 3, prefix="A\u202e\n" + "x" * 5_000)
    writer.write(tmp_path / "b.pdf")
    label = read_file(tmp_path / "b.pdf").pages[0].label
    assert label.startswith("A xxx")
    assert len(label) <= pages.LABEL_CHARACTERS


@pytest.mark.parametrize("other", ["contract.pdf:p", "docs/lease.pdf:p1 (x) \u2014 lease.pdf:p", "lease.txt:L"])
def test_a_label_does_not_name_another_document(tmp_path: Path, other: str) -> None:
    writer = PdfWriter(clone_from=write_pdf(tmp_path / "a.pdf", [*FACTS]))
    writer.set_page_label(0, 1, PageLabelStyle.DECIMAL, prefix=other)
    writer.write(tmp_path / "b.pdf")
    (tmp_path / "c.html").write_text(f"<h1>{other}3</h1><p>{FACTS[0]}</p>", encoding="utf-8")
    for name in ("b.pdf", "c.html"):
        found = read_file(tmp_path / name)
        places = [PageSource("d", found.name, page.index, page.label, page.text) for page in found.pages]
        (citation,) = attribute(f'"{FACTS[0]}"', places)
        assert citation_place(citation) == f"{name}, page 1"


def test_warnings_and_outline_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_OUTLINE", 3)
    out = Pages(Limits())
    for number in range(50):
        out.mark(f"Part {number}", 0)
    assert len(out.outline) == 3
    assert out.warnings == ["Its table of contents was cut after 3 lines."]
    for number in range(1_000):
        out.warn(f"Sheet {number} {'x' * 1_000}\nis hidden.")
    assert len(out.warnings) == pages.MOST_WARNINGS + 1
    assert max(map(len, out.warnings)) <= pages.WARNING_CHARACTERS
    assert "\n" not in "".join(out.warnings)
    assert out.warnings[-1] == "There is more of that kind."
