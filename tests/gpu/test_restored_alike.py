"""On a card: restored from a kvcache.db and never left give the same greedy tokens, and the same bytes lie in memory.

Every KV format, every mode with budgets so small that pages are really left out, a branch, an edit, and the cache of
two pools. Without a card UNABRIDGED_GPU_TESTS_ON_CPU=1 runs it through the CPU path, to see that the tests are right.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine, Sparsity
from engine.kv_memory import kv_formats
from engine.snapshot import SnapshotBlock, open_payload
from engine.two_pools import TwoPoolCache
from storage import SnapshotStore
from tests.engine.tiny_models import make_model
from tests.engine.tools import random_ids, tiny_engine, turn

ON_CARD = torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ON_CARD and "UNABRIDGED_GPU_TESTS_ON_CPU" not in os.environ, reason="needs a CUDA card"),
]

FORMATS = [name for name in kv_formats() if name != "f32"]  # a card computes in bf16
MODES = ("exact", "balanced", "fast")
SPARSE = Sparsity(budget=384, ratio=0.0, reading_budget=256, crossover=0)
GATES = ((0.9, 0.1), (0.9, 0.8), (0.1, 0.9), (0.9, 0.9))
TWO_POOLS = replace(SPARSE, streaming_ratio=0.5, streaming_local=256)
DOCUMENT, ANSWER = 1500, 24
OWNER = "conversation"


class OnDisk:
    """A kvcache.db, as `turn` wants it."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.store, self.rows = SnapshotStore.open(folder, 1 << 40), set()
        self._fingerprint = fingerprint

    def put(self, rows: Iterable[Any]) -> None:
        self.store.put(OWNER, self._fingerprint, rows)


def engines(folder: Path, monkeypatch: pytest.MonkeyPatch, **options) -> list[Engine]:
    """Two engines of one model, as before and after a restart; blocks of two KV pages."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    if not ON_CARD:
        options["decode_weights"] = "f32"
    model = make_model(
        "llama", layers=4, hidden_size=512, heads=8, kv_heads=2, ffn_size=1024, max_position=4096, vocab_size=1024
    )
    settings: dict[str, Any] = {
        "sparsity": SPARSE, "gates": GATES, "device": "cuda:0" if ON_CARD else "cpu", "kv_capacity_tokens": 8192,
        "prefill_chunk": 256, "decode_weights": "bf16",
    } | options  # fmt: skip
    return [tiny_engine(folder / "model", model=model, **settings) for _ in range(2)]


def compare(stayed: Engine, again: Engine, folder: Path, mode: str) -> None:
    """A turn, its continuation, a branch from the document, an edited question, a branch inside of the document."""
    how: dict[str, Any] = {"mode": mode, "reading": mode}
    first = random_ids(DOCUMENT) + random_ids(30, 1)
    written = OnDisk(folder, stayed.fingerprint)
    with written.store:
        answered = turn(stayed, first, conversation="a", checkpoints=[DOCUMENT], save_to=written, tokens=ANSWER, **how)
    stats = answered.stats
    shares = (stats.selected_pages_read_share, stats.prompt_pages_read_share)
    assert shares == (1.0, 1.0) if mode == "exact" else max(shares) < 1, shares
    prompts = {
        "next turn": first + answered.ids + random_ids(25, 2),
        "another question": first[:DOCUMENT] + random_ids(35, 3),
        "an edited question": first[: DOCUMENT + 9] + random_ids(20, 4),
        "a branch inside": first[:900] + random_ids(60, 5),
    }
    answers = {tuple(answered.ids)}
    with SnapshotStore.open(folder, 1 << 40) as store:
        for what, prompt in prompts.items():
            live = turn(stayed, prompt, conversation="a", tokens=ANSWER, **how)
            back = turn(again, prompt, conversation=what, snapshots=store, tokens=ANSWER, **how)
            assert back.ids == live.ids, (mode, what)
            assert back.stats.restored_tokens == back.stats.reused_tokens, (mode, what)
            assert back.stats.restored_tokens + back.stats.computed_tokens == len(prompt), (mode, what)
            if not stayed.blocks.exact_only or what != "a branch inside":  # with windows it starts over
                assert back.stats.restored_tokens > DOCUMENT // 2, (mode, what)
            # A checkpoint brings the last KV pages, which are a block by now.
            assert same_bytes(again, store, what) >= back.stats.restored_tokens // 128 - 3, (mode, what)
            answers.add(tuple(back.ids))
            again.unload(what)
            stayed.unload("a")
            turn(stayed, first, conversation="a", checkpoints=[DOCUMENT], tokens=ANSWER, **how)
    assert len(answers) > 2  # a model that says the same to everything would show nothing
    for engine in (stayed, again):
        engine.unload("a")
        assert engine.cache.exact.free == engine.cache.exact.size
        assert engine.cache.packed.free == engine.cache.packed.size


def same_bytes(engine: Engine, store: SnapshotStore, conversation: str) -> int:
    """How many blocks of a conversation are stored; each holds what lies in memory now."""
    found = 0
    for row in engine.export(conversation, engine.live_tokens(conversation)):
        stored = store.read_block(row.key) if isinstance(row, SnapshotBlock) else None
        if stored is not None:
            one, other = open_payload(stored), open_payload(row.payload)
            assert one.header == other.header
            alike = one.data == other.data
            assert alike, row.first_token
            found += 1
    return found


@pytest.mark.parametrize("kv_format", FORMATS)
def test_every_format_and_mode(tmp_path, monkeypatch, kv_format):
    stayed, again = engines(tmp_path, monkeypatch, kv_format=kv_format)
    if ON_CARD:
        assert stayed.graphs is not None
        assert again.cache.memory.page_table(again.cache.packs) is not None  # rows are placed in one launch
    for mode in MODES:
        (tmp_path / mode).mkdir()
        compare(stayed, again, tmp_path / mode, mode)


@pytest.mark.parametrize("decode_weights", ["fp8", "int4"])
def test_packed_weights(tmp_path, monkeypatch, decode_weights):
    stayed, again = engines(tmp_path, monkeypatch, kv_format="k4v4", decode_weights=decode_weights)
    compare(stayed, again, tmp_path, "balanced")


@pytest.mark.parametrize("kv_format", ["bf16", "fp8", "k4v4"])
def test_two_pools(tmp_path, monkeypatch, kv_format):
    stayed, again = engines(tmp_path, monkeypatch, kv_format=kv_format, sparsity=TWO_POOLS)
    assert isinstance(again.cache, TwoPoolCache)
    for mode in ("balanced", "fast"):
        (tmp_path / mode).mkdir()
        compare(stayed, again, tmp_path / mode, mode)
