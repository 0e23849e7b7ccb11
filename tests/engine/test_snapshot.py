"""Snapshots: restored and never-left go on alike; damage and mismatch cost time, never an answer."""

import json
import logging
import struct
from array import array

import pytest

from engine import Checkpoint, Engine, SnapshotBlock, SnapshotCheckpoint
from engine.cache import Sequence
from engine.prefix import find_in_snapshots, restore
from engine.snapshot import Copied, block_pages
from tests.engine.tools import Store, random_ids, tiny_engine, turn

FORMATS = ["f32", "bf16", "fp8", "k8v4", "k3v3", "k2v2"]
DOCUMENT = 1000


@pytest.fixture(params=FORMATS)
def engines(request, tmp_path, monkeypatch):
    """Two engines of one model, as before and after a restart; blocks of two pages, so that there are several."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    options = {"kv_format": request.param, "prefill_chunk": 128}
    return [tiny_engine(tmp_path / "model", **options) for _ in range(2)]


def left_behind(engine: Engine) -> tuple[Store, list[int]]:
    """A stored conversation after one turn, and the prompt of its next turn."""
    store, ids = Store(), random_ids(DOCUMENT) + random_ids(30, 1)
    first = turn(engine, ids, conversation="a", checkpoints=[DOCUMENT], save_to=store, tokens=40)
    assert first.checkpoints == [DOCUMENT]
    return store, ids + first.ids + random_ids(25, 2)


def test_restored_and_never_left_agree(engines):
    store, prompt = left_behind(engines[0])
    stayed = turn(engines[0], prompt, conversation="a", tokens=40)
    restored = turn(engines[1], prompt, conversation="new name", snapshots=store, tokens=40)
    assert restored.ids == stayed.ids
    assert restored.stats.reused_tokens == restored.stats.restored_tokens == stayed.stats.reused_tokens
    assert stayed.stats.restored_tokens == 0
    assert restored.stats.computed_tokens == 26
    assert restored.reused is not None
    assert restored.reused.restored == restored.stats.restored_tokens


def test_another_question_restores_the_document(engines):
    store, _ = left_behind(engines[0])
    prompt = random_ids(DOCUMENT) + random_ids(30, 9)
    stayed = turn(engines[0], prompt, conversation="b", tokens=30)
    restored = turn(engines[1], prompt, conversation="b", snapshots=store, tokens=30)
    assert stayed.stats.reused_tokens == restored.stats.restored_tokens == DOCUMENT
    assert restored.ids == stayed.ids


def test_a_branch_inside_the_document_agrees_too(engines):
    store, _ = left_behind(engines[0])
    prompt = random_ids(DOCUMENT)[:700] + random_ids(60, 9)
    stayed = turn(engines[0], prompt, conversation="b", tokens=30)
    restored = turn(engines[1], prompt, conversation="b", snapshots=store, tokens=30)
    # 700 tokens hold five blocks of 128; where old pages are packed, 128 tokens before the branch are computed exactly.
    assert restored.stats.restored_tokens == (512 if engines[0].cache.packs else 640)
    assert stayed.stats.reused_tokens == restored.stats.restored_tokens
    assert restored.ids == stayed.ids


@pytest.mark.parametrize("branch", [1320, 1300, 1250, 1100, 960, 700])
@pytest.mark.parametrize("kv_format", ["bf16", "k8v4"])
def test_re_use_starts_128_tokens_before_a_branch_at_the_nearest_block(tmp_path, monkeypatch, kv_format, branch):
    """Blocks of 320 tokens; nothing but the end of the conversation is a checkpoint. In memory and from the disk."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 5)
    stayed, back = (tiny_engine(tmp_path / "model", kv_format=kv_format, prefill_chunk=128) for _ in range(2))
    store, ids = Store(), random_ids(1400)
    turn(stayed, ids, conversation="a", save_to=store, tokens=20)
    store.put(stayed.export("a", stayed.live_tokens("a"), store.rows))
    prompt = [*ids[:branch], 1, *random_ids(40, 5)]
    here = turn(stayed, prompt, conversation="b", tokens=20)
    there = turn(back, prompt, conversation="b", snapshots=store, tokens=20)
    room = 128 if kv_format == "k8v4" else 0
    assert there.stats.restored_tokens == here.stats.reused_tokens == (branch - room) // 320 * 320
    assert there.ids == here.ids


