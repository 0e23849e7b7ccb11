"""A killed app loses no acknowledged message and leaves sound files."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage import Library, SnapshotStore
from storage.backup import find_damage
from storage.search_index import check_index
from tests.storage.helpers import MEGABYTE

WRITER = """
import sys
from pathlib import Path
from storage import Library, SnapshotStore
from tests.storage.helpers import MEGABYTE, add_text, chain
folder, name = Path(sys.argv[1]), sys.argv[2]
with Library.open(folder) as library, SnapshotStore.open(folder, 20 * MEGABYTE) as snapshots:
    conversation = library.create_conversation(name)
    print("C", conversation.id, flush=True)
    for count in range(100_000):
        question = library.add_message(conversation.id, "user", f"question {count} of {name}")
        print("M", question.id, flush=True)
        answer = library.add_message(conversation.id, "assistant", "", state="streaming")
        for part in range(3):
            library.update_message(answer.id, text="part " * part)
        document = add_text(library, f"{name}-{count}", f"The number of {name} is {count}. " * 20)
        library.attach(conversation.id, document.id)
        print("D", document.id, flush=True)
        rows = chain(f"{name}-{count}", 3, size=60_000)
        snapshots.put(conversation.id, "f", rows)
        if count % 5 == 4:
            print("X", document.id, flush=True)
            library.delete_document(document.id)
            snapshots.forget(conversation.id)
"""


def write_and_kill(folder: Path, name: str, seconds: float) -> list[list[str]]:
    """What the writer had acknowledged, by line, when it was killed."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", WRITER, str(folder), name]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(seconds)
        writer.kill()
        rest = writer.stdout.read()
    lines = (first + rest).split("\n")[:-1]  # the last may be half a line
    return [line.split() for line in lines]


def check(folder: Path, acknowledged: list[list[str]]) -> None:
    with Library.open(folder) as library:
        messages = {}
        for conversation in library.conversations():
            for message in library.messages(conversation.id):
                messages[message.id] = message
        assert all(message.state != "streaming" for message in messages.values())
        documents = {document.id for document in library.documents()}
        doomed = {id for kind, id in acknowledged if kind == "X"}
        for kind, id in acknowledged:
            if kind == "M":
                assert messages[id].text.startswith("question")
            if kind == "D" and id not in doomed:
                assert id in documents
        with library._writer.use() as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert db.execute("PRAGMA foreign_key_check").fetchall() == []
            check_index(db)
        assert find_damage(folder / "library.db", seconds=None) == ""
    with SnapshotStore.open(folder, 20 * MEGABYTE) as snapshots:
        assert snapshots.verify() == []


def kill_often(folder: Path, times: int, check_every: int) -> None:
    dice = random.Random(times)
    acknowledged: list[list[str]] = []
    for turn in range(times):
        acknowledged += write_and_kill(folder, f"run{turn}", dice.uniform(0.05, 0.25))
        if turn % check_every == check_every - 1:
            check(folder, acknowledged)
    assert sum(kind == "M" for kind, _ in acknowledged) >= times
    assert not list(folder.glob("*.corrupt-*"))


def test_ten_kills(tmp_path: Path) -> None:
    kill_often(tmp_path, 10, check_every=2)


@pytest.mark.slow
def test_many_kills(tmp_path: Path) -> None:
    """UNABRIDGED_STORAGE_KILLS says how many; a hundred take six minutes."""
    kill_often(tmp_path, int(os.environ.get("UNABRIDGED_STORAGE_KILLS", "30")), check_every=10)


def test_damage_of_the_index_would_be_seen(library: Library) -> None:
    """The check of these tests can fail: it sees a passage that the index does not know."""
    import sqlite3

    from tests.storage.helpers import add_text

    document = add_text(library, "doc", "Otters swim.")
    with library._writer.use() as db:
        check_index(db)
        db.execute("UPDATE passages SET text = 'Badgers dig.' WHERE document_id = ?", (document.id,))
        with pytest.raises(sqlite3.DatabaseError):
            check_index(db)
