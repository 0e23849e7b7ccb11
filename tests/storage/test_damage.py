"""library.db: damage is noticed, kept aside and answered with a backup; a full disk loses nothing."""

import random
import resource
import sqlite3
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from storage import (
    DatabaseDamaged,
    DiskFull,
    FolderNotWritable,
    Library,
    StorageError,
    list_backups,
    restore_backup,
    start_empty,
)
from storage.backup import KEEP, daily_backup_is_due, find_damage, make_backup
from tests.storage.helpers import add_text


def filled(folder: Path) -> str:
    with Library.open(folder) as library:
        conversation = library.create_conversation("kept").id
        for index in range(30):
            library.add_message(conversation, "user", f"message {index} " * 20)
        add_text(library, "doc", *(f"Page {index} is about otters and weirs. " * 30 for index in range(20)))
        library.backup()
        library.add_message(conversation, "user", "after the backup")
    return conversation


def damage_header_of_every_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)


def test_a_damaged_library_is_kept_and_a_backup_restored(tmp_path: Path) -> None:
    conversation = filled(tmp_path)
    path = tmp_path / "library.db"
    damage_header_of_every_page(path)
    damaged = path.read_bytes()
    started = time.monotonic()
    with pytest.raises(DatabaseDamaged) as caught:
        Library.open(tmp_path)
    assert time.monotonic() - started < 5
    error = caught.value
    assert error.kept is not None
    assert error.kept.read_bytes() == damaged
    assert error.kept.name.startswith("library.db.corrupt-")
    assert error.backup == list_backups(tmp_path)[0].path
    assert "restore_backup" in error.hint
    with pytest.raises(DatabaseDamaged) as again:  # not silently empty the next time
        Library.open(tmp_path)
    assert (again.value.kept, again.value.backup) == (error.kept, error.backup)
    assert restore_backup(tmp_path) == error.backup
    with Library.open(tmp_path) as library:
        assert [message.text for message in library.messages(conversation)][-1] == "message 29 " * 20
        assert library.search("otters", None, 1)
    assert error.kept.read_bytes() == damaged


def test_starting_empty_is_the_users_choice(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "library.db").write_bytes(b"rubbish" * 1000)
    with pytest.raises(DatabaseDamaged) as caught:
        Library.open(tmp_path)
    start_empty(tmp_path)
    with Library.open(tmp_path) as library:
        assert library.conversations() == []
    assert caught.value.kept is not None
    assert caught.value.kept.exists()
    assert len(list_backups(tmp_path)) == 1


@pytest.mark.parametrize("seed", range(50))
def test_random_damage_never_ends_in_an_unknown_error(tmp_path: Path, seed: int) -> None:
    conversation = filled(tmp_path)
    path = tmp_path / "library.db"
    dice = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(100):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    with suppress(StorageError), Library.open(tmp_path) as library:
        library.conversations("message")
        library.messages(conversation)
        for document in library.documents():
            library.pages(document.id)
        library.search("otters and weirs", None, 3)
        library.add_message(conversation, "user", "more")
    kept = list(tmp_path.glob("library.db.corrupt-*"))
    if kept:
        assert restore_backup(tmp_path)
        with Library.open(tmp_path) as library:
            assert len(library.messages(conversation)) == 30


@pytest.mark.parametrize("keep", [0, 1, 99, 100, 4096, 8192, 20_480])
def test_a_truncated_library(tmp_path: Path, keep: int) -> None:
    filled(tmp_path)
    path = tmp_path / "library.db"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatabaseDamaged):
        Library.open(tmp_path)
    restore_backup(tmp_path)
    with Library.open(tmp_path) as library:
        assert len(library.conversations()) == 1


