"""Files that are cut off, misnamed, locked, or made to do harm: one sentence with a hint, in time, no fetch."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import docx
import msoffcrypto
import openpyxl
import pptx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msoffcrypto.format.ooxml import OOXMLFile

from app.errors import BadInput, PasswordNeeded
from app.ingest import Limits, detect, formats, identify, read_file
from app.ingest.formats import Pages
from tests.app.ingest.formats_help import changed, read, text, zipped
from tests.app.ingest.test_formats_web import book, opendocument


def word(path: Path, words: str = "Open the valve.") -> Path:
    document = docx.Document()
    document.add_heading("Manual", 1)
    document.add_paragraph(words)
    document.save(str(path))
    return path


def deck(path: Path) -> Path:
    slides = pptx.Presentation()
    slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = "Harbour"
    slides.save(str(path))
    return path


def sheet(path: Path) -> Path:
    workbook = openpyxl.Workbook()
    workbook.active.append(["Boat", "Fee"])
    workbook.save(path)
    return path


def written(data: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(data)
        return path

    return write


def mail() -> bytes:
    message = EmailMessage()
    message["From"] = "Ann"
    message.set_content("The pier is closed.")
    return bytes(message)


ODT = opendocument("text", "<office:text><text:p>Tides</text:p></office:text>")
NOTEBOOK = json.dumps({"cells": [{"cell_type": "code", "source": "x = 1"}]}).encode()
MAKERS: dict[str, Callable[[Path], Path]] = {
    "a.docx": word,
    "a.pptx": deck,
    "a.xlsx": sheet,
    "a.epub": written(book()),
    "a.odt": written(ODT),
    "a.ipynb": written(NOTEBOOK),
    "a.html": written(b"<html><body><p>The pier is closed.</p></body></html>"),
    "a.csv": written(b"Boat,Fee\nGull,2\n"),
    "a.eml": written(mail()),
    "a.rtf": written(rb"{\rtf1\ansi The pier is closed.\par}"),
}


def is_document(path: Path) -> bool:
    with open(path, "rb") as file:
        return detect.kind_of(path.name, file) in formats.KINDS


def outcome(path: Path) -> Pages | BadInput:
    try:
        return read(path)
    except BadInput as error:
        return error


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_cut_off_anywhere_is_read_in_part_or_refused_in_words(tmp_path: Path, name: str) -> None:
    whole = MAKERS[name](tmp_path / name).read_bytes()
    for share in (0.02, 0.3, 0.5, 0.9, 0.99):
        path = tmp_path / f"cut.{name[2:]}"
        path.write_bytes(whole[: max(1, int(share * len(whole)))])
        found = outcome(path) if is_document(path) else None  # two letters of an RTF file are plain text
        if isinstance(found, BadInput):
            assert path.name in found.message
            assert found.hint
        elif found is None:
            assert share == 0.02
        else:
            assert name[2:] in ("html", "csv", "eml", "rtf")  # these have no end that could be missed
            assert text(found)


@pytest.mark.parametrize(
    ("name", "make", "kind"),
    [
        ("a.xlsx", word, "docx"),
        ("a.txt", word, "docx"),
        ("a.zip", deck, "pptx"),
        ("a.docx", sheet, "xlsx"),
        ("a.pdf", sheet, "xlsx"),
        ("a.zip", written(book()), "epub"),
        ("a", written(ODT), "odt"),
        ("a.docx", written(rb"{\rtf1 The pier is closed.\par}"), "rtf"),
        ("a.docx", written(b"<html><body>The pier is closed."), "html"),
    ],
)
def test_the_content_decides_and_not_the_name(
    tmp_path: Path, name: str, make: Callable[[Path], Path], kind: str
) -> None:
    path = make(tmp_path / f"made-{name}.{kind}").rename(tmp_path / name)
    found = read_file(path)
    assert found.kind == kind
    assert identify(path) == (found.sha256, found.extractor)


def test_plain_text_under_an_office_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_text("This is no Word document.\n")
    with pytest.raises(BadInput, match="is not a Word document in spite of its name"):
        read_file(tmp_path / "a.docx")


SECRET = "root-secret-of-this-machine"


@pytest.mark.parametrize("name", ["a.docx", "a.pptx", "a.xlsx", "a.odt", "a.epub"])
@pytest.mark.parametrize("where", ["file", "laughs", "parameter"])
def test_entities_are_never_expanded(tmp_path: Path, name: str, where: str) -> None:
    (tmp_path / "secret.txt").write_text(SECRET)
    part = {
        "a.docx": "word/document.xml",
        "a.pptx": "ppt/presentation.xml",
        "a.xlsx": "xl/worksheets/sheet1.xml",
        "a.odt": "content.xml",
        "a.epub": "OEBPS/book.opf",
    }[name]
    source = MAKERS[name](tmp_path / name)
    with zipfile.ZipFile(source) as file:
        xml = file.read(part).decode()
    _, _, rest = xml.partition("?>") if xml.startswith("<?xml") else ("", "", xml)
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    doctype = {
        "file": f'<!DOCTYPE x [<!ENTITY e SYSTEM "file://{tmp_path}/secret.txt">]>',
        "laughs": f'<!DOCTYPE x [<!ENTITY l0 "ha">{laughs}<!ENTITY e "&l11;">]>',
        "parameter": f'<!DOCTYPE x [<!ENTITY % p SYSTEM "file://{tmp_path}/secret.txt"> %p; <!ENTITY e "">]>',
    }[where]
    opening = rest.index(">") + 1
    hostile = f'<?xml version="1.0"?>{doctype}{rest[:opening]}&e;{rest[opening:]}'.encode()
    path = changed(source, {part: hostile}, tmp_path / f"hostile-{name}")
    with pytest.raises(BadInput, match=r"entities of its own|damaged") as caught:
        read(path)
    assert SECRET not in str(caught.value)


def test_entities_in_a_chapter_of_an_e_book(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(SECRET)
    chapter = (
        f'<!DOCTYPE html [<!ENTITY e SYSTEM "file://{tmp_path}/secret.txt">]><html><body><p>A &e; b.</p></body></html>'
    )
    (tmp_path / "a.epub").write_bytes(book(**{"OEBPS/text/a.xhtml": '<?xml version="1.0"?>' + chapter}))
    assert SECRET not in text(read(tmp_path / "a.epub"))


def test_bombs(tmp_path: Path) -> None:
    """A small file that unpacks to much: refused by what it says of itself, or stopped by the child's limits."""
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        with zipfile.ZipFile(word(tmp_path / "a.docx")) as honest:
            for part in honest.namelist():
                if part != "word/document.xml":
                    file.writestr(part, honest.read(part))
        with file.open("word/document.xml", "w") as part:
            part.write(b"<w:document xmlns:w='http://schemas.openxmlformats.org/wordprocessingml/2006/main'><w:body>")
            for _ in range(300):
                part.write(b"<w:p><w:r><w:t>harbour</w:t></w:r></w:p>" * 25_000)
    (tmp_path / "bomb.docx").write_bytes(bomb.getvalue())
    assert (tmp_path / "bomb.docx").stat().st_size < 5_000_000
    with pytest.raises(BadInput, match="unpacks to more than 256 MB"):
        read_file(tmp_path / "bomb.docx")


