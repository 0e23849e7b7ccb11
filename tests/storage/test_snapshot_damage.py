"""Whatever happens to kvcache.db, the store goes on: at worst it is empty again."""

import logging
import random
import resource
import sys
from pathlib import Path

import pytest

from storage import DiskFull, FolderNotWritable, SnapshotStore, StorageError
from tests.storage.helpers import MEGABYTE, chain

QUOTA = 100 * MEGABYTE


def filled(folder: Path) -> Path:
    with SnapshotStore.open(folder, QUOTA) as store:
        store.put("one", "f", chain("a", 6, size=90_000))
    return folder / "kvcache.db"


def use_everything(store: SnapshotStore) -> None:
    """Every call works or gives nothing; what it gives is right. Afterwards the store takes rows again."""
    rows = chain("a", 6, size=90_000)
    for row in rows:
        assert store.read_row(row.key) in (row, None)
    assert 0 <= store.known_blocks([row.key for row in rows[:-1]]) <= 6
    store.checkpoints([rows[-2].key])
    store.stats()
    store.owners()
    store.put("two", "f", rows)
    store.verify()
    store.prune(300_000)
    store.forget("one")
    store.forget("two")
    fresh = chain("fresh", 2, size=90_000)
    store.put("three", "f", fresh)
    assert [store.read_row(row.key) for row in fresh] == fresh
    assert store.verify() == []


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bytes_in_the_file(tmp_path: Path, seed: int) -> None:
    path = filled(tmp_path)
    dice = random.Random(seed)
    data = bytearray(path.read_bytes())
    span = 200 if seed % 4 == 0 else 70_000 if seed % 4 == 1 else len(data)  # the header, the first pages, all
    for _ in range(1 if seed % 2 else 100):
        data[dice.randrange(span)] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    with SnapshotStore.open(tmp_path, QUOTA) as store:
        use_everything(store)


@pytest.mark.parametrize("keep", [0, 1, 100, 4096, 65_535, 65_536, 65_537, 131_072, 300_000])
def test_truncated_files(tmp_path: Path, keep: int) -> None:
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with SnapshotStore.open(tmp_path, QUOTA) as store:
        use_everything(store)


@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\0" + bytes(3000), bytes(200_000)])
def test_files_that_are_no_database(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "kvcache.db").write_bytes(content)
    with caplog.at_level(logging.WARNING), SnapshotStore.open(tmp_path, QUOTA) as store:
        use_everything(store)
    assert "started anew" in caplog.text


def test_a_file_of_another_version_is_replaced(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with SnapshotStore.open(tmp_path, QUOTA) as store:
        store._file._writer.execute("PRAGMA user_version = 99")
    with SnapshotStore.open(tmp_path, QUOTA) as store:
        assert store.stats().rows == 0
        use_everything(store)
    assert path.exists()


@pytest.mark.parametrize("what", ["deleted", "replaced", "overwritten", "cut"])
def test_the_file_changes_while_the_store_runs(tmp_path: Path, what: str) -> None:
    path = filled(tmp_path)
    with SnapshotStore.open(tmp_path, QUOTA) as store:
        assert store.read_block(chain("a", 1, size=90_000)[0].key)
        if what == "deleted":
            for file in tmp_path.iterdir():
                file.unlink()
        elif what == "replaced":
            path.unlink()
            path.write_bytes(b"something else")
        elif what == "overwritten":
            path.write_bytes(random.Random(1).randbytes(500_000))
        else:
            path.write_bytes(path.read_bytes()[:66_000])
        use_everything(store)
    assert path.exists()


def test_a_full_database_says_so_and_goes_on(store: SnapshotStore) -> None:
    first, more = chain("a", 2, size=200_000), chain("b", 8, size=200_000)
    store.put("one", "f", first)
    db = store._file._writer
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages + 4}")
    with pytest.raises(DiskFull) as caught:
        store.put("two", "f", more)
    assert "room" in caught.value.message
    assert caught.value.hint
    assert [store.read_row(row.key) for row in first] == first
    assert store.stats().owners == 1
    db.execute("PRAGMA max_page_count = 1000000")
    store.put("two", "f", more)
    assert store.verify() == []


@pytest.mark.skipif(sys.platform == "win32", reason="no file size limits on Windows")
def test_a_limit_of_the_file_system_is_a_full_disk(store: SnapshotStore) -> None:
    first = chain("a", 2, size=200_000)
    store.put("one", "f", first)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(DiskFull):
            store.put("two", "f", chain("b", 30, size=200_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [store.read_row(row.key) for row in first] == first
    store.put("two", "f", chain("b", 30, size=200_000))
    assert store.verify() == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FolderNotWritable):
        SnapshotStore.open(tmp_path / "file" / "data", QUOTA)
    (tmp_path / "kvcache.db").mkdir()
    with pytest.raises(StorageError):
        SnapshotStore.open(tmp_path, QUOTA)


def test_a_restart_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = chain("a", 3)
    with SnapshotStore.open(tmp_path, QUOTA) as store:

        def refuse(path: Path, missing_ok: bool = False) -> None:
            raise PermissionError(13, "used by another program")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", refuse)
            with pytest.raises(FolderNotWritable):
                store._file.restart("a test")
            with pytest.raises(FolderNotWritable):
                store.put("one", "f", rows)
        store.put("one", "f", rows)
        assert store.known_blocks([row.key for row in rows[:-1]]) == 3
