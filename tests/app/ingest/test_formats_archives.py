"""Archives: read like folders, in memory, and what must never get out of one or into the text."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import docx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import BadInput
from app.ingest import Extracted, Limits, identify, read_file, read_folder
from app.ingest.archives import ZipTree, usable_name
from tests.app.ingest.formats_help import zipped

SECRET = "hunter2-very-secret"


def reasons(found: Extracted) -> dict[str, str]:
    return {skipped.path: skipped.reason for skipped in found.skipped}


def word() -> bytes:
    data = io.BytesIO()
    document = docx.Document()
    document.add_paragraph("Open the valve.")
    document.save(data)
    return data.getvalue()


FILES: dict[str, str | bytes] = {
    "repo/src/a.py": "print(1)\n",
    "repo/.gitignore": "*.log\n!keep.log\n",
    "repo/sub/.gitignore": "!*.log\n",
    "repo/a.log": "ignored",
    "repo/keep.log": "kept\n",
    "repo/sub/b.log": "kept as well\n",
    "repo/node_modules/x.js": "x",
    "repo/.env": SECRET,
    "repo/manual.docx": word(),
    "repo/inner.zip": zipped({"deep.txt": SECRET}),
    "repo/big.txt": "x" * 1_500_000,
    "repo/notes.ipynb": '{"cells": [{"cell_type": "markdown", "source": "# Notes"}]}',
    "repo/table.csv": "Boat,Fee\nGull,2\n",
    "repo/page.html": "<html><body>source here</body></html>\n",
    "__MACOSX/repo/._a.py": "x",
}
PAGES = [
    ("repo/.gitignore:L1-2", "*.log\n!keep.log\n"),
    ("repo/keep.log:L1", "kept\n"),
    ("repo/manual.docx:Part 1", "Open the valve."),
    ("repo/notes.ipynb:Cell 1", "[Cell 1, markdown]\n# Notes"),
    ("repo/page.html:L1", "<html><body>source here</body></html>\n"),
    ("repo/src/a.py:L1", "print(1)\n"),
    ("repo/sub/.gitignore:L1", "!*.log\n"),
    ("repo/sub/b.log:L1", "kept as well\n"),
    ("repo/table.csv:Rows 1-2", "Boat | Fee\nGull | 2"),
]
REASONS = {
    "__MACOSX": "a system's own files",
    "repo/.env": "may hold secrets",
    "repo/a.log": "ignored by .gitignore",
    "repo/big.txt": "larger than 1 MB",
    "repo/inner.zip": "an archive: open it by itself",
    "repo/node_modules": "installed packages",
}


def tarred(path: Path, mode: str, entries: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
        for info, data in entries:
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def entry(name: str, data: str | bytes = b"x\n", kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, data.encode() if isinstance(data, str) else data


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.xz", "a.tar.bz2", "misnamed.txt"])
def test_every_archive_reads_like_the_folder_in_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "a.zip":
        path.write_bytes(zipped(FILES))
    else:
        packer = {"gz": "gz", "tgz": "gz", "xz": "xz", "bz2": "bz2", "txt": "bz2"}.get(name.rpartition(".")[2], "")
        tarred(path, f"w:{packer}", [entry(key, content) for key, content in FILES.items()])
    found = read_file(path)
    assert [(page.label, page.text) for page in found.pages] == PAGES
    assert reasons(found) == REASONS
    assert found.kind == "archive"
    assert SECRET not in repr(found)
    assert identify(path) == (found.sha256, found.extractor)
    if name == "a.zip":
        with zipfile.ZipFile(path) as file:
            file.extractall(tmp_path / "out")
        folder = read_folder(tmp_path / "out")
        assert sorted((page.label, page.text) for page in folder.pages) == PAGES
        assert reasons(folder) == REASONS


def test_paths_links_and_devices(tmp_path: Path) -> None:
    before = set(os.listdir(tmp_path.parent))
    path = tarred(
        tmp_path / "hostile.tar.gz",
        "w:gz",
        [
            entry("./src/a.py", "print(1)\n"),
            entry("../up.txt", SECRET),
            entry("src/../../up.txt", SECRET),
            entry("/etc/cron.d/x", SECRET),
            entry("link", b"", tarfile.SYMTYPE, "/etc/passwd"),
            entry("hard", b"", tarfile.LNKTYPE, "src/a.py"),
            entry("device", b"", tarfile.CHRTYPE),
            entry("pipe", b"", tarfile.FIFOTYPE),
            entry("src/a.py/under", SECRET),
            entry("src/a.py", "print(2)\n"),
        ],
    )
    found = read_file(path)
    assert [(page.label, page.text) for page in found.pages] == [("src/a.py:L1", "print(2)\n")]
    assert reasons(found) == {
        "../up.txt": "a path that leads outside the archive",
        "src/../../up.txt": "a path that leads outside the archive",
        "/etc/cron.d/x": "an absolute path, which leads outside the archive",
        "device": "not a regular file",
        "hard": "a link",
        "link": "a link",
        "pipe": "not a regular file",
        "src/a.py": "replaced by a later entry of the same name",
        "src/a.py/under": "inside of something that is no folder",
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc/passwd")
        for name in ("../up.txt", "/abs.txt", "C:\\win.txt", "a\\b.txt"):
            file.writestr(name, "x\n")
    (tmp_path / "hostile.zip").write_bytes(data.getvalue())
    found = read_file(tmp_path / "hostile.zip")
    assert [page.label for page in found.pages] == ["a/b.txt:L1"]
    assert set(reasons(found)) == {"link", "../up.txt", "/abs.txt", "C:\\win.txt"}
    assert set(os.listdir(tmp_path.parent)) == before


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_name_leads_outside(name: str) -> None:
    path, reason = usable_name(name)
    if not reason:
        assert os.path.normpath(os.path.join("/root-of-it", path)).startswith("/root-of-it/")
        assert "\0" not in path
        assert "\\" not in path


def test_bombs_and_crowds(tmp_path: Path) -> None:
    (tmp_path / "bomb.zip").write_bytes(zipped({"a.txt": "fine\n", "zeros.txt": b"0" * 200_000_000}))
    assert (tmp_path / "bomb.zip").stat().st_size < 400_000
    found = read_file(tmp_path / "bomb.zip")
    assert [page.text for page in found.pages] == ["fine\n"]
    assert reasons(found) == {"zeros.txt": "larger than 1 MB"}
    crowd = io.BytesIO()
    with zipfile.ZipFile(crowd, "w") as file:
        for number in range(2_001):
            file.writestr(f"{number}.txt", "")
    (tmp_path / "crowd.zip").write_bytes(crowd.getvalue())
    with pytest.raises(BadInput, match="more than 2,000 entries"):
        read_file(tmp_path / "crowd.zip", limits=Limits(folder_entries=2_000))


@pytest.mark.slow
def test_a_packed_tar_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three gigabytes of zeros in three megabytes: what stands before them is kept, and the place is named."""
    import gzip

    first, zeros = tarfile.TarInfo("first.txt"), tarfile.TarInfo("zeros.bin")
    first.size, zeros.size = 17, 3 << 30
    start = first.tobuf() + b"before the zeros\n".ljust(512, b"\0") + zeros.tobuf()
    with gzip.open(tmp_path / "bomb.tar.gz", "wb", compresslevel=1) as packed:
        packed.write(start)
        for _ in range(3 << 6):
            packed.write(bytes(16 << 20))
    found = read_file(tmp_path / "bomb.tar.gz")
    assert [page.text for page in found.pages] == ["before the zeros\n"]
    assert "unpacks to more than 2 GB" in found.warnings[0]
    assert found.extractor.endswith("+partial")