def test_an_empty_log_file_is_harmless(tmp_path: Path) -> None:
    conversation = filled(tmp_path)
    (tmp_path / "library.db-wal").write_bytes(b"")
    with Library.open(tmp_path) as library:
        assert library.messages(conversation)[-1].text == "after the backup"


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "library.db")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = (tmp_path / "library.db").read_bytes()
    with pytest.raises(StorageError, match="not a library"):
        Library.open(tmp_path)
    tables = sqlite3.connect(tmp_path / "library.db").execute("SELECT name FROM sqlite_master").fetchall()
    assert tables == [("theirs",)]
    assert len(before) == (tmp_path / "library.db").stat().st_size


def test_daily_backups_are_whole_and_five(tmp_path: Path) -> None:
    conversation = filled(tmp_path)
    with Library.open(tmp_path) as library:
        assert not daily_backup_is_due(tmp_path)
        assert daily_backup_is_due(tmp_path, time.time() + 25 * 3600)
        for index in range(7):
            library.add_message(conversation, "user", f"{index}")
            library.backup()
        backups = library.backups()
        assert len(backups) == KEEP
        assert backups == sorted(backups, key=lambda backup: backup.created, reverse=True)
        for backup in backups:
            assert find_damage(backup.path, seconds=None) == ""
            assert backup.bytes == backup.path.stat().st_size
        copy = sqlite3.connect(backups[0].path)
        for table in ("messages", "pages", "passages", "documents", "conversations"):
            with library._writer.use() as db:
                own = db.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert copy.execute(f"SELECT count(*) FROM {table}").fetchone() == own
        copy.close()
    assert {path.suffix for path in (tmp_path / "backups").iterdir()} == {".db"}


def test_the_first_open_of_a_day_makes_a_backup(tmp_path: Path) -> None:
    filled(tmp_path)
    for backup in list_backups(tmp_path):
        backup.path.unlink()
    Library.open(tmp_path).close()
    assert [backup.reason for backup in list_backups(tmp_path)] == ["daily"]
    Library.open(tmp_path).close()
    assert len(list_backups(tmp_path)) == 1


def test_a_damaged_backup_is_passed_over(tmp_path: Path) -> None:
    filled(tmp_path)
    good = list_backups(tmp_path)[0].path
    newer = make_backup(tmp_path).path
    newer.write_bytes(b"bad" * 5000)
    with pytest.raises(DatabaseDamaged, match="backup"):
        restore_backup(tmp_path, newer)
    assert restore_backup(tmp_path) == good


def add_long_messages(library: Library, conversation: str) -> None:
    for index in range(100):
        library.add_message(conversation, "user", f"{index} " + "long " * 5000)


@pytest.mark.skipif(sys.platform == "win32", reason="no file size limits on Windows")
def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    conversation = filled(tmp_path)
    with Library.open(tmp_path) as library:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        try:
            with pytest.raises(DiskFull, match="room"):
                add_long_messages(library, conversation)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
            with pytest.raises(DiskFull):
                make_backup(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        stored = len(library.messages(conversation))
        library.add_message(conversation, "user", "there is room again")
        assert len(library.messages(conversation)) == stored + 1
    assert {path.suffix for path in (tmp_path / "backups").iterdir()} == {".db"}
    with Library.open(tmp_path) as library:
        assert len(library.messages(conversation)) == stored + 1


@pytest.mark.skipif(sys.platform == "win32", reason="no file size limits on Windows")
def test_a_first_start_without_room_leaves_nothing_that_stops_the_next(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    said = []
    for limit in [0, 1, 24, 32, 100, *range(4096, 160_000, 8192)]:
        folder = tmp_path / str(limit)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            Library.open(folder).close()
        except StorageError as error:
            said.append(error.message)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with Library.open(folder) as library:
            library.create_conversation("works")
    assert len(said) > 5
    assert all("no room" in message for message in said), said


def test_a_database_at_its_limit(library: Library) -> None:
    conversation = library.create_conversation().id
    with library._writer.use() as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()
    with pytest.raises(DiskFull):
        library.add_message(conversation, "user", "x" * 100_000)
    assert library.messages(conversation) == []
    assert library.add_message(conversation, "user", "short").index == 0


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FolderNotWritable):
        Library.open(tmp_path / "file" / "data")
