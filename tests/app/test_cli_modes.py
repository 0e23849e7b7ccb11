"""The command line with the real starter model: what it prints, what does not fit, and modes."""

import json
import re

import pytest

from tests.app.cli_runner import is_one_error, unabridged
from tests.app.kettle import QUESTION, ask

pytestmark = pytest.mark.slow


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
