"""What is kept while a long read goes on, what is kept of conversations that leave memory, and what is stored once."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

import engine.snapshot as engine_snapshot
from app import keeping
from app.keeping import Leaving, LongRead, not_kept
from app.parts.ask import parts_name
from app.pins import sweep
from app.snapshots import KnownKeys, SnapshotWriter
from engine import Checkpoint, Engine, Prefilled
from storage import Library, SnapshotStore
from tests.engine.tools import random_ids, tiny_engine, turn
from tests.storage.helpers import chain


@pytest.fixture
def writer(tmp_path: Path):
    with SnapshotStore.open(tmp_path / "store", 10**9) as store:
        writer = SnapshotWriter(store)
        yield writer
        writer.close()


@pytest.fixture(params=["bf16", "k8v4"])
def engine(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    monkeypatch.setattr("engine.turn.CHECKPOINT_TOKENS", 256)
    return tiny_engine(tmp_path / "model", kv_format=request.param, prefill_chunk=128)


def read(engine: Engine, writer: SnapshotWriter, ids: list[int], stop_at: int = 10**9) -> LongRead:
    """Read as a turn of the app does, up to `stop_at` tokens: there the app dies."""
    long_read = LongRead(engine, writer, "a", 900)
    for event in engine.generate(ids, conversation="a", checkpoints=[900], snapshots=writer.store):
        if isinstance(event, Checkpoint):
            long_read.checkpoint(event.tokens)
        elif isinstance(event, Prefilled):
            long_read.step()
            if event.done >= stop_at:
                break
    writer.flush()
    return long_read


def store_what_there_is(engine: Engine, writer: SnapshotWriter) -> None:
    """As after a turn of the app."""
    keys = KnownKeys(writer, "a")
    for tokens in engine.kept_tokens("a"):
        for row in engine.export("a", tokens, keys):
            assert writer.offer("a", engine.fingerprint, row)
    writer.claim("a", keys.stored)
    writer.complete("a", keys.last)
    writer.flush()


def test_a_long_read_is_kept_as_it_goes_and_leaves_one_checkpoint(engine, writer, monkeypatch):
    monkeypatch.setattr(keeping, "READ_SHARE", 1e9)
    ids = random_ids(1100)
    read(engine, writer, ids, stop_at=768)
    stats = writer.store.stats()
    assert stats.blocks >= 3
    assert stats.checkpoints == 1  # the one before has been replaced
    engine.unload("a")
    again = turn(engine, ids, conversation="a", snapshots=writer.store)
    assert again.stats.restored_tokens == 512  # the last checkpoint before the end
    engine.unload("a")
    read(engine, writer, ids)
    assert writer.store.stats().checkpoints == 2  # of 900 tokens, which was asked for, and the latest
    store_what_there_is(engine, writer)
    assert writer.store.stats().checkpoints == 2  # of 900 tokens, which was asked for, and of where it ended
    assert writer.problem is None


def _blocks(store: SnapshotStore) -> list[str]:
    return store._file.read(lambda db: [row[0] for row in db.execute("SELECT key FROM snapshots")], [])


def test_a_fast_read_is_not_held_up(engine, writer, monkeypatch):
    monkeypatch.setattr(keeping, "READ_SHARE", 0.0)
    read(engine, writer, random_ids(1100))
    assert writer.store.stats().rows == 0


def test_a_busy_disk_does_not_hold_up_a_read(engine, writer, monkeypatch):
    monkeypatch.setattr(keeping, "READ_SHARE", 1e9)
    monkeypatch.setattr("app.snapshots.MOST_PENDING_BYTES", 1)
    with writer._writing:  # one row waits, none is written
        long_read = LongRead(engine, writer, "a", 900)
        for event in engine.generate(random_ids(1100), conversation="a"):
            if isinstance(event, Checkpoint):
                long_read.checkpoint(event.tokens)
        assert len(writer._keys) <= 2
    writer.flush()


@pytest.mark.parametrize("kv_format", ["bf16", "k8v4"])
def test_a_second_document_does_not_lose_the_first(tmp_path, writer, monkeypatch, kv_format):
    """Memory holds one of them: the first leaves, unstored so far, and goes on afterwards as if it had stayed."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    options = {"kv_format": kv_format, "prefill_chunk": 128}
    roomy = tiny_engine(tmp_path / "model", **options)
    small = tiny_engine(tmp_path / "model", kv_capacity_tokens=1984, **options)
    small.before_unload = Leaving(small, writer)
    first, second = random_ids(1500, 1), random_ids(1900, 2)
    one = turn(roomy, first, conversation="a", checkpoints=[1400], tokens=20)
    assert turn(small, first, conversation="a", checkpoints=[1400], tokens=20).ids == one.ids
    turn(small, second, conversation="b", checkpoints=[1400], tokens=20)
    assert small.live_tokens("a") == 0
    writer.flush()
    goes_on = first + one.ids + random_ids(20, 3)
    stayed = turn(roomy, goes_on, conversation="a", tokens=20)
    back = turn(small, goes_on, conversation="a", snapshots=writer.store, tokens=20)
    assert back.ids == stayed.ids
    assert back.stats.restored_tokens == stayed.stats.reused_tokens == len(first) + len(one.ids) - 1
    assert list(writer.store.owners()) == ["a", "b"]


