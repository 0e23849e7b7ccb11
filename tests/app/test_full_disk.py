"""The disk fills while the whole app runs: one sentence and a hint, nothing accepted is lost, and it goes on with room.

Twice: with a limit on the size of files, which needs no rights, and, if UNABRIDGED_WHOLE_APP is set, on a small disk
(a tmpfs, where it can be mounted). A tiny random model reads and answers.
"""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import engine.turn
from app import assistant, conversations, documents, keeping
from app.errors import AppError, as_app_error
from app.jobs import Job
from app.settings import Settings
from app.turn import TurnState
from app.wiring import App
from engine import Sampling
from storage import DiskFull, Library, StorageError, kvcache
from storage.backup import find_damage
from tests.app.cli_runner import is_one_error, unabridged
from tests.app.test_kills import write_files

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no small disks and no file size limits on Windows")

WHOLE_APP = os.environ.get("UNABRIDGED_WHOLE_APP", "")
DISK_MB = 48
QUESTIONS = ("What did the keeper write down?", "How many pages are left?")


class SmallDisk:
    """A folder that can be full: by a file that takes the rest of its disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        with suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(65536))
        with suppress(OSError), (self.folder / "filler2").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 512)

    def free(self) -> None:
        for filler in self.folder.glob("filler*"):
            filler.unlink()

    def command(self, *words: object) -> subprocess.CompletedProcess[str]:
        return unabridged(*words, data_dir=self.folder / "data", timeout=300)


class LimitedFiles(SmallDisk):
    """No file of this process can be written beyond its first bytes."""

    LIMIT = 20_000

    def fill(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.LIMIT, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def free(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def _mounted(folder: Path) -> bool:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture(params=["tmpfs", "limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    monkeypatch.setattr(kvcache, "KEPT_FREE_BYTES", 12 * 2**20)
    monkeypatch.setattr(keeping, "READ_SHARE", 1e9)
    monkeypatch.setattr(engine.turn, "CHECKPOINT_TOKENS", 256)
    if request.param == "limit":
        limited = LimitedFiles(tmp_path)
        yield limited
        limited.free()
        return
    if not WHOLE_APP:
        pytest.skip("a minute; UNABRIDGED_WHOLE_APP=1")
    folder = tmp_path / "disk"
    if sys.platform != "linux" or not _mounted(folder):
        pytest.skip("a small disk can only be mounted on Linux by root")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)


def open_app(disk: SmallDisk, model: Path, **more: object) -> App:
    options = {"max_answer_tokens": 24, "threads": 1, "cache_quota": 10**9} | more
    app = App.open(Settings(data_dir=disk.folder / "data", model=str(model), **options))  # type: ignore[arg-type]
    app.engine_service.warm_up().result(300)
    return app


def with_file(app: App, file: Path) -> str:
    conversation = conversations.new(app, "talk").id
    (added,) = documents.add_files(app, conversation, [file])
    assert added.error is None, added.error
    return conversation


def ask(app: App, conversation: str, question: str) -> Job:
    return assistant.ask(app, conversation, question, reading="whole")


def until(job: Job, phase: str) -> None:
    while job.state.phase != phase and not job.state.finished:
        job.wait(0.002)


def is_full(error: AppError | None) -> bool:
    return error is not None and "no room" in error.message and "Free some space" in error.hint and error.exit_code == 1


def texts(app: App, conversation: str) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in app.library.messages(conversation)]


def sound(disk: SmallDisk, conversation: str, accepted: list[str]) -> None:
    """After the app has ended: both files are sound, and what was accepted is there."""
    data = disk.folder / "data"
    assert find_damage(data / "library.db", seconds=None) == ""
    with Library.open(data) as library:
        asked = [message.text for message in library.messages(conversation) if message.role == "user"]
        assert [text for text in asked if text in accepted] == accepted
        assert all(message.state != "streaming" for message in library.messages(conversation))
    with sqlite3.connect(data / "kvcache.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def right_answer(app: App, file: Path, question: str) -> TurnState:
    """Of an app that has room; nothing stored so far helps it."""
    return ask(app, with_file(app, file), question).wait(120)


def test_the_disk_fills_while_a_document_is_read(disk: SmallDisk, tiny_model: Path, notes: Path) -> None:
    with open_app(disk, tiny_model) as app:
        conversation = with_file(app, notes)
        job = ask(app, conversation, QUESTIONS[0])
        until(job, "reading")
        disk.fill()
        state = job.wait(120)
        assert state.phase == "failed"
        assert is_full(state.error), state.error
        app.snapshot_writer.flush()
        disk.free()
        again = ask(app, conversation, QUESTIONS[1]).wait(120)
        assert again.phase == "done", again.error
        app.snapshot_writer.flush()
        assert app.snapshots.verify() == []
        assert again.answer == right_answer(app, notes, QUESTIONS[1]).answer
    sound(disk, conversation, list(QUESTIONS))
    with open_app(disk, tiny_model) as app:  # what was stored is of use, and right
        restored = conversations.regenerate(app, conversation, reading="whole", sampling=_greedy()).wait(120)
        assert restored.stats is not None
        assert restored.stats.restored_tokens > 0
        assert restored.answer == again.answer


def _greedy() -> Sampling:
    return Sampling(max_tokens=24)


def test_room_that_comes_back_before_the_answer_ends_loses_nothing(
    disk: SmallDisk, tiny_model: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.turn_work.STORE_EVERY_S", 0.0)
    with open_app(disk, tiny_model) as app:
        conversation = with_file(app, notes)
        real, seen = app.library.update_message, []

        def full_for_a_while(id: str, **fields: object) -> object:
            if "text" in fields and "state" not in fields and len(seen) < 3:
                seen.append(fields["text"])
                disk.fill()
                try:
                    return real(id, **fields)
                finally:
                    disk.free()
            return real(id, **fields)

        monkeypatch.setattr(app.library, "update_message", full_for_a_while)
        state = ask(app, conversation, QUESTIONS[0]).wait(120)
        assert state.phase == "done", state.error
        assert len(seen) == 3
        told = [warning for warning in state.warnings if "not stored yet" in warning]
        assert len(told) == 1
        assert "Free some space" in told[0]
        assert texts(app, conversation)[-1] == ("assistant", state.answer)
    sound(disk, conversation, list(QUESTIONS[:1]))


def test_a_question_that_cannot_be_stored_is_not_accepted(
    disk: SmallDisk, tiny_model: Path, notes: Path, tmp_path: Path
) -> None:
    large = write_files(tmp_path, 2, 3000)[1]
    with open_app(disk, tiny_model) as app:
        conversation = with_file(app, notes)
        before = texts(app, conversation)
        disk.fill()
        for _ in range(3):
            with pytest.raises(StorageError) as caught:
                ask(app, conversation, QUESTIONS[0] + " " * 4 + "word " * 5000)
            assert is_full(as_app_error(caught.value))
        added = documents.add_files(app, conversation, [large])
        assert added[0].error is not None
        assert added[0].error.hint
        disk.free()
        assert texts(app, conversation) == before
        state = ask(app, conversation, QUESTIONS[0]).wait(120)
        assert state.phase == "done", state.error
    sound(disk, conversation, list(QUESTIONS[:1]))


def test_snapshots_leave_room_for_messages(disk: SmallDisk, tiny_model: Path, notes: Path) -> None:
    """A quota larger than the disk: KV stops in time, is whole as far as it goes, and the log is no larger later on."""
    if isinstance(disk, LimitedFiles):
        pytest.skip("a disk's free space is looked at, not a limit on files")
    with open_app(disk, tiny_model) as app:
        talks = [with_file(app, one) for one in write_files(disk.folder, 3, 60)]
        (disk.folder / "filler").write_bytes(
            bytes(shutil.disk_usage(disk.folder).free - kvcache.KEPT_FREE_BYTES - 8 * 2**20)
        )
        for talk in talks:
            state = ask(app, talk, QUESTIONS[0]).wait(120)
            assert state.phase == "done", state.error
            _idle(app)
        assert app.snapshot_writer.problem is not None
        assert is_full_for_snapshots(app.snapshot_writer.problem)
        log = disk.folder / "data" / "kvcache.db-wal"
        size = log.stat().st_size
        for _ in range(3):
            assert ask(app, talks[-1], QUESTIONS[1]).wait(120).phase == "done"
            _idle(app)
        assert log.stat().st_size <= size + 2**20
        assert app.snapshots.verify() == []
        assert 0 < app.snapshots.stats().owners < 3
        app.snapshots.prune(0)
        state = ask(app, talks[0], QUESTIONS[1]).wait(120)
        assert state.phase == "done"
        _idle(app)
        assert app.snapshot_writer.problem is None
        assert app.snapshots.owners().keys() >= {talks[0]}
    sound(disk, talks[0], list(QUESTIONS))


def _idle(app: App) -> None:
    """Until all that follows an answer is done."""
    while app.engine_service._idle:
        time.sleep(0.005)
    app.snapshot_writer.flush()


def is_full_for_snapshots(error: AppError) -> bool:
    return "too little room" in error.message and "Free some space" in error.hint


def test_a_snapshot_that_has_no_room_costs_no_answer(disk: SmallDisk, tiny_model: Path, notes: Path) -> None:
    """Only kvcache.db is full, also in the middle of a commit: the next one begins where the last sound row is."""
    with open_app(disk, tiny_model) as app:
        conversation = with_file(app, notes)
        db = app.snapshots._file._writer
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 6}")
        state = ask(app, conversation, QUESTIONS[0]).wait(120)
        assert state.phase == "done", state.error
        _idle(app)
        assert is_full(app.snapshot_writer.problem)
        assert app.snapshots.verify() == []
        size = (disk.folder / "data" / "kvcache.db-wal").stat().st_size
        for number in range(6):
            again = ask(app, conversation, f"{QUESTIONS[1]} {number}").wait(120)
            assert again.phase == "done", again.error
            _idle(app)
        assert (disk.folder / "data" / "kvcache.db-wal").stat().st_size <= size + 2 * 2**20
        db.execute("PRAGMA max_page_count = 1000000")
        last = ask(app, conversation, QUESTIONS[1]).wait(120)
        _idle(app)
        assert app.snapshot_writer.problem is None
    with open_app(disk, tiny_model) as app:
        restored = conversations.regenerate(app, conversation, reading="whole", sampling=_greedy()).wait(120)
        assert restored.stats is not None
        assert restored.stats.restored_tokens > 0.8 * restored.stats.prompt_tokens
        assert restored.answer == last.answer
    sound(disk, conversation, [QUESTIONS[0], QUESTIONS[1]])


def test_the_page_says_it(disk: SmallDisk, tiny_model: Path, notes: Path) -> None:
    """What the page's backend raises is what its card shows, and the page goes on."""
    from ui.app_backend import AppBackend
    from ui.chat import _problem

    with open_app(disk, tiny_model) as app:
        backend = AppBackend(app)
        conversation = with_file(app, notes)
        disk.fill()
        with pytest.raises(DiskFull) as caught:
            backend.ask(conversation, "word " * 8000, "whole", "")
        card = _problem(caught.value)
        assert "There is no room to write library.db." in card
        assert "Free some space" in card
        assert backend.messages(conversation) == []
        disk.free()
        job = backend.ask(conversation, QUESTIONS[0], "whole", "")
        state = job.wait(120)  # type: ignore[attr-defined]
        assert state.phase == "done", state.error
        backend.viewer.close()


