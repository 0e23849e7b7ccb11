"""Real files from public packages: none crashes or hangs the reader, text is found where there is text.

Word recall is measured against a second reader, pdftotext: of the words that it finds in a file, how many are in ours
(as often). Words are letters and figures in NFKC form without case; words broken at a line's end are joined on both
sides. Our side counts the running headers and footers, which are kept beside the text. A ligature sign that the second
reader drops makes two stumps of a word ("speci", "ed"); stumps that with such a sign are a word of ours count as found.
A raised sign stands behind "^" in our text; the second reader sets it apart from its base or joins both, as its places
fall: both count as found.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from app.errors import AppError
from app.ingest import Extracted, Limits, read_many

RECALL = 0.98
# Files in which the second reader itself is wrong, as a look at the page shows, and how ours reads there. In this
# manual each argument stands in angle brackets of a font that does not name its signs: ⟨label⟩ on the page, but
# "hlabel i" in pdftotext.
WRONG_THERE = {"feynmf.pdf": "⟨label⟩"}
LEAST_THERE = 0.97
PDF_PAGES = 220  # longer ones add time, not kinds
LEAST_FILES = 40
LIGATURES = ("ff", "fi", "fl", "ffi", "ffl")
OTHER_KINDS = (".docx", ".pptx", ".xlsx", ".epub", ".html", ".ipynb", ".eml")


def _corpus_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ingest_corpus", Path(__file__).with_name("corpus.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus() -> Path:
    module = _corpus_module()
    try:
        return module.folder()
    except module.NoCorpus as error:
        pytest.skip(f"no corpus: {error}")


def _words(text: str) -> Counter[str]:
    text = unicodedata.normalize("NFKC", re.sub(r"[\x02\ufffe]", "-", text))
    text = re.sub(r"(?<=\w)[-\u2010\u00ad]\n\s*(?=\w)", "", text)
    return Counter(word.casefold() for word in re.findall(r"\w+", text))


def _recall(found: Extracted, path: Path) -> tuple[int, int]:
    """(words of the second reader that we have, all of its words)."""
    run = subprocess.run(["pdftotext", "-enc", "UTF-8", str(path), "-"], capture_output=True, timeout=60, check=False)
    text = run.stdout.decode("utf-8", "replace")
    theirs = _words(text)
    ours = _words("\n".join(f"{page.text}\n{page.running}" for page in found.pages))
    got = sum((theirs & ours).values())
    missing, more = theirs - ours, ours - theirs
    for one, other in re.findall(r"(\w+)[\s\x0b-\x1f]+(?=(\w+))", unicodedata.normalize("NFKC", text).casefold()):
        for sign in LIGATURES:
            word = one + sign + other
            if missing[one] > 0 and missing[other] > 0 and more[word] > 0:
                missing[one] -= 1
                missing[other] -= 1
                more[word] -= 1
                got += 2
                break
    for word in _raised_words("\n".join(page.text for page in found.pages)):
        parts = re.findall(r"\w+", word)
        whole = "".join(parts)
        if missing[whole] > 0 and all(more[part] > 0 for part in parts):
            missing[whole] -= 1
            more.subtract(parts)
            got += 1
    return got, sum(theirs.values())


def _raised_words(text: str) -> list[str]:
    """Words with a raised sign in them, and such words joined to the one that follows them."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return re.findall(r"\w+(?:\^[+−-]?\w+)+", text) + re.findall(r"(?=(?<!\w)(\w+(?:\^[+−-]?\w+)+[ ]\w+))", text)


def _pages(path: Path) -> int:
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError:
        return 1
    try:
        return len(document)
    finally:
        document.close()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no pdftotext here (package poppler-utils)")
