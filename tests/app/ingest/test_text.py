"""Text files: encodings, binaries, logical pages, kinds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import BadInput
from app.ingest import Extracted, Limits, read_file, read_many
from app.ingest.textfile import PAGE_CHARACTERS, NotText, decode, split_pages

PROSE = "Der Käpt'n hört die Glocke. Où est la clé ? Straße, naïve, fünfzig Gäste.\n"
RUSSIAN = "Музей открыт каждый день с девяти часов утра, кроме понедельника. Билет стоит сто рублей.\n"
JAPANESE = "博物館は毎日午前九時半に開きます。入場料は大人千円です。子供は無料です。\n"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "latin-1"]
)
def test_western_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "prose.txt"
    path.write_bytes((PROSE * 20).encode(encoding))
    found = read_file(path)
    assert "".join(page.text for page in found.pages) == PROSE * 20
    guessed = encoding in ("utf-16-le", "utf-16-be", "cp1252", "latin-1")
    assert bool(found.warnings) == guessed
    assert all("guessed" in warning for warning in found.warnings)


@pytest.mark.parametrize(("text", "encoding"), [(RUSSIAN, "cp1251"), (JAPANESE, "shift_jis"), (JAPANESE, "euc_jp")])
def test_other_encodings_are_guessed_and_say_so(tmp_path: Path, text: str, encoding: str) -> None:
    path = tmp_path / "prose.txt"
    path.write_bytes((text * 10).encode(encoding))
    found = read_file(path)
    assert found.pages[0].text == text * 10
    assert "guessed" in found.warnings[0]


def test_a_few_broken_bytes_do_not_spoil_utf8(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes((PROSE * 5).encode() + b"broken \xff byte\n")
    found = read_file(path)
    assert found.pages[0].text == PROSE * 5 + "broken \ufffd byte\n"
    assert "1 characters were not valid utf-8" in found.warnings[0]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.txt", b"", "empty.txt is empty"),
        ("blank.md", b" \n\t\n", "nothing but blanks"),
        ("zero.txt", b"text\0with a zero", "holds zero bytes"),
        ("photo.txt", b"\xff\xd8\xff\xe0" + b"\0" * 60, "is a JPEG picture"),
        ("letter.docx", b"PK\x03\x04" + b"\0" * 60, "damaged or cut off"),
        ("model.gguf", b"GGUF\x03\0\0\0", "a model file"),
        ("noise.txt", bytes(range(1, 32)) * 8, "control characters"),
        ("fake.pdf", b"This is no PDF.\n", "not a PDF in spite of its name"),
        ("fake2.pdf", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "not a PDF in spite of its name: it is a PNG picture"),
    ],
)
def test_refused_in_one_sentence_with_a_hint(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(BadInput, match=message) as caught:
        read_file(path)
    assert caught.value.exit_code == 4
    assert caught.value.hint
    assert name in caught.value.message


def test_no_file_a_folder_a_fifo_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, message in [
        (tmp_path / "none.pdf", "does not exist"),
        (tmp_path / ("x" * 5000), "cannot be opened"),
        (Path(f"{tmp_path}/a\0b"), "does not exist"),
        (tmp_path, "is a folder"),
        (tmp_path / "fifo", "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
    ]:
        with pytest.raises(BadInput, match=message):
            read_file(path)


def test_kinds(tmp_path: Path) -> None:
    for name, kind in [("a.py", "code"), ("b.MD", "markdown"), ("c", "text"), ("Makefile", "code"), ("d.log", "text")]:
        (tmp_path / name).write_text("all: sail\n")
        assert read_file(tmp_path / name).kind == kind


def test_pages_of_source_cite_lines(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("".join(f"value_{n} = {n}  # a comment of some length here\n" for n in range(1, 301)))
    pages = read_file(path).pages
    assert len(pages) > 3
    assert pages[0].label.startswith("L1-")
    for page in pages:
        first, last = (int(number) for number in page.label[1:].split("-"))
        lines = page.text.splitlines()
        assert lines[0].startswith(f"value_{first} ")
        assert lines[-1].startswith(f"value_{last} ")


def test_one_long_line(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text("harbour " * 1_250_000)
    found = read_file(path)
    assert found.characters == 10_000_000
    assert all(len(page.text) <= PAGE_CHARACTERS for page in found.pages)
    assert {page.label for page in found.pages} == {"L1"}


def test_too_much_text_is_kept_in_part_and_said(tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    path.write_text("A line of forty characters, as it seems.\n" * 1000)
    found = read_file(path, limits=Limits(text_bytes=20_000))
    assert found.pages[-1].text.endswith("seems.\n")
    assert found.characters <= 20_000
    assert found.extractor.endswith("+partial")
    assert "larger than 0.02 MB" in found.warnings[-1]
    few = read_file(path, limits=Limits(pages=3))
    assert len(few.pages) == 3
    assert "more than 3 pages" in few.warnings[-1]
    assert "pages 4-14 are missing" in few.warnings[-1]


def test_a_bad_file_never_stops_a_batch(tmp_path: Path) -> None:
    names = ["a.txt", "b.bin", "c.txt", "d.txt", "e.pdf"]
    for name in names:
        (tmp_path / name).write_bytes(
            b"%PDF-1.4 broken" if name == "e.pdf" else b"\0\1" if name == "b.bin" else b"fine\n"
        )
    results = read_many([tmp_path / name for name in [*names, "none.txt"]])
    assert [path.name for path, _ in results] == [*names, "none.txt"]
    assert [isinstance(found, Extracted) for _, found in results] == [True, False, True, True, False, False]


@given(st.binary(max_size=4000))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_text_or_refused(data: bytes) -> None:
    try:
        text, _ = decode(data)
    except NotText:
        return
    assert "\0" not in text
    text.encode("utf-8")


@given(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r"), max_size=3000), st.integers(5, 200)
)
@settings(max_examples=300, deadline=None)
def test_pages_give_the_text_back(text: str, size: int) -> None:
    pages = split_pages(text, size)
    assert "".join(page.text for page in pages) == text
    assert all(len(page.text) <= size for page in pages)
    lines = text.split("\n")
    for page in pages:
        assert 1 <= page.first_line <= page.last_line <= len(lines)
        assert page.text.rstrip("\n").split("\n")[0] in lines[page.first_line - 1]


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=500))
@settings(max_examples=200, deadline=None)
def test_utf8_always_round_trips(text: str) -> None:
    assert decode(text.encode("utf-8")) == (text.removeprefix("\ufeff"), "")
