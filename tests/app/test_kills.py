"""Apps killed at any moment: the files are sound, no accepted question is lost, no answer after a restart is wrong.

Left out unless asked for: UNABRIDGED_KILLS=90 (of each format) and UNABRIDGED_STARTER_KILLS=20 are the 200; the
first with a tiny random model, whose answers change with any error in its KV.
"""

import multiprocessing
import os
import pickle
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from storage import Library, SnapshotStore
from storage.backup import find_damage
from tests.app import kill_child
from tests.engine.tiny_models import make_model, save_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]
KILLS = int(os.environ.get("UNABRIDGED_KILLS", "0"))
STARTER_KILLS = int(os.environ.get("UNABRIDGED_STARTER_KILLS", "0"))
WORDS = ("lamp", "oil", "keeper", "tower", "well", "garden", "Bergen", "metres", "book", "weather", "evening", "pages")


def write_files(folder: Path, count: int, sentences: int) -> list[Path]:
    files = []
    for number in range(count):
        dice = random.Random(number)
        text = ". ".join(" ".join(dice.choice(WORDS) for _ in range(9)) for _ in range(sentences))
        files.append(folder / f"file{number}.txt")
        files[-1].write_text(text)
    return files


# Children are forked from a process that has imported everything and holds no thread: a start takes no seconds.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.app.kill_child", "engine", "numba"])


def run_and_kill(arguments: tuple, seconds: float) -> tuple[set[str], str, bool]:
    """-> (questions that were accepted, what it was doing when it was killed, whether it had restored anything)."""
    here, there = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=kill_child.run, args=(there, *arguments))
    process.start()
    there.close()
    said = [here.recv()]
    assert said == [("ready",)], said
    time.sleep(seconds)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with suppress(EOFError, OSError, pickle.UnpicklingError):  # the last may be half a word
        while True:
            said.append(here.recv())
    failed = [words for words in said if words[0] == "failed"]
    assert not failed, failed[0][1]
    phases = [words[1] for words in said if words[0] == "phase"]
    restored = any(words[1] > 0 for words in said if words[0] == "reused")
    return {words[1] for words in said if words[0] == "message"}, phases[-1] if phases else "opening", restored


def expected_answers(folder: Path, *arguments) -> dict[str, list[str]]:
    here, there = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=kill_child.answer_all, args=(there, folder, *arguments))
    process.start()
    answers = here.recv()
    process.join()
    assert isinstance(answers, dict), answers
    return answers


def check(folder: Path, accepted: set[str], answers: dict[str, list[str]]) -> int:
    """-> how many complete answers were compared."""
    for name in ("library.db", "kvcache.db"):
        with sqlite3.connect(folder / name) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    compared = 0
    with Library.open(folder) as library:
        messages = [(c.title, m) for c in library.conversations() for m in library.messages(c.id)]
        assert accepted <= {message.id for _, message in messages}
        asked = {message.id: number for number, message in _questions(library)}
        for title, message in messages:
            if message.role == "assistant" and message.state == "complete":
                assert message.text == answers[title][asked[message.details["question"]]], (title, message.id)
                compared += 1
    assert find_damage(folder / "library.db", seconds=None) == ""
    with SnapshotStore.open(folder, 10**9) as store:
        assert store.verify() == []
    return compared


def _questions(library: Library):
    for conversation in library.conversations():
        yield from enumerate(m for m in library.messages(conversation.id) if m.role == "user")


def kill_often(folder: Path, model: Path, kv_format: str, files: list[Path], times: int, longest: float) -> Counter:
    """Kills after up to `longest` seconds, or one and a half times as long as a calm app takes for one file."""
    began = time.monotonic()
    answers = expected_answers(folder / "calm", str(model), kv_format, files)
    longest = min(longest, 1.5 * (time.monotonic() - began) / len(files))
    dice, phases, accepted, compared, restored = random.Random(times), Counter(), set(), 0, 0
    for turn in range(times):
        now, phase, has_restored = run_and_kill(
            (folder / "data", str(model), kv_format, files), dice.uniform(0.0, longest)
        )
        accepted |= now
        phases[phase] += 1
        restored += has_restored
        compared = check(folder / "data", accepted, answers)
        print(f"kill {turn + 1}: {phase}, {compared} answers right", flush=True)
    print(
        f"{kv_format}: {times} kills while {dict(phases)}; {len(accepted)} questions, "
        f"{compared} answers, {restored} runs with restored tokens"
    )
    assert len(accepted) >= times // 2
    assert compared >= times // 4
    return phases


@pytest.mark.skipif(not KILLS, reason="minutes; UNABRIDGED_KILLS=90")
@pytest.mark.parametrize("kv_format", ["k8v4", "bf16"])
def test_kills(tmp_path: Path, kv_format: str) -> None:
    model = save_folder(make_model("llama", max_position=8192, layers=4), tmp_path / "tiny")
    files = write_files(tmp_path, 3, 60)
    kill_often(tmp_path, model, kv_format, files, KILLS, 2.5)


@pytest.mark.skipif(not STARTER_KILLS, reason="minutes; UNABRIDGED_STARTER_KILLS=20")
def test_kills_of_the_starter_model(tmp_path: Path, starter_model: Path) -> None:
    kill_often(tmp_path, starter_model, "bf16", write_files(tmp_path, 2, 15), STARTER_KILLS, 30.0)
