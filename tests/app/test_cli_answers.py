"""The command line with the real starter model: answers, re-use in a later process, chat, the page."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.app.cli_runner import ROOT, is_one_error, unabridged
from tests.app.test_cli import make_pdf

pytestmark = pytest.mark.slow

PAGES = [
    """The Maple 300 kettle. This manual explains the kettle.
Put the kettle on a dry and level table, away from the edge.
Fill it through the spout or with the lid open, up to the upper mark.
Close the lid before you press the switch at the handle.
The lamp goes out when the water boils, and the kettle turns itself off.
Pour slowly, since steam comes out of the spout first.""",
    """Cleaning. Descale the kettle every 40 days with citric acid.
Let the acid stand for an hour, then rinse the kettle twice.
Wipe the outside with a damp cloth and never put it under water.
The filter behind the spout comes out when you pull it upwards.
Scale on the filter goes away in warm vinegar.""",
    """Warranty. The warranty of the Maple 300 lasts 27 months from purchase.
Keep the receipt, because the shop asks for it.
Damage by scale or by dry boiling is not part of the warranty.
Repairs are made by the shop where the kettle was bought.
Old kettles are collected free of charge at the same shop.""",
]
QUESTION = "How many months does the warranty of the Maple 300 last?"
KEYS = [
    *("answer", "citations", "passages", "prompt_tokens", "reused_tokens", "restored_tokens", "computed_tokens"),
    *("ttft_s", "tpot_ms", "output_tokens", "accepted_per_step", "finish_reason", "profile", "model", "kv_format"),
    *("mode", "read_by", "kv_pages_read_share", "demoted_pages", "peak_memory_bytes", "warnings"),
    *("task", "reading", "evidence", "evidence_by_sentence"),
]


@pytest.fixture(scope="module")
def kettle(tmp_path_factory) -> Path:
    return make_pdf(tmp_path_factory.mktemp("files") / "kettle.pdf", PAGES)


def ask(data_dir: Path, starter_model: Path, *words: object) -> subprocess.CompletedProcess[str]:
    done = unabridged(
        "ask", *words, "--model", starter_model, "--max-answer-tokens", 48, data_dir=data_dir, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


def test_whole_document_is_read_once_and_reused_by_a_later_process(tmp_path, kettle, starter_model):
    first, again, other = (
        json.loads(ask(tmp_path, starter_model, kettle, "-q", question, "--whole", "--json").stdout)
        for question in (QUESTION, QUESTION, "How often must the kettle be descaled?")
    )
    assert list(first) == KEYS
    assert "27" in first["answer"]
    assert ("kettle.pdf", 3) in {(citation["document"], citation["page"]) for citation in first["citations"]}
    assert first["passages"][0]["page"] == 3
    assert first["reused_tokens"] == 0
    assert first["finish_reason"] in ("stop", "length")
    assert again["answer"] == first["answer"]
    assert again["prompt_tokens"] == first["prompt_tokens"]
    for later in (again, other):
        assert later["restored_tokens"] >= first["prompt_tokens"] - 200
        assert later["reused_tokens"] + later["computed_tokens"] == later["prompt_tokens"]
        assert later["ttft_s"] < first["ttft_s"]
    from storage import Library

    library = Library.open(tmp_path)
    (conversation,) = library.conversations()
    assert library.frozen(conversation.id)["hidden"] == "command line"
    library.close()


def test_several_questions_are_independent_of_each_other(tmp_path, kettle, starter_model):
    questions = tmp_path / "questions.txt"
    questions.write_text(f"# two\nWhat cleans the kettle?\n\n{QUESTION}\n", encoding="utf-8")
    done = ask(tmp_path / "data", starter_model, kettle, "--questions", questions, "--csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["question"] for row in rows] == ["What cleans the kettle?", QUESTION]
    assert all(row["error"] == "" and row["answer"] for row in rows)
    single = json.loads(ask(tmp_path / "alone", starter_model, kettle, "-q", QUESTION, "--json").stdout)
    assert str(single["prompt_tokens"]) == rows[1]["prompt_tokens"]
    assert single["answer"] == rows[1]["answer"]


def test_what_does_not_fit_is_exit_code_3_with_numbers_and_choices(tmp_path, kettle, starter_model):
    words = ["ask", kettle, "-q", QUESTION, "--whole", "--context", 512, "--model", starter_model, "--json"]
    done = unabridged(*words, data_dir=tmp_path, timeout=300)
    assert done.returncode == 3, done.stderr
    assert is_one_error(done.stderr)
    assert done.stdout == ""
    assert re.search(r"\d tokens", done.stderr)
    assert "passages" in done.stderr


def test_text_output_shows_passages_answer_and_numbers(tmp_path, kettle, starter_model):
    done = ask(tmp_path, starter_model, kettle, "-q", QUESTION)
    passages, answer = done.stdout.index("Best passages:"), done.stdout.rindex("27 months")
    numbers = done.stdout.index("demo model: 135M, English, often wrong")
    assert passages < done.stdout.index("kettle.pdf, page 3") < answer < len(done.stdout)
    assert "re-used" in done.stdout[numbers:]
    assert done.stderr == ""


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


def test_modes_are_kept_apart_and_a_mistyped_one_leaves_no_trace(tmp_path, kettle, starter_model):
    def asked(mode: str) -> dict:
        return json.loads(ask(tmp_path, starter_model, kettle, "-q", QUESTION, "--json", "--mode", mode).stdout)

    wrong = unabridged("ask", kettle, "-q", QUESTION, "--mode", "balancd", "--model", starter_model, data_dir=tmp_path)
    assert wrong.returncode == 2
    assert is_one_error(wrong.stderr)
    assert "balanced" in wrong.stderr
    for mode in ("exact", "fast", "exact"):
        reply = asked(mode)
        assert (reply["mode"], reply["read_by"], reply["warnings"]) == (mode, mode, [])
