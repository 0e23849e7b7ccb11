"""Files of the data folder deleted, replaced or closed to writing under the running app; a clock that is set back."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import conversations, pins
from app.errors import as_app_error
from app.wiring import App
from storage import Library, StorageError
from tests.app.cli_runner import is_one_error, unabridged
from tests.app.test_full_disk import QUESTIONS, SmallDisk, _greedy, _idle, ask, open_app, texts, until, with_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no open files")


@pytest.fixture
def app(tiny_model: Path, tmp_path: Path) -> Iterator[App]:
    with open_app(SmallDisk(tmp_path), tiny_model) as app:
        yield app


def answer(app: App, conversation: str, question: str) -> str:
    state = ask(app, conversation, question).wait(120)
    assert state.phase == "done", state.error
    _idle(app)
    return state.answer


def delete(folder: Path, pattern: str) -> None:
    for found in folder.glob(pattern):
        found.unlink()


def overwrite(folder: Path) -> None:
    (folder / "kvcache.db").write_bytes(os.urandom(300_000))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "deleted": lambda folder: delete(folder, "kvcache.db*"),
    "main file deleted": lambda folder: delete(folder, "kvcache.db"),
    "overwritten": overwrite,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_snapshots_that_go_while_the_app_runs_cost_no_answer(
    app: App, tiny_model: Path, notes: Path, damage: str
) -> None:
    conversation = with_file(app, notes)
    answer(app, conversation, QUESTIONS[0])
    assert app.snapshots.stats().rows
    job = ask(app, conversation, QUESTIONS[1])
    until(job, "answering")
    DAMAGE[damage](app.data_dir)
    second = job.wait(120)
    assert second.phase == "done", second.error
    _idle(app)
    assert app.snapshot_writer.problem is None
    app.engine_service.call(lambda engine: engine.unload(conversation)).result(60)  # type: ignore[union-attr]
    state = conversations.regenerate(app, conversation, reading="whole", sampling=_greedy()).wait(120)
    assert state.phase == "done", state.error
    assert state.answer == second.answer
    _idle(app)
    assert app.snapshots.verify() == []
    assert app.snapshots.stats().rows  # stored again, and of use
    app.engine_service.call(lambda engine: engine.unload(conversation)).result(60)  # type: ignore[union-attr]
    again = conversations.regenerate(app, conversation, reading="whole", sampling=_greedy()).wait(120)
    assert again.stats is not None
    assert again.stats.restored_tokens > 0
    assert again.answer == second.answer


def test_a_library_deleted_in_the_middle_of_an_answer_is_put_back(app: App, tiny_model: Path, notes: Path) -> None:
    conversation = with_file(app, notes)
    job = ask(app, conversation, QUESTIONS[0])
    until(job, "reading")
    delete(app.data_dir, "library.db*")
    state = job.wait(120)
    assert state.phase == "done", state.error
    second = answer(app, conversation, QUESTIONS[1])
    expected = [("user", QUESTIONS[0]), ("assistant", state.answer), ("user", QUESTIONS[1]), ("assistant", second)]
    assert texts(app, conversation) == expected
    with sqlite3.connect(app.data_dir / "library.db") as db:  # there, not only in the app's hands
        assert db.execute("SELECT count(*) FROM messages").fetchone() == (4,)
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_library_replaced_under_the_app_is_one_clear_sentence(app: App, notes: Path, tmp_path: Path) -> None:
    conversation = with_file(app, notes)
    answer(app, conversation, QUESTIONS[0])
    Library.open(tmp_path / "other").close()
    delete(app.data_dir, "library.db")
    shutil.copy(tmp_path / "other" / "library.db", app.data_dir / "library.db")
    with pytest.raises(StorageError) as caught:
        ask(app, conversation, QUESTIONS[1])
    shown = as_app_error(caught.value)
    assert (shown.message.count("."), shown.exit_code) == (2, 1)  # library.db and the end of the sentence
    assert "replaced" in shown.message
    assert "Start the app again" in shown.hint
    assert len(texts(app, conversation)) == 2


def test_a_clock_that_is_set_back_changes_nothing(app: App, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = with_file(app, notes)
    expected = answer(app, first, QUESTIONS[0])
    past = time.time() - 10 * 365 * 86400
    monkeypatch.setattr(time, "time", lambda: past)
    second = with_file(app, notes)
    assert answer(app, second, QUESTIONS[0]) == expected
    assert answer(app, first, QUESTIONS[1])
    assert [role for role, _ in texts(app, first)] == ["user", "assistant"] * 2
    assert {conversation.id for conversation in conversations.list(app)} == {first, second}
    rows = app.snapshots.stats().rows
    (document,) = app.library.documents(first)
    pins.set_pin(app, document, True)
    assert app.snapshots.prune(0) == 0
    assert app.snapshots.stats().rows == rows


def test_a_folder_that_cannot_be_written_is_one_clear_sentence(
    starter_model: Path, notes: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    mounted = os.geteuid() == 0
    if mounted:  # rights do not hold root back
        options = ["-t", "tmpfs", "-o", "ro,size=1m"]
        try:
            done = subprocess.run(["mount", *options, "tmpfs", folder], capture_output=True, timeout=20, check=False)
        except OSError:
            pytest.skip("root writes everywhere, and nothing can be mounted")
        if done.returncode:
            pytest.skip("root writes everywhere, and nothing can be mounted")
    else:
        folder.chmod(0o500)
    try:
        words = ("ask", notes, "-q", QUESTIONS[0], "--passages", "--model", starter_model)
        done = unabridged(*words, data_dir=folder)
        assert (done.returncode, is_one_error(done.stderr)) == (1, True), done.stderr
        assert "cannot be written" in done.stderr
        assert "--data-dir" in done.stderr
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True, timeout=20)
        else:
            folder.chmod(0o700)