def test_pdfs_of_public_packages(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [path for path in _corpus_module().unique(list(corpus.rglob("*.pdf"))) if _pages(path) <= PDF_PAGES]
    if len(paths) < LEAST_FILES:
        pytest.skip(f"the packages hold {len(paths)} PDFs only")
    start = time.monotonic()
    results = read_many(paths)
    seconds = time.monotonic() - start
    low: dict[str, float] = {}
    got = total = pages = 0
    for path, found in results:
        if isinstance(found, AppError):
            assert found.hint, path
            assert re.search(r"scanned|no text|protected|damaged|cut off", found.message), (path, found.message)
            assert sum(_pdftotext_words(path).values()) == 0, f"{path.name}: {found.message}"
            continue
        assert not found.extractor.endswith("+partial"), path
        assert [page.index for page in found.pages] == list(range(1, len(found.pages) + 1))
        for page in found.pages:
            assert page.text or page.flag in ("scanned", "empty", "garbled"), (path, page.index)
        words, all_words = _recall(found, path)
        got, total, pages = got + words, total + all_words, pages + len(found.pages)
        if path.name in WRONG_THERE:
            assert any(WRONG_THERE[path.name] in page.text for page in found.pages), path
            assert words >= LEAST_THERE * all_words, path
        elif words < RECALL * all_words:
            low[path.name] = round(words / all_words, 4)
    with capsys.disabled():
        share = got / total
        print(f"\n{len(results)} PDFs, {pages} pages, {total} words, recall {share:.4f}, {seconds:.1f} s {low or ''}")
    assert got >= RECALL * total
    assert not low


def _pdftotext_words(path: Path) -> Counter[str]:
    run = subprocess.run(["pdftotext", "-enc", "UTF-8", str(path), "-"], capture_output=True, timeout=60, check=False)
    return _words(run.stdout.decode("utf-8", "replace"))


@pytest.mark.slow
def test_other_files_of_public_packages(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Office files, web pages, books, texts in odd encodings: read, or refused with a reason and a hint."""
    module = _corpus_module()
    paths = [path for kind in OTHER_KINDS for path in module.unique(list(corpus.rglob(f"*{kind}")))[:25]]
    paths += module.unique(list(corpus.rglob("charset_normalizer-*/data/*.txt")))
    results = read_many(paths, limits=Limits())
    read = 0
    for path, found in results:
        if isinstance(found, AppError):
            assert found.exit_code == 4, (path, found.message)
            assert found.hint, path
        else:
            read += 1
            assert any(page.text.strip() for page in found.pages), path
    with capsys.disabled():
        print(f"\n{read} of {len(results)} other files read")
    assert read >= 0.6 * len(results)


@pytest.mark.slow
def test_source_trees_of_public_packages(corpus: Path) -> None:
    for tree in sorted(corpus.glob("*/*/")):
        if (tree / "PKG-INFO").exists():
            [(_, found)] = read_many([tree])
            assert isinstance(found, Extracted), tree
            assert len(found.files) >= 10
            assert any("def " in page.text for page in found.pages)


@pytest.mark.skipif(sys.platform == "win32", reason="packages of Debian")
def test_the_fetcher_says_why_there_is_no_corpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = _corpus_module()
    monkeypatch.setattr(module, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(module.NoCorpus, match="apt-get"):
        module.folder()


def _truth(name: str) -> list[tuple[str, str, int, list[list[str]]]]:
    """(package, file, page, rows of cells) of the tables in a file beside this one."""
    tables: list[tuple[str, str, int, list[list[str]]]] = []
    for line in Path(__file__).with_name(name).read_text("utf-8").splitlines():
        if line.startswith("== "):
            package, name, page = line[3:].split()
            tables.append((package, name, int(page), []))
        elif not line.startswith("#"):
            tables[-1][3].append(_cells(line))
    return tables


def _cells(line: str) -> list[str]:
    cells = (cell.replace("\\|", "|") for cell in f" {line} ".split(" | "))
    return [" ".join(re.sub(r"([,;(])\s*", r"\1 ", cell).split()) for cell in cells]


def _same(wanted: str, cell: str) -> bool:
    """Whether a cell reads as wanted; "~" stands before a raised or lowered sign, where "^" or a blank may stand."""
    cell = unicodedata.normalize("NFKC", cell)
    if "~" not in wanted:
        return cell == unicodedata.normalize("NFKC", wanted)
    return re.sub(r"[\s^]", "", cell) == re.sub(r"[\s~]", "", wanted)


def _right_cells(truth: list[list[str]], rows: list[list[str]]) -> int:
    """Cells of the truth that stand in the same column of the row that is matched with theirs.

    Rows are matched in order, each with at most one, so that the number of right cells is greatest; a row with another
    number of columns has no right cell.
    """
    best = [[0] * (len(rows) + 1) for _ in range(len(truth) + 1)]
    for i, wanted in enumerate(truth):
        for j, row in enumerate(rows):
            same = sum(map(_same, wanted, row)) if len(wanted) == len(row) else 0
            best[i + 1][j + 1] = max(best[i][j] + same, best[i][j + 1], best[i + 1][j])
    return best[-1][-1]


def test_the_measure_of_tables() -> None:
    truth = [["a", "b"], ["c", ""], ["d", "e"]]
    assert _right_cells(truth, truth) == 6
    assert _right_cells(truth, [["a", "b"], ["c", "d"], ["e", ""]]) == 3
    assert _right_cells(truth, [["a", "b", "c"], ["d", "e"]]) == 2
    assert _cells("x |  | 3") == ["x", "", "3"]
    assert _cells(r"(1 \| g) | 3") == ["( 1 | g)", "3"]
    assert _same("single~1", "single^1")
    assert _same("a~2 b", "a2 b")
    assert not _same("single~1", "single2")


@pytest.fixture(scope="module")
def table_corpus() -> Path:
    module = _corpus_module()
    try:
        return module.table_folder()
    except module.NoCorpus as error:
        pytest.skip(f"no packages with tables: {error}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tables.txt", "tables_held.txt", "tables_clean.txt"])
def test_tables_of_public_packages(
    name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the cells that a person sees, at least 95 % stand in their row and column, and most of every table."""
    corpus: Path = request.getfixturevalue("corpus" if name == "tables.txt" else "table_corpus")
    large = _corpus_module().LARGE
    tables = [table for table in _truth(name) if table[0] not in large or (corpus / table[0]).exists()]
    assert len(tables) >= 5
    paths = {
        (package, name): next((path for path in (corpus / package).rglob(name) if path.is_file()), None)
        for package, name, *_ in tables
    }
    missing = [name for (_, name), path in paths.items() if path is None]
    if missing:
        pytest.skip(f"another version of the packages: no {', '.join(missing)}")
    texts = dict(read_many({path for path in paths.values() if path is not None}))
    right = total = 0
    low = {}
    for package, name, number, rows in tables:
        path = paths[package, name]
        assert path is not None
        found = texts[path]
        assert isinstance(found, Extracted)
        lines = [_cells(line) for line in found.pages[number - 1].text.split("\n") if " |" in line]
        got, cells = _right_cells(rows, lines), sum(map(len, rows))
        right, total = right + got, total + cells
        if got < 0.8 * cells:
            low[f"{name} {number}"] = f"{got} of {cells}"
    with capsys.disabled():
        print(f"\n{len(tables)} tables, {right} of {total} cells right")
    assert right >= 0.95 * total
    assert not low
