"""Patterns made of others: by the class of a head, and by layer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from engine.patterns.context import BlockContext
from engine.patterns.errors import need
from engine.patterns.pattern import Pattern, distinct
from engine.patterns.scorer import Scorer


@dataclass(frozen=True)
class PerHead(Pattern):
    """One pattern for retrieval heads and one for streaming heads (`context.streaming`)."""

    retrieval: Pattern
    streaming: Pattern
    built_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field in ("retrieval", "streaming"):
            need(isinstance(getattr(self, field), Pattern), field, getattr(self, field), "a pattern")

    def mask(self, context: BlockContext) -> torch.Tensor:
        if context.streaming is None:
            return self.retrieval.listed(context)
        streaming = self.streaming.listed(context)
        retrieval = self.retrieval.listed(replace(context, choosing=~context.streaming))
        return torch.where(context.streaming[:, None, None], streaming, retrieval)

    def scorers(self) -> tuple[Scorer, ...]:
        return distinct((*self.retrieval.scorers(), *self.streaming.scorers()))

    def is_dense(self, length: int) -> bool:
        return self.retrieval.is_dense(length) and self.streaming.is_dense(length)


@dataclass(frozen=True)
class PerLayer(Pattern):
    """`layers`: (layer, pattern) pairs, or a dict; `rest`: the pattern of all other layers."""

    layers: tuple[tuple[int, Pattern], ...] | Mapping[int, Pattern]
    rest: Pattern
    built_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = dict(self.layers)
        ok = all(isinstance(layer, int) and layer >= 0 and isinstance(p, Pattern) for layer, p in given.items())
        need(ok and bool(given), "layers", self.layers, "a pattern for one or more layers, numbered from 0")
        need(isinstance(self.rest, Pattern), "rest", self.rest, "a pattern")
        object.__setattr__(self, "layers", tuple(sorted(given.items(), key=lambda item: item[0])))

    def of(self, layer: int) -> Pattern:
        """The pattern of one layer."""
        return dict(self.layers).get(layer, self.rest)

    def mask(self, context: BlockContext) -> torch.Tensor:
        return self.of(context.layer).listed(context)

    def scorers(self) -> tuple[Scorer, ...]:
        parts = (*dict(self.layers).values(), self.rest)
        return distinct(scorer for part in parts for scorer in part.scorers())

    def is_dense(self, length: int) -> bool:
        return all(part.is_dense(length) for part in (*dict(self.layers).values(), self.rest))
