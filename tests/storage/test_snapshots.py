"""KV snapshots come back bit for bit, share rows, stay inside the quota, and never believe a damaged row."""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlite_utils import Database

from storage import SnapshotRow, SnapshotStore, StorageError, default_quota, snapshot_queries
from storage.connection import pragma
from storage.eviction import Resident, choose_victims
from storage.snapshot_schema import pack_ids
from tests.storage.helpers import MEGABYTE, chain, key


@dataclass(frozen=True)
class SnapshotCheckpoint:
    """As the engine's: no `kind`, its class's name tells."""

    key: str
    parent: str
    first_token: int
    token_ids: tuple[int, ...]
    payload: bytes


def test_the_file_has_the_promised_settings(store: SnapshotStore) -> None:
    db = store._file._writer
    settings = {name: pragma(db, name) for name in ("page_size", "auto_vacuum", "journal_mode", "synchronous")}
    assert settings == {"page_size": 65536, "auto_vacuum": 2, "journal_mode": "wal", "synchronous": 1}
    assert pragma(db, "trusted_schema") == 0
    reader, _ = store._file._take_reader()
    assert pragma(reader, "query_only") == 1
    reader.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    payload=st.binary(max_size=200_000),
    ids=st.lists(st.integers(0, 2**32 - 1), max_size=300).map(tuple),
    first=st.integers(0, 2**31),
    kind=st.sampled_from(["block", "checkpoint"]),
)
def test_rows_round_trip(store: SnapshotStore, payload: bytes, ids: tuple, first: int, kind: str) -> None:
    row = SnapshotRow(kind, key((payload, ids, first, kind)), key("root"), first, ids, payload)
    store.put("owner", key("root"), [row])
    assert store.read_row(row.key) == row
    read, other = store.read_block, store.read_checkpoint
    if kind == "checkpoint":
        read, other = other, read
    assert (read(row.key), other(row.key)) == (payload, None)


def test_the_readers_of_the_engine(store: SnapshotStore) -> None:
    rows = chain("a", 3, checkpoint=False)
    tail = SnapshotCheckpoint(key("tail"), rows[-1].key, 192, (5, 6, 7), b"rest")
    far = SnapshotCheckpoint(key("far"), rows[0].key, 64, (1,), b"x")
    written = store.put("owner", "f", iter([*rows, tail, far]))
    assert written == 3 * (1000 + 4 * 64) + 4 + 12 + 1 + 4
    keys = [row.key for row in rows]
    assert store.known_blocks(keys) == 3
    assert store.known_blocks([*keys[:2], key("unknown"), keys[2]]) == 2
    assert store.known_blocks([tail.key]) == 0
    assert store.checkpoints([keys[-1], keys[0]]) == [
        (tail.key, keys[-1], (5, 6, 7)),
        (far.key, keys[0], (1,)),
    ]
    assert store.read_checkpoint(tail.key) == b"rest"
    assert store.read_block(key("unknown")) is None


def test_it_outlives_the_process(tmp_path: Path) -> None:
    rows = chain("a", 3)
    with SnapshotStore.open(tmp_path, MEGABYTE) as store:
        store.put("owner", "f", rows)
    with SnapshotStore.open(tmp_path, MEGABYTE) as store:
        assert [store.read_row(row.key) for row in rows] == rows
        assert store.verify() == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../x",
        "/etc/passwd",
        "con",
        "a" * 63,
        "a" * 65,
        "A" * 64,
        "a" * 63 + "\0",
        "a" * 63 + "\n",
        "∕" * 64,
        None,
        7,
    ],
)
def test_only_our_own_names_are_keys(store: SnapshotStore, name: str) -> None:
    row = SnapshotRow("block", name, key("root"), 0, (1,), b"x")
    for call in (
        lambda: store.read_block(name),
        lambda: store.read_checkpoint(name),
        lambda: store.known_blocks([name]),
        lambda: store.checkpoints([name]),
        lambda: store.put("owner", "f", [row]),
        lambda: store.put("owner", "f", [SnapshotRow("block", key(1), name, 0, (1,), b"x")]),
    ):
        with pytest.raises(ValueError, match=r"key|parent"):
            call()
    assert store.stats().rows == 0


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_every_flipped_bit_and_every_truncation_is_noticed(store: SnapshotStore) -> None:
    row = chain("a", 1, size=2000)[0]
    ids_blob = pack_ids(row.token_ids)
    dice = random.Random(7)
    damages = [("payload", flipped(row.payload, dice.randrange(len(row.payload) * 8))) for _ in range(700)]
    damages += [("token_ids", flipped(ids_blob, dice.randrange(len(ids_blob) * 8))) for _ in range(300)]
    damages += [("payload", row.payload[: dice.randrange(len(row.payload))]) for _ in range(150)]
    damages += [("token_ids", ids_blob[: dice.randrange(len(ids_blob))]) for _ in range(50)]
    damages += [("first_token", 1), ("parent", key("else")), ("kind", "checkpoint"), ("checksum", bytes(32))]
    for column, value in damages:
        store.put("owner", "f", [row])
        db = store._file._writer
        table = "payloads" if column == "payload" else "snapshots"
        db.execute(f"UPDATE {table} SET {column} = ?", (value,))
        assert store.read_row(row.key) is None, column
        assert store.stats().rows == 0
    store.put("owner", "f", [row])
    assert store.read_block(row.key) == row.payload


