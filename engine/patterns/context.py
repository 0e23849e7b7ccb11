"""What a pattern sees: where the query blocks lie, and for one layer the queries and the summaries of the KV pages.

`QueryBlocks` is made once for a decode step or a prefill chunk and serves all its layers; masks that depend on
positions alone are computed once for all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch

from kernels.block_index import PAGE

Summary = torch.Tensor | tuple[torch.Tensor, ...]
"""What a scorer keeps of KV pages: tensors [kv_heads, pages, ...]."""

SAMPLED_ROWS = 16  # query positions of a prefill block that its pages are chosen by


@dataclass(frozen=True)
class QueryBlocks:
    """`first` and `end`, int64 [blocks]: positions of each block's first query and behind its last one.

    `length`: tokens of the sequence, these queries included.
    """

    first: torch.Tensor
    end: torch.Tensor
    length: int
    _masks: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def decode(cls, position: int, device: torch.device | str = "cpu") -> "QueryBlocks":
        """The one query at `position`, the newest token."""
        return cls.chunk(position, position + 1, 1, device)

    @classmethod
    def chunk(cls, start: int, end: int, size: int, device: torch.device | str = "cpu") -> "QueryBlocks":
        """Queries from `start` to `end`, cut at absolute multiples of `size`."""
        first = torch.arange(start - start % size, end, size, device=device)
        return cls(first.clamp(min=start), (first + size).clamp(max=end), end)

    @property
    def pages(self) -> int:
        """KV pages of the sequence."""
        return -(-self.length // PAGE)

    @cached_property
    def causal(self) -> torch.Tensor:
        """bool [blocks, pages]: pages up to the one in which the block ends."""
        return self.page <= (self.end[:, None] - 1) // PAGE

    @cached_property
    def own(self) -> torch.Tensor:
        """bool [blocks, pages]: the pages in which the block itself lies."""
        return self.causal & (self.page >= self.first[:, None] // PAGE)

    def oldest(self, tokens: int) -> torch.Tensor:
        """bool [blocks, pages]: pages with any of the sequence's first `tokens` tokens."""
        return self.once(("oldest", tokens), lambda: self.causal & (self.page < -(-tokens // PAGE)))

    def newest(self, tokens: int) -> torch.Tensor:
        """bool [blocks, pages]: pages with any of the `tokens` tokens that end with one of the block's queries."""
        back = max(tokens - 1, 0)
        return self.once(
            ("newest", tokens), lambda: self.causal & (self.page >= (self.first[:, None] - back).clamp(min=0) // PAGE)
        )

    def once(self, key: tuple[object, ...], make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """`make()`, called once for each key."""
        if key not in self._masks:
            self._masks[key] = make()
        return self._masks[key]

    @cached_property
    def page(self) -> torch.Tensor:
        """int64 [pages]"""
        return torch.arange(self.pages, device=self.first.device)


@dataclass(frozen=True, slots=True)
class BlockContext:
    """One layer's view of the query blocks.

    `queries`: float32 [kv_heads, blocks, rows, d], rotated; rows are the query heads of the KV head, for one position
    in decode and for sampled ones in prefill (`sample_queries`). None where no pattern asks for them.
    `summaries`: by a scorer's `summary`, tensors [kv_heads, summarized pages, ...]. The last pages of a sequence, which
    are not complete, need none; a page without one is always listed by patterns that select.
    `streaming`: bool [kv_heads], None if no head streams. `choosing`: bool [kv_heads], whose choice of pages is used;
    None: every head's. `tail`: where the prompt's question begins, None in decode.
    """

    blocks: QueryBlocks
    kv_heads: int
    layer: int = 0
    queries: torch.Tensor | None = None
    summaries: Mapping[str, Summary] = field(default_factory=dict)
    streaming: torch.Tensor | None = None
    tail: int | None = None
    choosing: torch.Tensor | None = None

    @property
    def first(self) -> torch.Tensor:
        return self.blocks.first

    @property
    def end(self) -> torch.Tensor:
        return self.blocks.end

    @property
    def length(self) -> int:
        return self.blocks.length

    @property
    def pages(self) -> int:
        return self.blocks.pages

    def all_heads(self, mask: torch.Tensor) -> torch.Tensor:
        """bool [blocks, pages] -> [kv_heads, blocks, pages]."""
        return mask.expand(self.kv_heads, -1, -1)


def block_edges(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """(first position, end) of the blocks that `QueryBlocks.chunk` makes."""
    cuts = [start, *range(start - start % size + size, end, size), end]
    return list(pairwise(cuts))


def decode_queries(q: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """q [heads, d] of the newest token -> float32 [kv_heads, 1, group, d]."""
    return q.float().reshape(kv_heads, 1, -1, q.shape[-1])


def sample_queries(q: torch.Tensor, blocks: QueryBlocks, kv_heads: int, rows: int = SAMPLED_ROWS) -> torch.Tensor:
    """q [t, heads, d] of the chunk -> float32 [kv_heads, blocks, rows * group, d]: positions spread over each block."""
    start = blocks.length - q.shape[0]
    step = torch.arange(1, rows + 1, device=q.device)
    at = blocks.first[:, None] - start + (blocks.end - blocks.first)[:, None] * step // rows - 1
    picked = q[at.clamp(min=0)].float()  # a block with fewer queries than rows repeats some, which changes no maximum
    return picked.unflatten(2, (kv_heads, -1)).permute(2, 0, 1, 3, 4).flatten(2, 3)


def tail_start(prompt_tokens: int, documents_end: int = 0, longest: int = 512) -> int:
    """Where the question's own tokens begin: behind the documents, but at most `longest` tokens before the end."""
    return max(documents_end, prompt_tokens - longest, 0)
