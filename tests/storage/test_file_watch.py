"""library.db deleted or replaced while it is in use: what was promised stays, what is not ours is not overwritten."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from storage import DatabaseDamaged, DataFolderBusy, DataFolderLock, Library, StorageError, connection
from storage.backup import KEEP, daily_backup_is_due, list_backups, make_backup, restore_backup

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no open files")


def texts(folder: Path, conversation: str) -> list[str]:
    with Library.open(folder) as library:
        return [message.text for message in library.messages(conversation)]


@pytest.mark.parametrize("what", ["file", "all files", "folder"])
def test_a_deleted_library_is_put_back(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "data"
    with Library.open(folder) as library:
        conversation = library.create_conversation("kept").id
        library.add_message(conversation, "user", "before")
        if what == "folder":
            shutil.rmtree(folder)
        for file in folder.glob("library.db*" if what == "all files" else "library.db"):
            file.unlink()
        assert library.messages(conversation)[0].text == "before"
        library.add_message(conversation, "user", "after")
        with sqlite3.connect(folder / "library.db") as other:
            assert other.execute("SELECT count(*) FROM messages").fetchone() == (2,)
        library.add_message(conversation, "user", "later")
        library.backup()
    assert texts(folder, conversation) == ["before", "after", "later"]
    assert not list(folder.glob("*.restoring*"))


def test_what_was_written_last_is_put_back_at_the_end(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        conversation = library.create_conversation().id
        library.add_message(conversation, "user", "the last")
        (tmp_path / "library.db").unlink()
    assert texts(tmp_path, conversation) == ["the last"]


@pytest.mark.parametrize("tried_again", [True, False])
def test_a_library_that_was_put_back_but_could_not_be_opened_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried_again: bool
) -> None:
    def no_room(*_: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    with Library.open(tmp_path) as library:
        conversation = library.create_conversation().id
        library.add_message(conversation, "user", "before")
        (tmp_path / "library.db").unlink()
        with monkeypatch.context() as patched:
            patched.setattr(connection, "connect", no_room)
            for _ in range(2):
                with pytest.raises(StorageError, match="unable to open"):
                    library.add_message(conversation, "user", "not stored")
        if tried_again:
            assert library.messages(conversation)[0].text == "before"
            library.add_message(conversation, "user", "after")
    assert texts(tmp_path, conversation) == ["before", "after"][: 1 + tried_again]


WRITER = """
import sys, time
from pathlib import Path
from storage import Library
library = Library.open(Path(sys.argv[1]))
conversation = library.create_conversation("kept").id
library.add_message(conversation, "user", "before")
for file in Path(sys.argv[1]).glob(sys.argv[2]):
    file.unlink()
library.add_message(conversation, "user", "after")
print(conversation, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("what", ["library.db", "library.db-wal", "library.db*"])
def test_a_kill_after_that_loses_nothing(tmp_path: Path, what: str) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), what], cwd=root, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        conversation = child.stdout.readline().strip()
        os.kill(child.pid, signal.SIGKILL)
    assert texts(tmp_path, conversation) == ["before", "after"]


KILLED = """
import os, signal, sys
from pathlib import Path
from storage import Library
folder, moment = Path(sys.argv[1]), sys.argv[2]
library = Library.open(folder)
library.add_message(library.create_conversation("kept").id, "user", "before")
(folder / "library.db").unlink()
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if moment == "copying":  # the copy's transaction is never ended
    from storage import file_watch
    def begin(database, target):
        import sqlite3
        copy = sqlite3.connect(target)
        copy.execute("PRAGMA cache_size = 1")
        copy.execute("BEGIN")
        copy.execute("CREATE TABLE half (x)")
        copy.executemany("INSERT INTO half VALUES (?)", [(b"x" * 3000,)] * 100)
        kill()
    file_watch.FileWatch._copy = lambda self, database, target: begin(database, target)
else:
    setattr(os, moment, kill)
library.add_message(library.conversations()[0].id, "user", "never acknowledged")
"""


def killed(folder: Path, moment: str) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), moment], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (folder / "library.db.restoring").exists()
    assert not (folder / "library.db").exists()


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_kill_while_it_is_put_back_loses_nothing(tmp_path: Path, moment: str) -> None:
    killed(tmp_path, moment)
    with Library.open(tmp_path) as library:
        (conversation,) = library.conversations()
        assert [message.text for message in library.messages(conversation.id)] == ["before"]
    assert not list(tmp_path.glob("*.restoring*"))


@pytest.mark.parametrize("beside", [False, True])
def test_looking_at_a_copy_leaves_no_files_behind(tmp_path: Path, beside: bool) -> None:
    """Killed before the copy was told to do without a log."""
    with Library.open(tmp_path) as library:
        conversation = library.create_conversation("kept").id
    shutil.copy(tmp_path / "library.db", tmp_path / "library.db.restoring")
    if not beside:
        (tmp_path / "library.db").unlink()
    with Library.open(tmp_path) as library:
        assert [found.id for found in library.conversations()] == [conversation]
    assert not list(tmp_path.glob("*.restoring*"))


