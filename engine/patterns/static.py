"""Patterns that depend on positions alone."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.patterns.context import BlockContext
from engine.patterns.errors import need, need_tokens
from engine.patterns.pattern import Pattern
from kernels.block_index import PAGE


@dataclass(frozen=True)
class Dense(Pattern):
    """Everything."""

    built_in: ClassVar[bool] = True

    def mask(self, context: BlockContext) -> torch.Tensor:
        return context.all_heads(context.blocks.causal)

    def is_dense(self, length: int) -> bool:
        return True


@dataclass(frozen=True)
class Sinks(Pattern):
    """The first `tokens` tokens of the sequence."""

    tokens: int = 64
    built_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        need_tokens("tokens", self.tokens, 1)

    def mask(self, context: BlockContext) -> torch.Tensor:
        return context.all_heads(context.blocks.oldest(self.tokens))

    def is_dense(self, length: int) -> bool:
        return length <= self.tokens


@dataclass(frozen=True)
class SlidingWindow(Pattern):
    """For each query at least the newest `tokens` tokens, itself included."""

    tokens: int
    built_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        need_tokens("tokens", self.tokens, 1)

    def mask(self, context: BlockContext) -> torch.Tensor:
        return context.all_heads(context.blocks.newest(self.tokens))

    def is_dense(self, length: int) -> bool:
        return length <= self.tokens


@dataclass(frozen=True)
class Streaming(Pattern):
    """What a streaming head reads: the first `sink` tokens and the newest `local` ones (StreamingLLM)."""

    sink: int = 64
    local: int = 256
    built_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        need_tokens("sink", self.sink, 0)
        need_tokens("local", self.local, 1)

    def mask(self, context: BlockContext) -> torch.Tensor:
        blocks = context.blocks
        sink, local = self.sink, self.local
        return context.all_heads(
            blocks.once(("streaming", sink, local), lambda: blocks.oldest(sink) | blocks.newest(local))
        )

    def is_dense(self, length: int) -> bool:
        return length <= self.local


@dataclass(frozen=True)
class GlobalTokens(Pattern):
    """Tokens at fixed positions, which every later query reads (Longformer); those still to come are none yet."""

    positions: tuple[int, ...]
    built_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = self.positions
        ok = isinstance(given, tuple | list | range) and len(given) > 0
        ok = ok and all(isinstance(at, int) and not isinstance(at, bool) and at >= 0 for at in given)
        need(ok, "positions", given, "one or more positions from 0 on")
        object.__setattr__(self, "positions", tuple(sorted(set(given))))

    def mask(self, context: BlockContext) -> torch.Tensor:
        blocks = context.blocks

        def make() -> torch.Tensor:
            pages = torch.tensor(sorted({at // PAGE for at in self.positions}), device=context.first.device)
            return blocks.causal & torch.isin(blocks.page, pages)

        return context.all_heads(blocks.once(("global", self.positions), make))


@dataclass(frozen=True)
class DenseUpTo(Pattern):
    """Everything, for query blocks that end within the first `tokens` tokens; nothing but itself for later ones."""

    tokens: int
    built_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        need_tokens("tokens", self.tokens, 1)

    def mask(self, context: BlockContext) -> torch.Tensor:
        return context.all_heads(context.blocks.causal & (context.end <= self.tokens)[:, None])

    def is_dense(self, length: int) -> bool:
        return length <= self.tokens


@dataclass(frozen=True)
class QuestionTail(Pattern):
    """Everything, for query blocks that reach into the prompt's question (`context.tail`): there retrieval happens."""

    built_in: ClassVar[bool] = True

    def mask(self, context: BlockContext) -> torch.Tensor:
        tail = context.length if context.tail is None else context.tail
        return context.all_heads(context.blocks.causal & (context.end > tail)[:, None])