def test_restoring_many_turns(engines):
    store, ids = Store(), random_ids(300)
    for index in range(5):
        stayed = turn(engines[0], ids, conversation="a", save_to=store, tokens=30)
        after = turn(engines[1], ids, conversation=str(index), snapshots=store, tokens=30)
        assert after.ids == stayed.ids
        ids = ids + stayed.ids + random_ids(90, index + 5)
        engines[1].unload(str(index))


def test_blocks_in_memory_are_not_read_again(engines):
    store, prompt = left_behind(engines[0])
    turn(engines[1], random_ids(DOCUMENT) + random_ids(5, 77), conversation="other", checkpoints=[DOCUMENT])
    restored = turn(engines[1], prompt, conversation="a", snapshots=store, tokens=40)
    stayed = turn(engines[0], prompt, conversation="a", tokens=40)
    assert restored.ids == stayed.ids
    assert 0 < restored.stats.restored_tokens < DOCUMENT // 2
    assert restored.stats.reused_tokens == stayed.stats.reused_tokens
    assert len(store.read) <= 4


def test_known_rows_are_not_exported_again(engines):
    store, _ = left_behind(engines[0])
    assert list(engines[0].export("a", engines[0].live_tokens("a"), store.rows)) == []
    assert list(engines[0].export("nobody", 100, ())) == []
    kinds = [type(row) for row in store.rows.values()]
    assert kinds.count(SnapshotCheckpoint) == 2
    assert kinds.count(SnapshotBlock) >= 5


def test_rows_chain_and_cover_all_tokens(engines):
    _, prompt = left_behind(engines[0])
    rows = list(engines[0].export("a", engines[0].live_tokens("a"), ()))
    parent, position = engines[0].fingerprint, 0
    for row in rows:
        assert row.parent == parent
        assert row.first_token == position
        assert list(row.token_ids) == prompt[position : position + len(row.token_ids)]
        parent, position = row.key, position + len(row.token_ids)
    assert position == engines[0].live_tokens("a")
    assert [type(row) for row in rows] == [SnapshotBlock] * (len(rows) - 1) + [SnapshotCheckpoint]


def with_header(payload: bytes, **changes: object) -> bytes:
    (length,) = struct.unpack("<I", payload[4:8])
    header = json.dumps(json.loads(payload[8 : 8 + length]) | changes).encode()
    return payload[:4] + struct.pack("<I", len(header)) + header + payload[8 + length :]


