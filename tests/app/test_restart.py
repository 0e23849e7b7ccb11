"""Kill, reopen, go on: the same tokens as without the break, and the document is not read again."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app import assistant, conversations, documents
from app.settings import Settings
from app.wiring import App
from tests.app.small_pdfs import FACTS, write_pdf

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LONG_PAGES = int(os.environ.get("UNABRIDGED_LONG_PAGES", "0"))  # 100 pages are some 3,700 tokens
QUESTIONS = ("Who built the lighthouse?", "How deep is the well?")


def run_child(folder: Path, model: Path, pdf: Path, question: str, how: str = "close") -> dict[str, Any] | None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.app.restart_child", str(folder), str(model), str(pdf), question, how],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=500,
        check=False,
    )
    assert done.returncode == (0 if how == "close" else -signal.SIGKILL), done.stderr
    return json.loads(done.stdout) if done.stdout else None


@pytest.fixture(scope="module")
def never_left(starter_model: Path, facts_pdf: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The answers of a conversation in one process."""
    folder = tmp_path_factory.mktemp("never-left")
    with App.open(Settings(data_dir=folder, model=str(starter_model), max_answer_tokens=24, threads=1)) as app:
        conversation = conversations.new(app)
        documents.add_files(app, conversation.id, [facts_pdf])
        return [assistant.ask(app, conversation.id, q, reading="whole").wait(400).answer for q in QUESTIONS]


@pytest.mark.parametrize("how", ["close", "die-after"])
def test_a_conversation_goes_on_after_a_restart(
    how: str, starter_model: Path, facts_pdf: Path, tmp_path: Path, never_left: list[str]
) -> None:
    first = run_child(tmp_path, starter_model, facts_pdf, QUESTIONS[0], how)
    second = run_child(tmp_path, starter_model, facts_pdf, QUESTIONS[1])
    assert first is not None
    assert second is not None
    assert [first["answer"], second["answer"]] == never_left
    assert second["reused_tokens"] == second["restored_tokens"]
    assert second["reused_tokens"] >= first["prompt_tokens"]  # system text, document and first question
    assert second["computed_tokens"] < 60


@pytest.mark.skipif(not LONG_PAGES, reason="minutes; UNABRIDGED_LONG_PAGES=40, or any number of pages")
def test_a_kill_in_the_middle_of_reading_goes_on_from_the_last_checkpoint(starter_model: Path, tmp_path: Path) -> None:
    pdf = write_pdf(tmp_path / "long.pdf", FACTS * (LONG_PAGES // len(FACTS)))
    killed = run_child(tmp_path / "data", starter_model, pdf, QUESTIONS[0], "die-reading")
    assert killed is not None
    assert 0 < killed["read"] < killed["of"]
    shutil.copytree(tmp_path / "data", tmp_path / "without")
    for file in (tmp_path / "without").glob("kvcache.db*"):
        file.unlink()
    resumed = run_child(tmp_path / "data", starter_model, pdf, QUESTIONS[1])
    assert resumed is not None
    print(f"killed at {killed}, then restored {resumed['restored_tokens']} of {resumed['prompt_tokens']} tokens")
    assert 128 <= resumed["restored_tokens"] == resumed["reused_tokens"] <= killed["of"]
    assert resumed["restored_tokens"] + resumed["computed_tokens"] == resumed["prompt_tokens"]
    again = run_child(tmp_path / "without", starter_model, pdf, QUESTIONS[1])
    assert again is not None
    assert again["reused_tokens"] == 0
    assert resumed["answer"] == again["answer"]


def test_a_kill_in_the_middle_of_an_answer_loses_nothing(starter_model: Path, facts_pdf: Path, tmp_path: Path) -> None:
    assert run_child(tmp_path, starter_model, facts_pdf, QUESTIONS[0], "die-answering") is None
    with App.open(Settings(data_dir=tmp_path, model=str(starter_model), max_answer_tokens=24, threads=1)) as app:
        (conversation,) = conversations.list(app)
        question, answer = conversations.messages(app, conversation.id)
        assert question.text == QUESTIONS[0]
        assert (answer.state, bool(answer.text)) == ("interrupted", True)
        state = assistant.ask(app, conversation.id, QUESTIONS[1], reading="whole").wait(400)
        assert state.phase == "done", state.error
        assert state.answer
