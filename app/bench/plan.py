"""What a benchmark is to measure, checked before a card is touched."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import check_layers
from engine.random_weights import SHAPES

WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.53}
WHAT = ("tpot", "ttft", "restore", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure on one shape with one kind of weights. `peer_seconds`: for transformers, in all.
    `wide_key_layers`: as in EngineConfig."""

    shape: str
    weights: str
    lengths: tuple[int, ...]
    what: tuple[str, ...]
    modes: tuple[str, ...]
    formats: tuple[str, ...]
    chunk: int | None = None
    peer_seconds: float = 60
    wide_key_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field, names in (("what", WHAT), ("modes", ("exact", "balanced", "fast"))):
            wrong = [name for name in getattr(self, field) if name not in names]
            if wrong:
                raise ValueError(f"{field}: got {wrong[0]!r}, need {', '.join(names)}")
        for field, value, names in (("shape", self.shape, SHAPES), ("weights", self.weights, WEIGHT_BYTES)):
            if value not in names:
                raise ValueError(f"{field}: got {value!r}, need {', '.join(names)}")
        check_layers("wide_key_layers", self.wide_key_layers, SHAPES[self.shape].layers)
        wrong_length = [length for length in self.lengths if length < 128 or length % 64]
        if wrong_length:
            raise ValueError(f"lengths: got {wrong_length[0]}, need multiples of 64 from 128")
