"""The command line with the real starter model: a conversation in the terminal, and the page."""

import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.app.cli_runner import ROOT, unabridged
from tests.app.kettle import QUESTION

pytestmark = pytest.mark.slow


def test_chat_is_kept_and_can_be_gone_on_with(tmp_path, kettle, starter_model):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "UNABRIDGED_DATA_DIR": str(tmp_path)}
    chat = [sys.executable, "-m", "app.cli", "chat", "--model", str(starter_model), "--max-answer-tokens", "8"]

    def talk(words: list[str], text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            chat + words, input=text, capture_output=True, text=True, timeout=300, env=environment, check=False
        )

    first = talk([str(kettle)], f"/help\n/nonsense\n{QUESTION}\n/quit\n")
    assert first.returncode == 0, first.stderr
    assert "/passages" in first.stdout
    assert "no command '/nonsense'" in first.stderr
    conversation = re.search(r"--conversation (\S+)", first.stdout)
    assert conversation
    second = talk(["--last"], "/passages\nHow often must it be descaled?\n")
    assert f"--conversation {conversation[1]}" in second.stdout
    unused = talk([], "/quit\n")
    assert "--conversation" not in unused.stdout
    from storage import Library

    library = Library.open(tmp_path)
    (kept,) = library.conversations()
    assert [message.role for message in library.messages(kept.id)] == ["user", "assistant"] * 2
    library.close()


def test_run_prints_one_line_and_a_second_start_finds_it(tmp_path, starter_model):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "UNABRIDGED_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "app.cli", "run", "--no-browser", "--model", str(starter_model)]
    app = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert app.stdout is not None
        line = app.stdout.readline()
        found = re.fullmatch(r"Unabridged is at (http://127\.0\.0\.1:(\d+)/\?token=\S+)\n", line)
        assert found, line
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token becomes a cookie
        with browser.open(found[1], timeout=30) as page:
            assert page.status == 200
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
        assert (second.returncode, second.stdout) == (0, line)
        busy = unabridged("library", "list", data_dir=tmp_path)
        assert busy.returncode == 1
        assert found[1] in busy.stderr
    finally:
        app.send_signal(signal.SIGTERM)
        rest = app.communicate(timeout=60)
    assert (app.returncode, rest[0]) == (0, "")
    assert rest[1].endswith("Unabridged has ended.\n"), rest[1]
