"""Every version of library.db can be upgraded, and a failure anywhere leaves the version before it."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_utils import Database, Migrations

from storage import DatabaseTooNew, Library, StorageError, list_backups
from storage.backup import APPLICATION_ID, KEEP
from storage.library_schema import library_migrations
from tests.storage.helpers import add_text

NAMES = [migration.name for migration in library_migrations.pending(Database(memory=True))]


def with_steps(*steps: Callable[[Database], None]) -> Migrations:
    """The real migrations and further ones."""
    extended = Migrations("library")
    for migration in library_migrations._migrations:
        extended(name=migration.name)(migration.fn)
    for step in steps:
        extended()(step)
    return extended


def m901_add_colour(db: Database) -> None:
    db.execute("ALTER TABLE conversations ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey'")


def m902_half_done(db: Database) -> None:
    db.execute("CREATE TABLE half (x)")
    db.execute("UPDATE messages SET text = 'lost'")
    db.execute("DROP TABLE frozen_values")
    raise RuntimeError("power went out")


def dump(folder: Path) -> list[str]:
    connection = sqlite3.connect(folder / "library.db")
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def filled(folder: Path) -> str:
    with Library.open(folder) as library:
        conversation = library.create_conversation("old").id
        library.add_message(conversation, "user", "precious")
        add_text(library, "doc", "Herons stand in the reeds.")
    return conversation


@pytest.mark.parametrize("version", range(1, len(NAMES)))
def test_each_older_version_is_upgraded(tmp_path: Path, version: int) -> None:
    old = Database(tmp_path / "library.db")
    library_migrations.apply(old, stop_before=NAMES[version])
    old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    old["conversations"].insert({"id": "c", "title": "old", "created": 1.0, "updated": 1.0})
    message = {"id": "m", "conversation_id": "c", "position": 0, "role": "user", "text": "t"}
    old["messages"].insert({**message, "state": "streaming", "created": 1.0, "details": "{}"})
    old.close()
    with Library.open(tmp_path) as library:
        assert library.messages("c")[0].state == "interrupted"
        document = add_text(library, "doc", "Herons stand in the reeds.")
        assert library.search("heron", [document.id], 1)
    reasons = [backup.reason for backup in reversed(list_backups(tmp_path))]
    assert reasons == [f"before-{name}" for name in NAMES[version:]][-KEEP:]


def test_a_failing_step_leaves_the_version_before_it(tmp_path: Path) -> None:
    conversation = filled(tmp_path)
    with pytest.raises(RuntimeError, match="power"):
        Library.open(tmp_path, migrations=with_steps(m901_add_colour, m902_half_done))
    after = dump(tmp_path)
    assert not any("half" in line or "lost" in line for line in after)
    with Library.open(tmp_path, migrations=with_steps(m901_add_colour)) as library:
        assert library.messages(conversation)[0].text == "precious"
        with library._writer.use() as db:
            assert db.execute("SELECT colour FROM conversations").fetchone() == ("grey",)


WRITES = (
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_ALTER_TABLE,
)


@pytest.mark.parametrize("name", NAMES)
def test_failure_before_any_statement_leaves_the_old_version(tmp_path: Path, name: str) -> None:
    """SQLite itself is made to fail at each write that the migration does to the schema or to a table."""
    base = Database(tmp_path / "base.db")
    library_migrations.apply(base, stop_before=name)
    expected = list(base.conn.iterdump())
    base.close()
    source = (tmp_path / "base.db").read_bytes()
    failures = 0
    for allowed in range(200):
        path = tmp_path / f"try{allowed}.db"
        path.write_bytes(source)
        db = Database(path)
        left = allowed

        def authorize(action: int, *_: object) -> int:
            nonlocal left
            if action not in WRITES:
                return sqlite3.SQLITE_OK
            left -= 1
            return sqlite3.SQLITE_DENY if left < 0 else sqlite3.SQLITE_OK

        db.conn.set_authorizer(authorize)
        following = NAMES[NAMES.index(name) + 1 :]
        try:
            library_migrations.apply(db, stop_before=following)
        except sqlite3.DatabaseError:
            failures += 1
            db.conn.set_authorizer(None)
            assert list(db.conn.iterdump()) == expected
            library_migrations.apply(db)
            db.close()
        else:
            db.close()
            break
    assert failures >= 2  # at least the statement and the record of it


def test_a_newer_library_is_not_touched(tmp_path: Path) -> None:
    filled(tmp_path)
    Library.open(tmp_path, migrations=with_steps(m901_add_colour)).close()
    before = dump(tmp_path)
    with pytest.raises(DatabaseTooNew, match="m901_add_colour") as caught:
        Library.open(tmp_path)
    assert "Update" in caught.value.hint
    assert dump(tmp_path) == before


def test_no_backup_no_migration(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "backups").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="backup"):
        Library.open(tmp_path, migrations=with_steps(m901_add_colour))
    (tmp_path / "backups").unlink()
    with Library.open(tmp_path) as library:
        assert len(library.conversations()) == 1