DAMAGE = {
    "missing": lambda payload: None,
    "empty": lambda payload: b"",
    "cut": lambda payload: payload[: len(payload) // 2],
    "longer": lambda payload: payload + b"\0",
    "no header": lambda payload: payload[:8] + b"\0" * 40 + payload[48:],
    "other tokens": lambda payload: with_header(payload, ids=[4] * 128),
    "other version": lambda payload: with_header(payload, version=999),
    "other shape": lambda payload: with_header(payload, head_dim=32),
    "header is a list": lambda payload: payload[:4] + struct.pack("<I", 2) + b"[]" + payload[8:],
    "no page list": lambda payload: with_header(payload, packed=None),
    "odd page list": lambda payload: with_header(payload, packed=[True]),
    "no origin": lambda payload: with_header(payload, made_by="zz"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_computed_anew(engines, damage, caplog):
    store, _ = left_behind(engines[0])
    prompt = random_ids(DOCUMENT) + random_ids(30, 9)
    blocks = [row for row in store.rows.values() if isinstance(row, SnapshotBlock)]
    broken = next(row for row in blocks if row.first_token == 256)
    payload = store.payloads[broken.key]
    assert payload is not None
    store.payloads[broken.key] = DAMAGE[damage](payload)
    with caplog.at_level(logging.WARNING):
        result = turn(engines[1], prompt, conversation="a", snapshots=store, tokens=10)
    assert result.stats.restored_tokens == 256
    assert result.stats.computed_tokens == len(prompt) - 256
    assert broken.key in caplog.text
    assert len(result.ids) >= 1
    engines[1].unload("a")
    assert engines[1].cache.exact.free == engines[1].cache.exact.size


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_costs_its_tokens_only(engines, damage):
    store, prompt = left_behind(engines[0])
    for row in store.rows.values():
        if isinstance(row, SnapshotCheckpoint):
            store.payloads[row.key] = DAMAGE[damage](row.payload)
    result = turn(engines[1], prompt, conversation="a", snapshots=store, tokens=10)
    assert 128 * 5 <= result.stats.restored_tokens < DOCUMENT + 30
    assert result.stats.restored_tokens % 128 == 0
    assert result.stats.restored_tokens + result.stats.computed_tokens == len(prompt)


def test_fp8_rows_from_before_keys_had_a_middle_are_computed_anew(tmp_path, monkeypatch, caplog):
    """They have another root; should one come under this root all the same, it does not fit."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    engine, other = (tiny_engine(tmp_path / "m", kv_format="fp8", prefill_chunk=128) for _ in range(2))
    (store, prompt), model = left_behind(engine), engine.model
    middles = model.layers * model.kv_heads * 2 * model.head_dim * 2  # bytes in a block of two pages
    for row in store.rows.values():
        if isinstance(row, SnapshotBlock):
            store.payloads[row.key] = Copied(row.copied.header, row.copied.data[:-middles]).encode()
    alone = turn(engine, prompt, conversation="b", tokens=10)
    with caplog.at_level(logging.WARNING):
        result = turn(other, prompt, conversation="b", snapshots=store, tokens=10)
    assert (result.stats.restored_tokens, result.ids) == (0, alone.ids)
    assert "has the wrong size" in caplog.text


def test_other_settings_have_another_root(tmp_path):
    base = {"kv_format": "bf16", "prefill_chunk": 64}
    others = [{}, {"kv_format": "f32"}, {"prefill_chunk": 128}]
    prints = {tiny_engine(tmp_path / "m", **(base | other)).fingerprint for other in others}
    assert len(prints) == 3
    same = tiny_engine(tmp_path / "m", **base)
    assert same.fingerprint in prints


def test_periodic_checkpoints_during_a_long_read(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.turn.CHECKPOINT_TOKENS", 256)
    engine, store = tiny_engine(tmp_path, prefill_chunk=64), Store()
    ids = random_ids(900)
    for event in engine.generate(ids, conversation="a"):
        if isinstance(event, Checkpoint):
            store.put(engine.export("a", event.tokens, store.rows))
            if event.tokens >= 512:
                break  # the app dies here
    result = turn(tiny_engine(tmp_path, prefill_chunk=64), ids, conversation="a", snapshots=store)
    assert result.stats.restored_tokens == 512


def test_restoring_makes_room_for_its_exact_pages(tmp_path):
    engine, store = tiny_engine(tmp_path, kv_format="k8v4", prefill_chunk=64), Store()
    ids = random_ids(64 * 4 + 190)
    ids += turn(engine, ids, conversation="a", save_to=store).ids
    engine.unload("a")
    idle = engine.conversations.use("idle").live
    idle.table += engine.cache.exact.take(engine.cache.exact.free - 3)  # 3: what the turn asks for before it restores
    again = turn(engine, ids, conversation="a", snapshots=store)
    assert again.stats.restored_tokens == len(ids) - 1


def test_without_exact_pages_a_snapshot_is_computed_anew(tmp_path, caplog):
    engine, store = tiny_engine(tmp_path, kv_format="k8v4", prefill_chunk=64), Store()
    ids = random_ids(64 * 4 + 190)
    ids += turn(engine, ids, conversation="a", save_to=store).ids
    engine.unload("a")
    cache, sequence, prompt = engine.cache, Sequence(), array("i", ids)
    cache.exact.take(cache.exact.free - 3)
    cache.prepare(sequence, 1, len(prompt))
    before = list(sequence.table), list(sequence.reserve)
    stored = find_in_snapshots(store, engine.fingerprint, prompt, engine.blocks, engine.policy("exact"))
    assert stored.tokens == len(ids) - 1
    assert restore(cache, sequence, store, stored, prompt, engine.blocks) == 0
    assert (sequence.length, sequence.table, sequence.reserve) == (0, *before)
    assert "too few free pages" in caplog.text


def test_blocks_are_about_4_mb():
    assert block_pages(30 * 2 * 3 * 64 * 2) == 2
    assert block_pages(10**9) == 1
    assert block_pages(100) == 655