def test_verify_names_and_removes_the_damaged(store: SnapshotStore) -> None:
    rows = chain("a", 4)
    store.put("owner", "f", rows)
    store._file._writer.execute("UPDATE payloads SET payload = x'00' WHERE snapshot_id = 2")
    assert store.verify() == [rows[1].key]
    assert store.stats().rows == 4
    assert store.verify() == []


def test_shared_rows_stay_until_their_last_owner_goes(store: SnapshotStore) -> None:
    shared, own = chain("doc", 3), chain("own", 2)
    store.put("one", "f", shared)
    assert store.put("two", "f", shared) == 0
    store.put("two", "f", own)
    assert set(store.owners()) == {"one", "two"}
    store.forget("one")
    assert store.stats().rows == len(shared) + len(own)
    store.forget("two")
    assert store.stats().rows == 0


def test_whoever_builds_on_a_prefix_owns_it_too(store: SnapshotStore) -> None:
    document = chain("doc", 3, checkpoint=False)
    store.put("one", "f", document)
    question = SnapshotRow("block", key("q"), document[-1].key, 192, (9,), b"question")
    store.put("two", "f", [question])
    store.claim("three", [document[1].key])
    store.forget("one")
    assert store.known_blocks([*(row.key for row in document), question.key]) == 4
    store.forget("two")
    assert store.known_blocks([row.key for row in document]) == 2


def test_forgotten_bytes_are_gone_from_the_file(store: SnapshotStore) -> None:
    rows = chain("a", 20, size=200_000)
    store.put("one", "f", rows)
    store.put("two", "f", chain("b", 3, size=200_000))
    assert store.stats().file_bytes > 4_000_000
    store.forget("one")
    stats = store.stats()
    assert stats.file_bytes < 1_700_000
    on_disk = b"".join(file.read_bytes() for file in store._file.path.parent.iterdir())
    assert all(row.payload[-64:] not in on_disk and row.payload[:64] not in on_disk for row in rows[:-1])


def test_the_quota_holds_and_old_rows_go_first(tmp_path: Path) -> None:
    with SnapshotStore.open(tmp_path, 60_000) as store:
        old, middle, new = (chain(name, 4, size=5000, checkpoint=False) for name in ("old", "middle", "new"))
        store.put("one", "f", old)
        store.put("two", "f", middle)
        assert store.read_block(old[-1].key)  # used again: now `middle` is the oldest
        store.put("three", "f", new)
        assert store.stats().bytes <= 60_000
        assert store.known_blocks([row.key for row in new]) == 4
        assert store.known_blocks([row.key for row in old]) == 4
        assert store.known_blocks([row.key for row in middle]) == 3  # from its end


def test_a_row_alone_over_the_quota_is_left_out(tmp_path: Path) -> None:
    with SnapshotStore.open(tmp_path, 20_000) as store:
        rows = chain("big", 6, size=5000)
        assert 0 < store.put("one", "f", rows) <= 20_000
        assert store.known_blocks([row.key for row in rows[:-1]]) == 3
        store.put("two", "f", chain("next", 2, size=5000))
        assert store.stats().bytes <= 20_000
        assert store.stats().owners == 2
    with SnapshotStore.open(tmp_path, 0) as store:
        assert store.put("three", "f", chain("none", 1)) == 0