def test_a_part_that_lies_about_its_size(tmp_path: Path) -> None:
    data = bytearray(word(tmp_path / "a.docx", "harbour " * 100_000).read_bytes())
    with zipfile.ZipFile(tmp_path / "a.docx") as file:
        info = file.getinfo("word/document.xml")
    at = data.rfind(b"word/document.xml") - 46  # its entry in the directory
    data[at + 24 : at + 28] = (1000).to_bytes(4, "little")
    assert info.file_size > 100_000
    (tmp_path / "lies.docx").write_bytes(data)
    with pytest.raises(BadInput, match="damaged or cut off"):
        read(tmp_path / "lies.docx")


def test_too_much_text_is_kept_in_part_and_said(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("".join(f"{n},some text in a row\n" for n in range(20_000)))
    found = read_file(tmp_path / "long.csv", limits=Limits(text_bytes=50_000))
    assert found.extractor.endswith("+partial")
    assert "Reading long.csv stopped after page" in found.warnings[-1]
    found = read_file(word(tmp_path / "long.docx", "harbour " * 20_000), limits=Limits(pages=3))
    assert len(found.pages) == 3
    assert "more than 3 pages" in found.warnings[-1]


def encrypted(source: Path, target: Path, password: str) -> Path:
    with open(source, "rb") as plain, open(target, "wb") as locked:
        OOXMLFile(plain).encrypt(password, locked)
    return target


@pytest.mark.parametrize("name", ["a.docx", "a.xlsx", "a.pptx"])
def test_a_locked_office_file(tmp_path: Path, name: str) -> None:
    path = encrypted(MAKERS[name](tmp_path / name), tmp_path / f"locked-{name}", "anchor")
    assert path.read_bytes().startswith(detect.OLE)
    with pytest.raises(PasswordNeeded, match=f"{path.name} is protected by a password"):
        read_file(path)
    with pytest.raises(PasswordNeeded, match="not right"):
        read_file(path, password="wrong")
    found = read_file(path, password="anchor")
    assert found.kind == name[2:]
    assert found.pages[0].text


def test_an_old_office_file_says_what_to_do(tmp_path: Path) -> None:
    for name in ("a.doc", "a.docx"):
        (tmp_path / name).write_bytes(detect.OLE + b"\0" * 2_000)
        with pytest.raises(BadInput, match="an old Office document") as caught:
            read_file(tmp_path / name)
        assert ".docx" in caught.value.hint
    assert msoffcrypto.__name__


def test_macros_are_named_and_only_pictures_are_said(tmp_path: Path) -> None:
    path = changed(word(tmp_path / "a.docx"), {"word/vbaProject.bin": b"\xd0\xcf"}, tmp_path / "macro.docm")
    assert read(path).warnings == ["It holds macros, which were neither run nor read."]
    slides = pptx.Presentation()
    slides.slides.add_slide(slides.slide_layouts[6])
    slides.save(str(tmp_path / "empty.pptx"))
    with pytest.raises(BadInput, match="holds no text"):
        read(tmp_path / "empty.pptx")


@pytest.mark.parametrize("name", ["a.docx", "a.xlsx", "a.pptx", "a.odt", "a.epub"])
def test_parts_that_are_missing(tmp_path: Path, name: str) -> None:
    source = MAKERS[name](tmp_path / name)
    with zipfile.ZipFile(source) as file:
        parts = file.namelist()
    for part in parts:
        path = changed(source, {part: None}, tmp_path / f"less-{name}")
        found = outcome(path) if is_document(path) else None  # else an archive like any other
        assert not isinstance(found, BadInput) or path.name in found.message


@given(st.binary(min_size=1, max_size=400), st.integers(0, 10_000))
@settings(max_examples=150, deadline=None)
def test_damaged_bytes_never_break_a_reader(noise: bytes, place: int) -> None:
    for kind, whole in (("odt", ODT), ("notebook", NOTEBOOK), ("email", mail()), ("html", b"<p>a</p>" + noise)):
        at = place % len(whole)
        data = whole[:at] + noise + whole[at + len(noise) :]
        with contextlib.suppress(BadInput):  # anything else is a failure
            formats.read(kind, io.BytesIO(data), "noise", Pages(Limits()))


def test_a_zip_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(zipped({"hello.txt": "hi"}))
    assert read_file(tmp_path / "a.docx").kind == "archive"