def test_what_is_read_in_parts_belongs_to_its_conversation(engine, writer):
    """Deleting the conversation must take it along."""
    turn(engine, random_ids(600), conversation=parts_name("a"), checkpoints=[500])
    Leaving(engine, writer)(parts_name("a"))
    writer.flush()
    assert list(writer.store.owners()) == ["a"]
    writer.forget("a")
    assert writer.store.stats().rows == 0


def test_leaving_does_not_wait_for_the_disk(engine, writer, monkeypatch, caplog):
    monkeypatch.setattr(keeping, "LEAVING_BYTES", 1)
    turn(engine, random_ids(1100), conversation="a", checkpoints=[900])
    with writer._writing:  # the disk is busy
        began = time.monotonic()
        Leaving(engine, writer)("a")
        assert time.monotonic() - began < 1.0
    assert "before all of it was stored" in caplog.text
    writer.flush()
    assert writer.store.stats().rows == 1


def test_leaving_takes_no_more_than_its_time(engine, writer, monkeypatch, caplog):
    turn(engine, random_ids(1100), conversation="a", checkpoints=[900])
    leaving, now = Leaving(engine, writer), [100.0]

    def slow_copy(*arguments):
        now[0] += 0.03
        return real(*arguments)

    real = engine_snapshot.copy_out
    monkeypatch.setattr(engine_snapshot, "copy_out", slow_copy)
    monkeypatch.setattr(keeping.time, "monotonic", lambda: now[0])
    leaving("a")
    assert now[0] - 100.0 < keeping.LEAVING_SECONDS + 0.04
    leaving("a")  # a second one for the same question has nothing left
    assert now[0] - 100.0 < keeping.LEAVING_SECONDS + 0.04
    assert caplog.text.count("before all of it was stored") == 2
    writer.flush()
    rows = writer.store.stats().rows
    assert 0 < rows <= 4
    now[0] += 10.0
    leaving("a")  # for the next question
    writer.flush()
    assert writer.store.stats().rows > rows


def test_an_answer_does_not_fail_for_what_cannot_be_stored(engine, writer, monkeypatch, caplog):
    turn(engine, random_ids(300), conversation="a")
    monkeypatch.setattr(writer.store, "is_stored", lambda keys: 1 / 0)
    Leaving(engine, writer)("a")
    assert "could not be stored" in caplog.text


def test_kv_of_what_is_gone_is_swept_away(tmp_path: Path):
    """A killed app may have stored rows of a conversation after it was deleted."""
    with Library.open(tmp_path) as library, SnapshotStore.open(tmp_path, 10**9) as store:
        kept = library.create_conversation("kept").id
        document = library.add_document("a" * 64, "doc", "text", "x", [], 1)
        for owner in (kept, "gone"):
            store.put(owner, "f", chain(owner, 2))
            store.pin(owner)
        store.pin(f"document:{document.id}")
        store.pin("document:gone")
        sweep(library, store)
        assert set(store.owners()) == {kept}
        assert store.pinned() == {kept, f"document:{document.id}"}


def test_three_conversations_hold_and_store_a_document_once(engine, writer):
    document = random_ids(1000)
    sizes, pages = [], []
    for name in "abc":
        turn(engine, document + random_ids(20, ord(name)), conversation=name, checkpoints=[1000])
        for tokens in engine.kept_tokens(name):
            writer.store.put(name, engine.fingerprint, engine.export(name, tokens))
        sizes.append(writer.store.stats().bytes)
        pages.append(engine.cache.exact.size - engine.cache.exact.free + engine.cache.packed.size)
        pages[-1] -= engine.cache.packed.free
    tables = [engine.conversations.use(name).live.table for name in "abc"]
    shared = (1000 - 128) // 64  # the newest pages are exact and belong to each alone where others are packed
    assert tables[0][1:shared] == tables[1][1:shared] == tables[2][1:shared]
    blocks = writer.store.stats().blocks
    assert blocks == len(set(_blocks(writer.store))) - writer.store.stats().checkpoints
    assert all(later - before < sizes[0] / 2 for before, later in pairwise(sizes))
    assert all(later - before < pages[0] / 2 for before, later in pairwise(pages))
    assert sum(writer.store.owners().values()) > 2 * sizes[2]  # each owns all of it


class _Quota:
    def __init__(self, quota: int, pinned: int) -> None:
        self.snapshots, self.quota_bytes, self._pinned = self, quota, pinned

    def pinned_bytes(self) -> int:
        return self._pinned


@pytest.mark.parametrize(("quota", "pinned", "says"), [(1000, 0, False), (1000, 600, True), (900, 0, True)])
def test_a_read_that_cannot_be_kept_is_announced(quota, pinned, says):
    said = not_kept(_Quota(quota, pinned), 10, 95)  # type: ignore[arg-type]
    assert bool(said) == says
    assert all("cache.quota" in text for text in said)
