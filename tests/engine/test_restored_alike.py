"""Restored and never left give the same greedy tokens: every KV format, reading and answering policy, branch and edit.

And what each part of the fingerprint is for: with any of it changed, nothing that was stored is used.
CI takes a sample of the formats, UNABRIDGED_ALL_FORMATS=1 all of them.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, Sparsity
from engine.config import RopeScaling
from engine.engine import _fingerprint
from engine.kv_memory import kv_formats
from engine.load import load_model
from tests.engine.tiny_models import make_model
from tests.engine.tools import Store, random_ids, tiny_engine, turn

MODES = ("exact", "balanced", "fast")
ALL = [(name, mode) for name in kv_formats() if name != "f32" for mode in MODES]
SOME = [("fp8", "balanced"), ("k3v2", "fast")]
SPARSE = Sparsity(budget=512, ratio=0.0, reading_budget=384, crossover=0)
GATES = ((0.9, 0.1), (0.9, 0.8), (0.1, 0.9), (0.9, 0.9))
TWO_POOLS = replace(SPARSE, streaming_ratio=0.5, streaming_local=256)
DOCUMENT = 1100


def sparsity_of(mode: str, usual: Sparsity) -> Sparsity:
    """Budgets small enough to matter here, the smaller ones for fast."""
    return replace(usual, budget=384, reading_budget=256) if mode == "fast" else usual


def pair(folder: Path, monkeypatch: pytest.MonkeyPatch, layers: int = 4, **options) -> list[Engine]:
    """Two engines of one model, as before and after a restart; blocks of two pages."""
    monkeypatch.setattr("engine.engine.block_pages", lambda bytes_per_token: 2)
    model = make_model("llama", layers=layers, max_position=4096)
    settings: dict[str, Any] = {"sparsity": SPARSE} | options
    return [tiny_engine(folder, model=model, prefill_chunk=128, **settings) for _ in range(2)]


def compare(engines: list[Engine], mode: str) -> None:
    """A turn, its continuation, a branch from the document, an edited question, a branch inside of the document."""
    how: dict[str, Any] = {"mode": mode, "reading": mode}
    stayed, again = engines
    store, first = Store(), random_ids(DOCUMENT) + random_ids(30, 1)
    answered = turn(stayed, first, conversation="a", checkpoints=[DOCUMENT], save_to=store, tokens=24, **how)
    prompts = {
        "next turn": first + answered.ids + random_ids(25, 2),
        "another question": first[:DOCUMENT] + random_ids(35, 3),
        "an edited question": first[: DOCUMENT + 9] + random_ids(20, 4),
        "a branch inside": first[:700] + random_ids(60, 5),
    }
    for what, prompt in prompts.items():
        live = turn(stayed, prompt, conversation="a", tokens=24, **how)
        back = turn(again, prompt, conversation=what, snapshots=store, tokens=24, **how)
        again.unload(what)
        assert back.ids == live.ids, what
        assert back.stats.restored_tokens == back.stats.reused_tokens, what
        assert back.stats.restored_tokens + back.stats.computed_tokens == len(prompt), what
        if not stayed.blocks.exact_only or what != "a branch inside":  # with windows it starts over
            assert back.stats.restored_tokens > 0, what
        stayed.unload("a")
        turn(stayed, first, conversation="a", checkpoints=[DOCUMENT], tokens=24, **how)
    for engine in engines:
        for name in ("a", *prompts):
            engine.unload(name)
        assert engine.cache.exact.free == engine.cache.exact.size
        assert engine.cache.packed.free == engine.cache.packed.size


@pytest.mark.parametrize(("kv_format", "mode"), ALL if os.environ.get("UNABRIDGED_ALL_FORMATS") else SOME)
def test_every_format_and_policy(tmp_path, monkeypatch, kv_format, mode):
    compare(pair(tmp_path, monkeypatch, kv_format=kv_format, gates=GATES, sparsity=sparsity_of(mode, SPARSE)), mode)


@pytest.mark.skipif(not os.environ.get("UNABRIDGED_ALL_FORMATS"), reason="test_wide_keys.py has a shorter one")
def test_layers_with_wide_keys(tmp_path, monkeypatch):
    compare(pair(tmp_path, monkeypatch, layers=5, kv_format="k3v3", wide_key_layers=(2,)), "balanced")


@pytest.mark.parametrize(
    ("kv_format", "mode"),
    [found for found in ALL if found[1] != "exact"] if os.environ.get("UNABRIDGED_ALL_FORMATS") else [("k8v4", "fast")],
)
def test_two_pools(tmp_path, monkeypatch, kv_format, mode):
    options: dict[str, Any] = {"kv_format": kv_format, "gates": GATES, "sparsity": sparsity_of(mode, TWO_POOLS)}
    engines = pair(tmp_path, monkeypatch, **options)
    assert engines[0].blocks.exact_only
    compare(engines, mode)


def test_every_part_of_the_fingerprint_counts(tmp_path, monkeypatch):
    base = tiny_engine(tmp_path / "m", kv_format="bf16", prefill_chunk=128)
    store, ids = Store(), random_ids(600)
    turn(base, ids, conversation="a", save_to=store)
    loaded = load_model(base.config, lambda step, share: None)
    assert _fingerprint(base.config, loaded) == base.fingerprint

    def other(**changes) -> str:
        return _fingerprint(base.config, replace(loaded, **changes))

    decoder = loaded.decoder
    prints = {
        "weights and tokenizer": other(source_fingerprint="another"),
        "chunk grid": other(chunk=64),
        "decode weights": other(decode_weights="int8"),
        "kernels": other(profile=replace(loaded.profile, kernels="others")),
        "device": other(profile=replace(loaded.profile, device="cuda:0")),
        "scorers": other(scorers=()),
    }
    monkeypatch.setattr("engine.engine.KERNEL_VERSION", 999)
    prints["kernel version"] = other()
    monkeypatch.undo()
    monkeypatch.setattr("engine.engine.PAGE", 128)
    prints["page"] = other()
    monkeypatch.undo()
    for name, value in (("inv_freq", decoder.rope.inv_freq * 1.001), ("amplitude", decoder.rope.amplitude * 1.1)):
        prints[name] = other(decoder=replace(decoder, rope=replace(decoder.rope, **{name: value})))
    prints["kv format"] = tiny_engine(tmp_path / "m", kv_format="k8v8", prefill_chunk=128).fingerprint
    scaled = RopeScaling("linear", 2.0)
    prints["rope scaling"] = tiny_engine(
        tmp_path / "m", kv_format="bf16", prefill_chunk=128, rope_scaling=scaled
    ).fingerprint
    prints["other weights"] = tiny_engine(
        tmp_path / "n", model=make_model("llama", max_position=2048, seed=7), kv_format="bf16", prefill_chunk=128
    ).fingerprint
    assert len({base.fingerprint, *prints.values()}) == len(prints) + 1
    for what, value in prints.items():
        monkeypatch.setattr(base, "fingerprint", value)
        base.unload("a")
        result = turn(base, ids, conversation="a", snapshots=store)
        assert (what, result.stats.restored_tokens) == (what, 0)


def test_the_reading_policy_and_gates_are_part_of_every_key(tmp_path, monkeypatch):
    engines = pair(tmp_path, monkeypatch, kv_format="bf16", gates=GATES)
    store, ids = Store(), random_ids(DOCUMENT)
    turn(engines[0], ids, conversation="a", save_to=store, mode="fast", reading="fast")
    same = turn(engines[1], ids, conversation="a", snapshots=store, mode="exact", reading="fast")
    assert same.stats.restored_tokens == DOCUMENT // 128 * 128
    dense = engines[1].policy("fast").dense_until  # up to there all read alike
    assert 0 < dense < DOCUMENT * 2 // 3
    engines[1].unload("a")
    other = turn(engines[1], ids, conversation="a", snapshots=store, reading="exact")
    assert other.stats.restored_tokens <= dense
    wider = pair(tmp_path, monkeypatch, kv_format="bf16", gates=GATES, sparsity=replace(SPARSE, reading_budget=448))[0]
    other = turn(wider, ids, conversation="a", snapshots=store, mode="fast", reading="fast")
    assert other.stats.restored_tokens <= dense
    flipped = tuple(tuple(1 - gate for gate in layer) for layer in GATES)
    gated = tiny_engine(
        tmp_path, model=make_model("llama", layers=4, max_position=4096), prefill_chunk=128, sparsity=SPARSE,
        kv_format="bf16", gates=flipped,
    )  # fmt: skip
    other = turn(gated, ids, conversation="a", snapshots=store, mode="fast", reading="fast")
    assert other.stats.restored_tokens <= gated.policy("fast").dense_until
