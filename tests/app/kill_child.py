"""Run by test_kills: one app that reads, answers and stores until it is killed, and says what it has promised.

"ready"; "message", ID when a question was accepted; "phase", NAME when a turn's phase changes, "writing" when what
follows is the writing of snapshots; "reused", N: so many tokens of a turn came from snapshots.
"""

import itertools
import threading
import time
import traceback
from pathlib import Path

import engine.turn
from app import assistant, conversations, documents
from app.settings import Settings
from app.wiring import App

QUESTIONS = ("What did the keeper write down?", "How many pages are left, and which?")


def open_app(folder: Path, model: str, kv_format: str, quota: int | None = None) -> App:
    settings = Settings(
        data_dir=folder, model=model, max_answer_tokens=24, threads=1, kv_format=kv_format, cache_quota=quota
    )
    return App.open(settings)


def talk(app: App, file: Path, say) -> list[str]:
    """A new conversation about one file: two questions -> the answers."""
    conversation = conversations.new(app, file.name)
    (added,) = documents.add_files(app, conversation.id, [file])
    assert added.error is None, added.error
    answers = []
    for question in QUESTIONS:
        job = assistant.ask(app, conversation.id, question, reading="whole")
        asked = next(m for m in conversations.messages(app, conversation.id)[::-1] if m.role == "user")
        say("message", asked.id)
        phase = ""
        while not job.state.finished:
            if job.state.phase != phase:
                phase = job.state.phase
                say("phase", phase)
            job.wait(0.005)
        assert job.state.phase == "done", job.state.error
        say("reused", job.state.stats.restored_tokens)
        say("phase", "writing")
        answers.append(job.state.answer)
    return answers


def expected(model: str, kv_format: str, files: list[Path], folder: Path) -> dict[str, list[str]]:
    """The answers of apps that were never killed and have nothing stored."""
    answers = {}
    for file in files:
        with open_app(folder / file.name, model, kv_format, quota=0) as app:
            answers[file.name] = talk(app, file, lambda *words: None)
    return answers


def run(promise, folder: Path, model: str, kv_format: str, files: list[Path]) -> None:
    """Until it is killed; `promise`, a connection, gets everything said. An error is said too."""
    engine.turn.CHECKPOINT_SECONDS = 0.2
    lock = threading.Lock()

    def say(*words: object) -> None:
        with lock:
            promise.send(words)

    try:
        with open_app(folder, model, kv_format) as app:
            app.engine_service.warm_up().result()
            say("ready")
            for file in itertools.cycle(files):
                talk(app, file, say)
                time.sleep(0.02)
    except Exception:
        say("failed", traceback.format_exc())


def answer_all(result, folder: Path, model: str, kv_format: str, files: list[Path]) -> None:
    """Sends `expected`, or a text that says what went wrong."""
    try:
        result.send(expected(model, kv_format, files, folder))
    except Exception:
        result.send(traceback.format_exc())