def test_cut_off_archives(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped(FILES)[:2_000])
    with pytest.raises(BadInput, match=r"a\.zip is damaged or cut off"):
        read_file(tmp_path / "a.zip")
    noise = os.urandom(300_000)
    whole = tarred(tmp_path / "b.tar.gz", "w:gz", [entry("a.txt", "kept\n"), entry("b.bin", noise), entry("c.txt")])
    (tmp_path / "cut.tar.gz").write_bytes(whole.read_bytes()[:200_000])
    found = read_file(tmp_path / "cut.tar.gz")
    assert [page.text for page in found.pages] == ["kept\n"]
    assert "Reading cut.tar.gz stopped after a.txt, because it is damaged or cut off" in found.warnings[0]


def test_a_locked_archive(tmp_path: Path) -> None:
    data = bytearray(zipped({"a.txt": "locked\n"}))
    data[6] |= 1  # the mark of an encrypted entry, before its bytes and in the directory
    data[data.rfind(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "all.zip").write_bytes(data)
    with pytest.raises(BadInput, match="protected by a password"):
        read_file(tmp_path / "all.zip")
    data = bytearray(zipped({"a.txt": "locked\n", "b.txt": "open\n"}))
    data[6] |= 1
    data[data.find(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "some.zip").write_bytes(data)
    found = read_file(tmp_path / "some.zip")
    assert [page.text for page in found.pages] == ["open\n"]
    assert reasons(found) == {"a.txt": "protected by a password"}


def test_names_of_other_systems(tmp_path: Path) -> None:
    for encoding, name in (("utf-8", "Größe.txt"), ("cp932", "博物館の入場料について.txt"), ("cp437", "Größe.txt")):
        data = zipped({"#" * len(name.encode(encoding)): "text\n"})
        path = tmp_path / f"{encoding}.zip"
        path.write_bytes(data.replace(b"#" * len(name.encode(encoding)), name.encode(encoding)))
        assert [page.label for page in read_file(path).pages] == [f"{name}:L1"]


def named(path: Path, names: list[bytes], extra: dict[bytes, bytes] | None = None) -> Path:
    """A zip whose entries are called so, byte for byte, without the mark of UTF-8; each holds its number."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for number, name in enumerate(names):
            info = zipfile.ZipInfo(chr(65 + number) * len(name))
            info.extra = (extra or {}).get(name, b"")
            archive.writestr(info, f"text {number}\n")
    packed = data.getvalue()
    for number, name in enumerate(names):
        packed = packed.replace(bytes([65 + number]) * len(name), name)
    path.write_bytes(packed)
    return path


def paths(found: Extracted) -> dict[str, str]:
    return {page.label.rpartition(":")[0]: page.text for page in found.pages}


def test_each_name_is_in_its_own_encoding(tmp_path: Path) -> None:
    names = ["Größe der Maße.txt".encode("cp437"), "Öffnungszeiten für Café.txt".encode()]
    assert paths(read_file(named(tmp_path / "two.zip", names))) == {
        "Größe der Maße.txt": "text 0\n",
        "Öffnungszeiten für Café.txt": "text 1\n",
    }


@pytest.mark.parametrize("taken_for", ["", "cp932"])
def test_names_that_differ_in_bytes_of_no_encoding_are_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_for: str
) -> None:
    japanese = "博物館の入場料について.txt"
    names = [japanese.encode("cp932"), b"lamp-\xff.txt", b"lamp-\xfe.txt", b"\x83\xff-note.txt", b"\x83\xfe-note.txt"]
    path = named(tmp_path / "odd.zip", names)
    monkeypatch.setattr("app.ingest.textfile.guess", lambda data: taken_for)
    with path.open("rb") as file:
        tree = ZipTree(file, "odd.zip", Limits())
        found = {tree.open(name)[0].read(): name for name in tree.entries("")}
    assert sorted(found) == [f"text {k}\n".encode() for k in range(len(names))], tree.skipped
    assert (found[b"text 0\n"] == japanese) == bool(taken_for)
    stored = read_file(path)
    assert len({file.path for file in stored.files}) == len(paths(stored)) == len(names)


def test_a_name_that_is_told_in_utf8_beside_its_own_bytes(tmp_path: Path) -> None:
    def told(raw: bytes, name: str) -> bytes:
        field = b"\x01" + zlib.crc32(raw).to_bytes(4, "little") + name.encode()
        return struct.pack("<HH", 0x7075, len(field)) + field

    names = [b"??????.txt", b"renamed-since.txt"]
    extra = {names[0]: told(names[0], "灯台守.txt"), names[1]: told(b"before.txt", "vorher.txt")}
    found = read_file(named(tmp_path / "told.zip", names, extra))
    assert paths(found) == {"灯台守.txt": "text 0\n", "renamed-since.txt": "text 1\n"}


def test_names_in_tars_that_differ_in_such_bytes_are_two_files(tmp_path: Path) -> None:
    names = [os.fsdecode(b"lamp-\xff.txt"), os.fsdecode(b"lamp-\xfe.txt")]
    found = read_file(tarred(tmp_path / "odd.tar", "w", [entry(name, f"text {k}") for k, name in enumerate(names)]))
    assert len(found.pages) == len({file.path for file in found.files}) == 2
