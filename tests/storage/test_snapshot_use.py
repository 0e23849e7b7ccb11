"""How the store behaves in use: reading beside writing, the order of use, checkpoints that stand for a while only."""

import threading
import time
from pathlib import Path

import pytest

from storage import SnapshotRow, SnapshotStore, kvcache
from tests.storage.helpers import MEGABYTE, chain, key


def checkpoint(name: str, parent: str, first_token: int) -> SnapshotRow:
    return SnapshotRow("checkpoint", key(name), parent, first_token, (1, 2, 3), name.encode() * 9)


def stored(store: SnapshotStore, *rows: SnapshotRow) -> list[bool]:
    return [store.is_stored([row.key]) for row in rows]


def test_reading_does_not_wait_for_writing(store: SnapshotStore) -> None:
    rows = chain("a", 4)
    store.put("one", "f", rows)
    writing, read = threading.Event(), threading.Event()

    def slow_write(db: object) -> bool:
        writing.set()
        return read.wait(10)

    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(store._file.write(slow_write)))
    thread.start()
    assert writing.wait(10)
    assert store.known_blocks([row.key for row in rows[:4]]) == 4
    assert [store.read_row(row.key) for row in rows] == rows
    read.set()
    thread.join()
    assert done == [True]  # not ten seconds later, when the write had given up


def test_a_file_that_is_started_anew_beside_readers_keeps_what_comes_next(store: SnapshotStore) -> None:
    """Readers that meet the half-made file must not take it for a damaged one."""
    rows = chain("a", 6, size=20_000)
    ended = threading.Event()

    def read_on() -> None:
        while not ended.is_set():
            for row in rows:
                assert store.read_row(row.key) in (row, None)

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(15):
            store.put("one", "f", rows)
            store._file.restart("a test")
            store.put("one", "f", rows)
            assert all(stored(store, *rows))
            time.sleep(0.01)
            assert all(stored(store, *rows))
    finally:
        ended.set()
        for reader in readers:
            reader.join()


def test_rows_of_a_deleted_file_do_not_count_as_stored(store: SnapshotStore, tmp_path: Path) -> None:
    rows = chain("a", 3)
    store.put("one", "f", rows)
    assert all(stored(store, *rows))
    (tmp_path / "kvcache.db").unlink()
    assert not any(stored(store, *rows))
    store.put("one", "f", rows)
    assert all(stored(store, *rows))


def test_what_was_read_last_stays_also_after_a_restart(tmp_path: Path) -> None:
    first, second = chain("a", 2, checkpoint=False), chain("b", 2, checkpoint=False)
    with SnapshotStore.open(tmp_path, MEGABYTE) as store:
        store.put("one", "f", first)
        store.put("two", "f", second)
    with SnapshotStore.open(tmp_path, MEGABYTE) as store:
        for row in first:
            assert store.read_block(row.key)
    with SnapshotStore.open(tmp_path, MEGABYTE) as store:
        store.prune(3000)
        assert stored(store, *first, *second) == [True, True, False, False]


def test_a_clock_that_was_set_back_does_not_make_new_rows_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, read = (chain(name, 2, checkpoint=False) for name in "abc")
    with SnapshotStore.open(tmp_path, MEGABYTE) as store:
        store.put("one", "f", old)
        store.put("three", "f", read)
        monkeypatch.setattr(kvcache.time, "time", lambda: 1e9)  # years ago
        store.put("two", "f", new)
        for row in read:
            assert store.read_block(row.key)
    with SnapshotStore.open(tmp_path, MEGABYTE) as store:
        store.prune(5100)
        assert stored(store, *old, *new, *read) == [False, False, True, True, True, True]
        store.prune(2600)
        assert stored(store, *old, *new, *read) == [False, False, False, False, True, True]


