"""Helpers of the engine tests: tiny engines, all logits of a prompt, a snapshot store in a dictionary, one turn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine import (
    Checkpoint,
    Done,
    Engine,
    EngineConfig,
    GenerationStats,
    Prefilled,
    Reused,
    Sampling,
    SnapshotBlock,
    SnapshotCheckpoint,
    Token,
)
from engine.cache import PAGE, KvCache
from engine.cache import Sequence as KvSequence
from engine.decode import decode_token
from engine.patterns import Sparsity
from engine.prefill import prefill_chunk
from tests.engine.tiny_models import make_model, save_folder

SPARSE_STEPS = Sparsity(budget=512, ratio=0.0, reading_budget=1024, crossover=0)


def tiny_engine(folder: Path, family: str = "llama", *, model: Any = None, **config: Any) -> Engine:
    """An engine on a tiny random model, one thread, exact float32 unless told otherwise."""
    save_folder(model if model is not None else make_model(family, max_position=2048), folder)
    settings = {"kv_format": "f32", "decode_weights": "f32", "threads": 1} | config
    return Engine.load(EngineConfig(folder, **settings))


def all_logits(engine: Engine, ids: Sequence[int], chunk: int, decoded: int = 0) -> torch.Tensor:
    """Logits [t, vocab] at every position: the last `decoded` through decode, the others by prefill in chunks."""
    cache, sequence = KvCache(engine.model, engine.kv_format, -(-len(ids) // PAGE), 64), KvSequence()
    cache.prepare(sequence, len(ids))
    rows = []
    with torch.inference_mode():
        split = len(ids) - decoded
        for first in range(0, split, chunk):
            part = ids[first : min(first + chunk, split)]
            rows.append(
                engine.decoder.logits(prefill_chunk(engine.decoder, cache, sequence, part, lambda: None, kv_only=False))
            )
        for token in ids[split:]:
            rows.append(decode_token(engine.decoder, cache, sequence, token, lambda: None)[None])
    return torch.cat(rows)


def error_ratio(got: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS of the difference divided by RMS of what was expected."""
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@dataclass
class Turned:
    """What one turn yielded."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    reused: Reused | None = None
    prefilled: list[Prefilled] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    @property
    def stats(self) -> GenerationStats:
        assert isinstance(self.events[-1], Done)
        return self.events[-1].stats


def turn(
    engine: Engine, ids: Sequence[int], *, save_to: "Store | None" = None, tokens: int = 12, **options: Any
) -> Turned:
    """Run one turn to its end; with `save_to`, export at each checkpoint and after the answer."""
    result = Turned()
    sampling = options.pop("sampling", Sampling(max_tokens=tokens))
    name = options.get("conversation", "")
    for event in engine.generate(ids, sampling, **options):
        result.events.append(event)
        match event:
            case Reused():
                result.reused = event
            case Prefilled():
                result.prefilled.append(event)
            case Checkpoint():
                result.checkpoints.append(event.tokens)
                if save_to is not None:
                    save_to.put(engine.export(name, event.tokens, save_to.rows))
            case Token():
                result.ids.append(event.id)
                result.text += event.text
    if save_to is not None:
        save_to.put(engine.export(name, engine.live_tokens(name), save_to.rows))
    return result


class Store:
    """A SnapshotReader over a dictionary, with a record of what was read."""

    def __init__(self) -> None:
        self.rows: dict[str, SnapshotBlock | SnapshotCheckpoint] = {}
        self.payloads: dict[str, bytes | None] = {}
        self.read: list[str] = []

    def put(self, rows: Iterable[SnapshotBlock | SnapshotCheckpoint]) -> None:
        for row in rows:
            self.rows[row.key] = row
            self.payloads[row.key] = row.payload

    def known_blocks(self, keys: Sequence[str]) -> int:
        known = [isinstance(self.rows.get(key), SnapshotBlock) for key in keys]
        return known.index(False) if False in known else len(known)

    def read_block(self, key: str) -> bytes | None:
        self.read.append(key)
        return self.payloads.get(key)

    def blocks_after(self, parent: str) -> list[tuple[str, tuple[int, ...]]]:
        rows = (row for row in self.rows.values() if isinstance(row, SnapshotBlock))
        return [(row.key, row.token_ids) for row in rows if row.parent == parent]

    def checkpoints(self, parents: Sequence[str]) -> list[tuple[str, str, tuple[int, ...]]]:
        rows = (row for row in self.rows.values() if isinstance(row, SnapshotCheckpoint))
        return [(row.key, row.parent, row.token_ids) for row in rows if row.parent in parents]

    read_checkpoint = read_block


def random_ids(count: int, seed: int = 0, vocab: int = 480) -> list[int]:
    """Token ids without the tiny tokenizer's control tokens."""
    return torch.randint(3, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