def test_a_copy_that_was_never_finished_is_removed(tmp_path: Path) -> None:
    killed(tmp_path, "copying")
    with Library.open(tmp_path) as library:
        assert library.conversations() == []
    assert not list(tmp_path.glob("*.restoring*"))


def test_where_a_copy_was_never_finished_the_backup_is_offered(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        conversation = library.create_conversation("earlier").id
        backup = library.backup()
    killed(tmp_path, "copying")
    for reason in ("broken off", "set aside earlier"):  # until it is decided
        with pytest.raises(DatabaseDamaged, match=reason) as caught:
            Library.open(tmp_path)
        assert caught.value.backup == backup.path
    assert not (tmp_path / "library.db").exists()
    assert not list(tmp_path.glob("*.restoring*"))
    restore_backup(tmp_path)
    with Library.open(tmp_path) as library:
        assert [found.id for found in library.conversations()] == [conversation]


def test_a_copy_beside_another_library_is_kept(tmp_path: Path) -> None:
    killed(tmp_path, "replace")
    with Library.open(tmp_path / "other") as library:
        theirs = library.create_conversation("theirs").id
    shutil.copy(tmp_path / "other" / "library.db", tmp_path / "library.db")
    with Library.open(tmp_path) as library:
        assert [conversation.id for conversation in library.conversations()] == [theirs]
    (kept,) = tmp_path.glob("library.db.replaced-*")
    with sqlite3.connect(kept) as old:
        assert old.execute("SELECT text FROM messages").fetchall() == [("before",)]


def test_a_damaged_copy_is_kept_and_the_backup_offered(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        backup = library.backup()
    killed(tmp_path, "replace")
    part = tmp_path / "library.db.restoring"
    part.write_bytes(part.read_bytes()[:5000])
    with pytest.raises(DatabaseDamaged) as caught:
        Library.open(tmp_path)
    assert caught.value.backup == backup.path
    assert len(list(tmp_path.glob("library.db.corrupt-*"))) == 1


def test_a_library_put_in_its_place_is_left_alone(tmp_path: Path) -> None:
    with Library.open(tmp_path / "other") as library:
        theirs = library.create_conversation("theirs").id
    with Library.open(tmp_path) as library:
        ours = library.create_conversation("ours").id
        library.add_message(ours, "user", "said before")
        (tmp_path / "library.db").unlink()
        shutil.copy(tmp_path / "other" / "library.db", tmp_path / "library.db")
        hints = []
        for _ in range(2):
            with pytest.raises(StorageError, match="replaced") as caught:
                library.add_message(ours, "user", "not accepted")
            hints.append(caught.value.hint)
        assert "Start the app again" in hints[0]
        assert [message.text for message in library.messages(ours)] == ["said before"]
    with Library.open(tmp_path) as library:
        assert [conversation.id for conversation in library.conversations()] == [theirs]
    (kept,) = tmp_path.glob("library.db.replaced-*")
    assert all(kept.name in hint for hint in hints)
    with sqlite3.connect(kept) as old:
        assert old.execute("SELECT text FROM messages").fetchall() == [("said before",)]
        assert old.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_where_it_cannot_be_put_back_nothing_is_accepted(tmp_path: Path) -> None:
    """A folder that is a file now, as a disk that was taken away: a clear error, and all is there again afterwards."""
    folder = tmp_path / "data"
    with Library.open(folder) as library:
        conversation = library.create_conversation().id
        library.add_message(conversation, "user", "before")
        shutil.rmtree(folder)
        folder.write_text("in the way")
        with pytest.raises(StorageError) as caught:
            library.add_message(conversation, "user", "not accepted")
        assert caught.value.hint
        folder.unlink()
        library.add_message(conversation, "user", "accepted")
    assert texts(folder, conversation) == ["before", "accepted"]


def test_backups_under_a_clock_that_was_wrong(tmp_path: Path) -> None:
    """Those with dates to come neither stop new ones nor push them out, and are not taken for the newest."""
    Library.open(tmp_path).close()
    for year in range(KEEP):
        made = make_backup(tmp_path).path
        made.rename(made.with_name(f"library-{2990 + year}0101-000000-000000-daily.db"))
    assert daily_backup_is_due(tmp_path)
    new = make_backup(tmp_path)
    assert not daily_backup_is_due(tmp_path)
    assert list_backups(tmp_path)[0].path == new.path
    assert len(list_backups(tmp_path)) == KEEP


def test_who_comes_while_the_first_one_starts_is_told_so(tmp_path: Path) -> None:
    with DataFolderLock(tmp_path).acquire(starting=True) as lock:
        for starting in (True, False, True):
            lock.set_address("" if starting else "http://here/", starting=starting)
            with pytest.raises(DataFolderBusy) as caught:
                DataFolderLock(tmp_path).acquire()
            assert (caught.value.starting, caught.value.address) == (starting, "" if starting else "http://here/")
