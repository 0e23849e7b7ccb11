"""Limits, cancelling and clean ends of the reading child."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.errors import BadInput, Cancelled
from app.ingest import Limits, child, read_file

BUSY = b"BT /F1 12 Tf 72 600 Td (Hi) Tj ET\n" * 60_000


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Any:
    before = {child.pid for child in psutil.Process().children()}
    yield
    assert {child.pid for child in psutil.Process().children()} <= before


def test_pages_that_share_a_huge_stream_stop_at_the_processor_limit(pdfs: Any) -> None:
    """A file of some kilobytes that would take minutes: what was read is kept, what is missing is said."""
    path = pdfs.sharing_one_stream("bomb.pdf", 400, BUSY)
    assert path.stat().st_size < 80_000
    found = read_file(path, limits=Limits(cpu_seconds=2))
    assert 1 <= len(found.pages) < 400
    assert found.pages[0].text == "Hi"
    assert "more than 2 seconds of processor time" in found.warnings[0]
    assert f"pages {len(found.pages) + 1}-400 are missing" in found.warnings[0]
    assert found.extractor.endswith("+partial")


def test_wall_limit(pdfs: Any) -> None:
    path = pdfs.sharing_one_stream("bomb.pdf", 400, BUSY)
    with pytest.raises(BadInput, match="could not be read, because it took too long"):
        read_file(path, limits=Limits(wall_seconds=0.01, wall_seconds_per_page=1e-9))


def test_a_stream_larger_than_the_memory_limit(pdfs: Any) -> None:
    """300 MB out of 300 kB: no crash of ours, one sentence."""
    path = pdfs.sharing_one_stream("memory.pdf", 1, b"BT /F1 12 Tf 72 600 Td (Hi) Tj ET\n" + b" " * 300_000_000)
    with pytest.raises(BadInput) as caught:
        read_file(path, limits=Limits(memory_bytes=256_000_000))
    assert caught.value.exit_code == 4


def test_ordinary_documents_fit_well_into_the_memory_limit(pdfs: Any) -> None:
    path = pdfs.text("fine.pdf", [["Fine."]] * 50)
    assert len(read_file(path, limits=Limits(memory_bytes=300_000_000)).pages) == 50


def test_text_and_page_limits_of_a_pdf(pdfs: Any) -> None:
    path = pdfs.text("long.pdf", [[f"Page {'abcdefghij'[n]} has some words."] for n in range(10)])
    few = read_file(path, limits=Limits(pages=4))
    assert len(few.pages) == 4
    assert "more than 4 pages; pages 5-10 are missing" in few.warnings[0]
    little = read_file(path, limits=Limits(text_bytes=100))
    assert len(little.pages) == 4
    assert "pages 5-10 are missing" in little.warnings[0]


@pytest.mark.parametrize("wait_for_page", [False, True])
def test_cancel_kills_the_child_at_once(pdfs: Any, wait_for_page: bool) -> None:
    path = pdfs.sharing_one_stream("bomb.pdf", 400, BUSY)
    cancel, reading = threading.Event(), threading.Event()
    ended: list[tuple[float, Exception | None]] = []

    def work() -> None:
        caught: Exception | None = None
        try:
            read_file(path, cancel=cancel, progress=lambda done, total: reading.set() if done else None)
        except Cancelled as error:
            caught = error
        ended.append((time.monotonic(), caught))

    thread = threading.Thread(target=work)
    thread.start()
    if wait_for_page:
        assert reading.wait(60)
    else:
        time.sleep(0.05)
    start = time.monotonic()
    cancel.set()
    thread.join(10)
    [(end, error)] = ended
    assert isinstance(error, Cancelled)
    assert end - start < 0.3


def test_an_error_in_the_progress_callback_ends_the_child(pdfs: Any) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("the page is gone")

    with pytest.raises(RuntimeError, match="the page is gone"):
        read_file(pdfs.text("a.pdf", [["x"]]), progress=fail)


CRASHING_WORKER = """
import os, signal, sys
from app.ingest import pdf, worker

read = pdf._read_page

def crash(document, index, second):
    if index == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    return read(document, index, second)

pdf._read_page = crash
sys.exit(worker.main())
"""


def test_a_page_that_breaks_the_reader_does_not_cost_the_others(pdfs: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """The child dies on page 3, as if pdfium had crashed there: the pages behind it are read by another child."""
    (tmp_path / "crashing_worker.py").write_text(CRASHING_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(child, "WORKER", "crashing_worker")
    found = read_file(pdfs.text("five.pdf", [[f"Leaf {letter}."] for letter in "abcde"]))
    assert [(page.text, page.flag) for page in found.pages] == [
        ("Leaf a.", ""),
        ("Leaf b.", ""),
        ("", "garbled"),
        ("Leaf d.", ""),
        ("Leaf e.", ""),
    ]
    assert found.warnings == ("five.pdf: page 3 of 5: damaged, could not be read.",)


def test_the_child_is_light() -> None:
    """It starts for every file: nothing heavy may be loaded on the way."""
    heavy = "torch, gradio, transformers, pypdf, pypdfium2, numpy, sqlite_utils, psutil, pathspec, charset_normalizer"
    code = f"import sys, app.ingest.worker; print([m for m in {heavy!r}.split(', ') if m in sys.modules])"
    root = Path(__file__).resolve().parents[3]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
