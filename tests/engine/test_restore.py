"""Restoring reads ahead with several threads, keeps the order, and can be stopped; a busy card by a stand-in."""

import threading
import time
from array import array

import pytest
import torch

from engine import Engine, prefix
from engine.cache import Sequence
from engine.prefix import find_in_snapshots, restore
from engine.row_loader import BATCHES, OnHost, Wanted, load_rows, reading_threads
from engine.snapshot import decode_into
from tests.engine.tools import Store, random_ids, tiny_engine, turn

DOCUMENT = 1500


@pytest.fixture(params=["bf16", "k8v4"])
def engine(request, tmp_path, monkeypatch) -> Engine:
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    return tiny_engine(tmp_path / "model", kv_format=request.param, prefill_chunk=128)


class Late(OnHost):
    """Copies only when it is waited for, or when another batch begins, as a card does that is busy."""

    def __init__(self) -> None:
        self.begun: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.largest = 0

    def begin(self, rows: torch.Tensor) -> torch.Tensor:
        there = torch.full_like(rows, 0xAA)
        self.begun.append((rows, there))
        self.largest = max(self.largest, rows.shape[0])
        return there

    def wait(self) -> None:
        for rows, there in self.begun:
            there.copy_(rows)
        self.begun.clear()


class LateWrites(Late):
    """What reads the copy is queued behind it, as on a card: here it waits for it."""

    def begin(self, rows: torch.Tensor) -> torch.Tensor:
        there = super().begin(rows)
        self.wait()
        return there


def stored_prefix(engine: Engine) -> tuple[Store, array]:
    store, ids = Store(), random_ids(DOCUMENT) + random_ids(30, 1)
    result = turn(engine, ids, conversation="a", checkpoints=[DOCUMENT], save_to=store, tokens=20)
    return store, array("i", ids + result.ids)


def contents(engine: Engine, sequence: Sequence) -> list[torch.Tensor]:
    view = engine.cache.view(sequence, sequence.length, torch.float32)
    return [part.clone() for layer in range(engine.model.layers) for part in view.read(layer, lambda: None)]


def restored(engine: Engine, store: Store, prompt: array, **options) -> Sequence:
    sequence = Sequence()
    stored = find_in_snapshots(store, engine.fingerprint, prompt, engine.blocks, engine.policy("exact"))
    engine.cache.prepare(sequence, 1, len(prompt))
    if not engine.cache.packs:
        engine.cache.prepare(sequence, len(prompt))
    assert restore(engine.cache, sequence, store, stored, prompt, engine.blocks, **options) == stored.tokens
    return sequence


@pytest.mark.parametrize("rows_at_once", [2, 1000])
def test_batches_of_any_size_bring_what_single_rows_do(engine, monkeypatch, rows_at_once):
    store, prompt = stored_prefix(engine)
    engine.unload("a")
    monkeypatch.setattr("engine.prefix.BATCH_BYTES", 1)
    expected = restored(engine, store, prompt)
    one_by_one = Sequence()
    engine.cache.prepare(one_by_one, 1 if engine.cache.packs else expected.length, expected.length)
    at = 0
    for key in store.read:
        row = store.rows[key]
        decode_into(engine.cache, one_by_one, prompt[at : at + len(row.token_ids)], row.payload)
        at += len(row.token_ids)
    assert at == expected.length
    row_bytes = len(store.rows[store.read[1]].payload)
    monkeypatch.setattr("engine.prefix.BATCH_BYTES", rows_at_once * row_bytes)
    upload = LateWrites()
    together = restored(engine, store, prompt, upload=upload)
    assert upload.largest == min(rows_at_once, upload.largest)
    assert rows_at_once == 1 or upload.largest > 1
    for a, b, c in zip(contents(engine, expected), contents(engine, together), contents(engine, one_by_one)):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_host_memory_is_filled_again_only_after_it_was_taken(monkeypatch):
    """The loader waits for a busy card: rows that it has not taken yet are never written over."""
    monkeypatch.setattr("engine.row_loader.open_payload", lambda payload: type("O", (), {"data": payload})())
    rows = [Wanted(str(index), 64, lambda key: bytes([int(key)]) * 16) for index in range(40)]
    upload, uploads = Late(), []
    for batch in load_rows(rows, 16, 2, upload):
        uploads.append(batch.data(list(batch)))
        assert len(upload.begun) <= BATCHES
    upload.wait()
    assert torch.cat(uploads)[:, 0].tolist() == list(range(40))