def test_over_the_quota_in_several_calls_the_leading_rows_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SnapshotStore.open(tmp_path, 10 * 5300) as store:
        rows = chain("big", 30, size=5000)
        for first in range(0, len(rows), 3):
            store.put("one", "f", rows[first : first + 3])
        assert store.known_blocks([row.key for row in rows[:-1]]) == store.stats().rows == 10
    assert sum("does not fit into the quota" in record.message for record in caplog.records) == 1


def test_the_prefix_that_is_being_extended_is_not_evicted(tmp_path: Path) -> None:
    with SnapshotStore.open(tmp_path, 30_000) as store:
        rows = chain("a", 6, size=4000, checkpoint=False)
        store.put("one", "f", rows[:3])
        store.put("two", "f", chain("b", 2, size=4000, checkpoint=False))
        store.put("one", "f", rows[3:])
        assert store.known_blocks([row.key for row in rows]) == 6


def test_pinned_rows_stay(tmp_path: Path) -> None:
    with SnapshotStore.open(tmp_path, 20_000) as store:
        pinned, other = chain("pinned", 2, size=5000), chain("other", 3, size=5000)
        store.put("one", "f", pinned)
        store.pin("one")
        store.put("two", "f", other)
        assert store.known_blocks([row.key for row in pinned[:-1]]) == 2
        assert store.prune(0) > 0
        assert store.stats().rows == len(pinned)
        store.pin("one", False)
        store.prune(0)
        assert store.stats().rows == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_eviction_leaves_no_orphans(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 25))
    residents = []
    for index in range(count):
        parent = data.draw(st.integers(-1, index - 1))
        residents.append(Resident(str(index), str(parent), data.draw(st.floats(0, 9)), data.draw(st.integers(1, 9))))
    protected = data.draw(st.sets(st.sampled_from([row.key for row in residents])))
    need = data.draw(st.integers(1, 120))
    victims = {row.key for row in choose_victims(residents, need, protected)}
    assert not victims & protected
    for row in residents:
        if row.key not in victims:
            assert row.parent not in victims
    freed = sum(row.bytes for row in residents if row.key in victims)
    if freed < need:  # then nothing more could go: every other row is protected or carries a protected one
        needed = set(protected)
        for row in reversed(residents):
            if row.key in needed:
                needed.add(row.parent)
        assert victims == {row.key for row in residents} - needed


def test_commits_stay_small(store: SnapshotStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_queries, "COMMIT_BYTES", 10_000)
    sizes: list[int] = []
    real = store._put_batch

    def watch(db: Database, batch: list[SnapshotRow], **more: Any) -> tuple[int, int]:
        sizes.append(sum(len(row.payload) for row in batch))
        return real(db, batch=batch, **more)

    monkeypatch.setattr(store, "_put_batch", watch)
    rows = chain("a", 12, size=3000)

    def one_by_one() -> Iterator[SnapshotRow]:
        yield from rows

    store.put("one", "f", one_by_one())
    assert len(sizes) >= 4
    assert max(sizes) <= 10_000
    assert store.known_blocks([row.key for row in rows[:-1]]) == 12


def test_wrong_rows_are_refused(store: SnapshotStore) -> None:
    good = chain("a", 1)[0]
    for field, value in (("kind", "page"), ("first_token", -1)):
        fields = {name: getattr(good, name) for name in SnapshotRow.__slots__} | {field: value}
        with pytest.raises(ValueError, match=field):
            store.put("one", "f", [SnapshotRow(**fields)])
    with pytest.raises(ValueError, match="owner"):
        store.put("", "f", [good])
    with pytest.raises(ValueError, match="quota"):
        SnapshotStore.open(Path("unused"), -1)
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.put("one", "f", [good])


def test_threads_read_while_one_writes(store: SnapshotStore) -> None:
    first, second = chain("first", 6, size=50_000), chain("second", 30, size=50_000)
    store.put("one", "f", first)
    problems: list[object] = []

    def read() -> None:
        for _ in range(30):
            problems.extend(row.key for row in first[:-1] if store.read_block(row.key) != row.payload)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for row in second:
        store.put("two", "f", [row])
    for thread in threads:
        thread.join()
    assert problems == []
    assert store.known_blocks([row.key for row in second[:-1]]) == 30


def test_the_usual_quota(tmp_path: Path) -> None:
    assert 0 < default_quota(tmp_path) <= 200 * 10**9