def test_rows_read_while_others_are_written_keep_their_times(store: SnapshotStore) -> None:
    """Many threads note what they read while it is being stored."""
    rows = chain("a", 40, size=10)
    store.put("one", "f", rows)
    ended, problems = threading.Event(), []

    def read_on() -> None:
        try:
            while not ended.is_set():
                for row in rows:
                    store.read_row(row.key)
        except Exception as error:
            problems.append(error)

    readers = [threading.Thread(target=read_on) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(60):
        store.put("two", "f", chain(f"b{number}", 1, size=10))
    ended.set()
    for reader in readers:
        reader.join()
    assert problems == []


def test_a_checkpoint_of_a_read_under_way_goes_when_a_later_one_stands(store: SnapshotStore) -> None:
    blocks = chain("a", 3, checkpoint=False)
    first, second, end = (checkpoint(name, blocks[at].key, 64 * (at + 1)) for at, name in enumerate(("1", "2", "end")))
    store.put("one", "f", [blocks[0], first], interim={first.key})
    assert stored(store, first) == [True]
    store.put("one", "f", [blocks[1], second], interim={second.key})
    assert stored(store, first, second) == [False, True]
    store.settle("one", end.key)  # that is not stored: the one before is all there is
    assert stored(store, second) == [True]
    store.put("one", "f", [blocks[2], end])
    store.settle("one", end.key)
    assert stored(store, *blocks, second, end) == [True, True, True, False, True]


def test_of_several_in_one_put_the_last_stays(store: SnapshotStore) -> None:
    blocks = chain("a", 2, checkpoint=False)
    first, second = checkpoint("1", blocks[0].key, 64), checkpoint("2", blocks[1].key, 128)
    store.put("one", "f", [blocks[0], first, blocks[1], second], interim={first.key, second.key})
    assert stored(store, first, second) == [False, True]


def test_one_that_others_own_or_that_is_kept_stays(store: SnapshotStore) -> None:
    blocks = chain("a", 2, checkpoint=False)
    first, second = checkpoint("1", blocks[0].key, 64), checkpoint("2", blocks[1].key, 128)
    store.put("one", "f", [blocks[0], first], interim={first.key})
    store.claim("two", [first.key])
    store.put("one", "f", [blocks[1], second], interim={second.key})
    assert stored(store, first, second) == [True, True]
    store.forget("two")
    assert stored(store, first) == [False]
    store.claim("one", [second.key])  # the read was stopped there: it is where the conversation stands
    third = checkpoint("3", blocks[1].key, 128)
    store.put("one", "f", [third], interim={third.key})
    assert stored(store, second, third) == [True, True]
    store.settle("one", third.key)
    assert stored(store, second, third) == [True, True]


def test_a_quota_that_has_no_room_for_the_later_one_keeps_the_earlier(tmp_path: Path) -> None:
    blocks = chain("a", 2, checkpoint=False)
    first, second = checkpoint("1", blocks[0].key, 64), checkpoint("2", blocks[1].key, 128)
    with SnapshotStore.open(tmp_path, 2600) as store:
        store.put("one", "f", [blocks[0], first], interim={first.key})
        large = SnapshotRow("checkpoint", second.key, second.parent, 128, (1,), bytes(2000))
        store.put("one", "f", [blocks[1], large], interim={large.key})
        store.settle("one", large.key)
        assert stored(store, blocks[0], first, large) == [True, True, False]


def test_forgetting_takes_checkpoints_of_reads_under_way_too(store: SnapshotStore) -> None:
    blocks = chain("a", 1, checkpoint=False)
    first = checkpoint("1", blocks[0].key, 64)
    store.put("one", "f", [*blocks, first], interim={first.key})
    store.forget("one")
    assert store.stats().rows == 0
    assert store._file.read(lambda db: db.execute("SELECT count(*) FROM interim").fetchone()[0], None) == 0


def test_a_file_from_before_reads_under_way_were_marked_is_kept(tmp_path: Path) -> None:
    rows = chain("a", 2)
    with SnapshotStore.open(tmp_path, MEGABYTE) as store:
        store.put("one", "f", rows)
        store._file._writer.executescript("DROP TABLE interim")
    with SnapshotStore.open(tmp_path, MEGABYTE) as store:
        assert all(stored(store, *rows))
        store.put("one", "f", [checkpoint("1", rows[0].key, 64)], interim={key("1")})
        assert store.verify() == []
