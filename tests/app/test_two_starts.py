"""Two apps on one data folder, as a user starts them: the second shows the first one's page or says who is running.

Real processes with the real server. Most of it is left out unless UNABRIDGED_WHOLE_APP is set.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage import Library
from tests.app.cli_runner import ROOT, is_one_error, unabridged

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="signals")]
WHOLE_APP = os.environ.get("UNABRIDGED_WHOLE_APP", "")
MORE = pytest.mark.skipif(not WHOLE_APP, reason="a minute; UNABRIDGED_WHOLE_APP=1")
ADDRESS = re.compile(r"Unabridged is at (http://127\.0\.0\.1:\d+/\?token=\S+)\n")
ASKED = "What is the number of the protocol?"


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text("The zebrafish protocol number is 5512.\n" * 3)
    return path


@contextmanager
def started(*words: object, data_dir: Path, model: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("UNABRIDGED_", "HF_", "GRADIO_"))}
    environment |= {"UNABRIDGED_DATA_DIR": str(data_dir), "UNABRIDGED_MODEL": str(model), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(**more: Path):
    return started("run", "--no-browser", **more)


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = process.stdout.readline()
    found = ADDRESS.fullmatch(said)
    assert found, (said, process.stderr.read() if process.stderr is not None and process.poll() is not None else "")
    return found[1]


def until_locked(data_dir: Path, process: subprocess.Popen[str]) -> None:
    lock = data_dir / "app.lock"
    while not (lock.exists() and lock.stat().st_size):
        assert process.poll() is None
        time.sleep(0.02)


def sound(data_dir: Path) -> None:
    for name in ("library.db", "kvcache.db"):
        with sqlite3.connect(data_dir / name) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@MORE
def test_the_second_shows_the_first_ones_page(data_dir: Path, starter_model: Path, note: Path) -> None:
    """Started together, as by two clicks: one serves, the other one names that page and ends well."""
    with run(data_dir=data_dir, model=starter_model) as one, run(data_dir=data_dir, model=starter_model) as other:
        first, second = address(one), address(other)
        assert first == second
        deadline = time.monotonic() + 30
        while one.poll() is None and other.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sorted([one.poll() is None, other.poll() is None]) == [False, True]
        ended = one if one.poll() is not None else other
        assert ended.wait() == 0
        for words in (("ask", note, "-q", ASKED), ("ask", note, "-q", ASKED, "--json"), ("cache", "stats")):
            refused = unabridged(*words, data_dir=data_dir, UNABRIDGED_MODEL=str(starter_model))
            assert refused.returncode == 1
            assert refused.stdout == ""
            assert is_one_error(refused.stderr)
            assert first in refused.stderr
            assert "--data-dir" in refused.stderr
        serving = other if ended is one else one
        serving.send_signal(signal.SIGTERM)
        with run(data_dir=data_dir, model=starter_model) as third:  # while the first one ends: it takes its place
            assert address(third) != first
        assert serving.wait(30) == 0
    sound(data_dir)
    with Library.open(data_dir) as library:
        assert library.conversations() == []


@pytest.mark.parametrize("moment", ["while it starts", pytest.param("while it serves", marks=MORE)])
def test_a_killed_one_is_no_obstacle(data_dir: Path, starter_model: Path, moment: str) -> None:
    with run(data_dir=data_dir, model=starter_model) as first:
        if moment == "while it starts":
            until_locked(data_dir, first)
        else:
            address(first)
        with run(data_dir=data_dir, model=starter_model) as second:
            if moment == "while it serves":
                assert ADDRESS.fullmatch(second.communicate(timeout=60)[0])
            else:
                time.sleep(0.5)
            first.kill()
            first.wait()
            if moment == "while it serves":
                with run(data_dir=data_dir, model=starter_model) as third:
                    address(third)
            else:
                port = int(address(second).split(":")[2].split("/")[0])
                socket.create_connection(("127.0.0.1", port), 5).close()
    sound(data_dir)


@MORE
def test_two_questions_at_once(data_dir: Path, starter_model: Path, note: Path) -> None:
    """`ask` has no page: the other one says so, also with --json, and works as soon as the first is killed."""
    words = ("ask", note, "-q", ASKED, "--passages", "--max-answer-tokens", "8")
    with started(*words, data_dir=data_dir, model=starter_model) as first:
        until_locked(data_dir, first)
        for more in ((), ("--json",)):
            refused = unabridged(*words, *more, data_dir=data_dir, UNABRIDGED_MODEL=str(starter_model))
            assert refused.returncode == 1, refused.stderr
            assert refused.stdout == ""
            assert is_one_error(refused.stderr)
            assert f"process {first.pid}" in refused.stderr
        with run(data_dir=data_dir, model=starter_model) as page:
            out, err = page.communicate(timeout=60)
            assert (page.returncode, out, is_one_error(err)) == (1, "", True)
        first.kill()
        first.wait()
    done = unabridged(*words, "--json", data_dir=data_dir, UNABRIDGED_MODEL=str(starter_model))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output_tokens"] > 0
    sound(data_dir)