@pytest.mark.slow
def test_the_command_line_says_it(disk: SmallDisk, starter_model: Path, notes: Path) -> None:
    if isinstance(disk, LimitedFiles):
        pytest.skip("the limit holds for this process; see the test below")
    words = ("ask", notes, "-q", QUESTIONS[0], "--passages", "--model", starter_model)
    for _ in range(2):  # with an empty folder, then with one in use
        disk.fill()
        done = disk.command(*words)
        assert (done.returncode, is_one_error(done.stderr)) == (1, True), done.stderr
        disk.free()
        done = disk.command("ask", notes, "--plan", "--json", "--model", starter_model)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_command_line_under_a_limit_of_files(starter_model: Path, notes: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "app.cli", "ask", notes, "--data-dir", tmp_path / "data", "--model", starter_model]

    environment = {name: value for name, value in os.environ.items() if not name.startswith("UNABRIDGED_")}

    def run(limit: int | None, *more: str) -> subprocess.CompletedProcess[str]:
        def limited() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        root = Path(__file__).parents[2]
        return subprocess.run(
            [str(word) for word in (*words, *more)], capture_output=True, text=True, cwd=root, timeout=300, check=False,
            preexec_fn=limited, env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip

    for limit in (0, 60_000):
        done = run(limit, "-q", QUESTIONS[0], "--passages")
        assert (done.returncode, is_one_error(done.stderr)) == (1, True), (limit, done.stderr)
    done = run(None, "--plan")
    assert done.returncode == 0, done.stderr
