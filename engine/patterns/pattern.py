"""The base of all attention patterns, and their union.

A pattern says which KV pages each query block reads. `mask` is the rule; `listed` is what attention uses: the rule,
checked if it is not one of ours, and the block's own pages, without which a query could see nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from engine.patterns.context import BlockContext
from engine.patterns.errors import PatternError
from engine.patterns.identity import identity
from kernels.block_index import BlockIndex, from_mask

if TYPE_CHECKING:
    from engine.patterns.scorer import Scorer


class Pattern(ABC):
    """Subclasses give `mask`, and a `version` that changes whenever the mask would."""

    version: ClassVar[int] = 1
    built_in: ClassVar[bool] = False

    @abstractmethod
    def mask(self, context: BlockContext) -> torch.Tensor:
        """bool [kv_heads, blocks, pages]: pages to read. None may lie after the block's last query."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def key(self) -> str:
        """Tells this pattern from every other one whose pages may differ, in every run of the program."""
        return identity(self, self.name, self.version)

    def scorers(self) -> "tuple[Scorer, ...]":
        """The scorers whose summaries the mask needs; none if it depends on positions alone."""
        return ()

    def is_dense(self, length: int) -> bool:
        """Whether a sequence of `length` tokens is surely read whole, by all of its queries and in every layer."""
        return False

    def listed(self, context: BlockContext) -> torch.Tensor:
        """bool [kv_heads, blocks, pages], checked, with the blocks' own pages. PatternError names a wrong pattern."""
        if self.built_in:
            return self.mask(context) | context.blocks.own
        try:
            mask = self.mask(context)
        except PatternError:
            raise
        except Exception as error:
            hint = "Its mask must work for every context; the Python error is attached."
            raise PatternError(self.name, f"mask failed with {type(error).__name__}: {error}", hint) from error
        check_mask(mask, context, self.name)
        return mask | context.blocks.own

    def index(self, context: BlockContext) -> BlockIndex:
        """The pages that attention reads."""
        return from_mask(self.listed(context))

    def __or__(self, other: "Pattern") -> "Union":
        if not isinstance(other, Pattern):
            return NotImplemented
        return Union((*_parts(self), *_parts(other)))


@dataclass(frozen=True, repr=False)
class Union(Pattern):
    """What any of `parts` lists; written with `|`."""

    parts: tuple[Pattern, ...]
    built_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ok = isinstance(self.parts, tuple) and self.parts and all(isinstance(part, Pattern) for part in self.parts)
        if not ok:
            raise ValueError(f"parts: got {self.parts!r}, need a tuple of patterns")

    def mask(self, context: BlockContext) -> torch.Tensor:
        mask = self.parts[0].listed(context)
        for part in self.parts[1:]:
            mask = mask | part.listed(context)
        return mask

    def scorers(self) -> "tuple[Scorer, ...]":
        return distinct(scorer for part in self.parts for scorer in part.scorers())

    def is_dense(self, length: int) -> bool:
        return any(part.is_dense(length) for part in self.parts)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))


def check_mask(mask: object, context: BlockContext, name: str) -> None:
    """PatternError if `mask` is not one that attention can follow. Waits for the device."""
    shape = [context.kv_heads, context.first.shape[0], context.pages]
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or list(mask.shape) != shape:
        got = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise PatternError(
            name, f"its mask is {got.removeprefix('torch.')}.", f"Return bool [kv_heads, blocks, pages], here {shape}."
        )
    if mask.device != context.first.device:
        raise PatternError(
            name, f"its mask is on {mask.device}.", f"Make its tensors on the context's device, {context.first.device}."
        )
    later = mask & ~context.blocks.causal
    if bool(later.any()):
        head, block, page = later.nonzero()[0].tolist()
        last = (int(context.end[block]) - 1) // 64
        raise PatternError(
            name,
            f"KV page {page} is listed for query block {block} of KV head {head}, which ends in page {last}.",
            "A query may only see what came before it: & context.blocks.causal.",
        )
    empty = ~mask.any(dim=-1)
    if bool(empty.any()):
        head, block = empty.nonzero()[0].tolist()
        raise PatternError(
            name,
            f"no page is listed for query block {block} of KV head {head}.",
            "List at least the block's own pages: | context.blocks.own.",
        )


def distinct(scorers: "Iterable[Scorer]") -> "tuple[Scorer, ...]":
    """Without repetitions, by their keys."""
    return tuple({scorer.key: scorer for scorer in scorers}.values())


def _parts(pattern: Pattern) -> tuple[Pattern, ...]:
    return pattern.parts if isinstance(pattern, Union) else (pattern,)