def test_rows_are_read_by_several_threads_in_order(monkeypatch):
    monkeypatch.setattr("engine.row_loader.open_payload", lambda payload: type("O", (), {"data": payload})())
    inside, most, lock = 0, 0, threading.Lock()

    def read(key: str) -> bytes:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.001 * (int(key) % 3))
        with lock:
            inside -= 1
        return bytes([int(key)]) * 8

    rows = [Wanted(str(index), 64, read) for index in range(60)]
    order = [int(batch.data([row])[0, 0]) for batch in load_rows(rows, 8, 4, OnHost()) for row in batch]
    assert order == list(range(60))
    assert 2 <= most <= reading_threads()


def test_leaving_early_reads_little_more():
    read: list[str] = []

    def note(key: str) -> None:
        read.append(key)

    rows = [Wanted(str(index), 64, note) for index in range(1000)]
    batches = load_rows(rows, 8, 2, OnHost())
    next(batches)
    batches.close()
    assert len(read) <= 2 * BATCHES


def test_stop_while_restoring_keeps_what_is_there(engine, monkeypatch):
    store, prompt = stored_prefix(engine)
    never_left = turn(engine, list(prompt) + random_ids(5, 3), conversation="a", tokens=20)
    engine.unload("a")
    monkeypatch.setattr("engine.prefix.BATCH_BYTES", 1)
    cancel, real = threading.Event(), store.read_block

    def read(key: str) -> bytes | None:
        if len(store.read) == 6:
            cancel.set()
        return real(key)

    store.read_block = read
    stopped = turn(engine, list(prompt) + random_ids(5, 3), conversation="a", snapshots=store, cancel=cancel)
    assert stopped.stats.finish_reason == "cancelled"
    assert 0 <= stopped.stats.restored_tokens < DOCUMENT
    assert stopped.stats.restored_tokens == engine.live_tokens("a")
    store.read_block = real
    again = turn(engine, list(prompt) + random_ids(5, 3), conversation="a", snapshots=store, tokens=20)
    assert again.ids == never_left.ids
    assert again.stats.reused_tokens == len(prompt) - 1


def test_a_restore_that_fails_in_the_middle_of_a_copy_leaves_no_tokens_without_kv(engine, monkeypatch):
    """As when a card has no memory left for it: the next turn must not take them for computed."""
    store, ids = stored_prefix(engine)
    prompt = [*ids.tolist(), *random_ids(20, 9)]
    right = turn(engine, prompt, conversation="a", tokens=20)
    engine.unload("a")
    copies = []

    def fail_later(*arguments: object) -> None:
        copies.append(arguments)
        if len(copies) > 1:
            raise MemoryError("no room for a copy")
        real(*arguments)  # type: ignore[arg-type]

    real = prefix.write
    monkeypatch.setattr(prefix, "BATCH_BYTES", 1)  # a row a copy
    monkeypatch.setattr(prefix, "write", fail_later)
    with pytest.raises(MemoryError):
        turn(engine, prompt, conversation="b", snapshots=store, tokens=20)
    assert len(copies) == 2
    assert engine.live_tokens("b") == 0
    monkeypatch.setattr(prefix, "write", real)
    again = turn(engine, prompt, conversation="b", tokens=20)
    assert again.stats.reused_tokens == 0
    engine.unload("b")
    restored = turn(engine, prompt, conversation="b", snapshots=store, tokens=20)
    assert restored.ids == right.ids
    engine.unload("b")
    assert engine.cache.exact.free == engine.cache.exact.size
    assert engine.cache.packed.free == engine.cache.packed.size
