"""The pattern that selects: the pages with the highest scores, within a budget."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch

from engine.patterns.context import BlockContext, Summary
from engine.patterns.errors import PatternError, need, need_tokens
from engine.patterns.pattern import Pattern
from engine.patterns.scorer import OwnScorer, Scorer, resolve_scorer
from kernels.block_index import PAGE
from kernels.page_selection import select_pages


@dataclass(frozen=True, repr=False)
class TopPages(Pattern):
    """For each query block and KV head `budget` tokens, in whole KV pages: the best ones by `score`. Where scores of KV
    heads can be compared, as those of `coarse_keys` in a prompt, the heads of a layer share their budgets.

    Always among them, and counted: the first `sink` tokens, the newest `recent` ones, the block's own pages, and pages
    without a summary. Where there are no more pages than that, everything. `score`: a built-in scorer's name, or an
    own scorer (see engine.patterns.scorer).
    """

    budget: int
    score: Any = "coarse_keys"
    sink: int = 64
    recent: int = 256
    built_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        need_tokens("budget", self.budget, PAGE)
        need_tokens("sink", self.sink, 0)
        need_tokens("recent", self.recent, 1)
        fixed = self.sink + self.recent
        need(self.budget >= fixed, "budget", self.budget, f"at least {fixed}: sink and recent tokens are part of it")
        _ = self.scorer

    @cached_property
    def scorer(self) -> Scorer:
        return resolve_scorer(self.score)

    @property
    def count(self) -> int:
        """The budget in KV pages."""
        return -(-self.budget // PAGE)

    @property
    def name(self) -> str:
        return "TopPages" if self.scorer.built_in else f"TopPages({self.scorer.name})"

    @property
    def key(self) -> str:
        return f"TopPages@2({self.budget}, {self.scorer.key}, {self.sink}, {self.recent})"

    def scorers(self) -> tuple[Scorer, ...]:
        return (self.scorer,)

    def is_dense(self, length: int) -> bool:
        return -(-length // PAGE) <= self.count

    def mask(self, context: BlockContext) -> torch.Tensor:
        blocks, scorer = context.blocks, self.scorer
        if self.is_dense(context.length):
            return context.all_heads(blocks.causal)
        queries, summary = self._what_to_score(context)
        known = (summary[0] if isinstance(summary, tuple) else summary).shape[1]
        forced = blocks.once(("top", self.sink, self.recent), lambda: self._forced(context))
        if context.tail is not None:  # a prompt
            weighed = scorer.weighed(queries, summary, blocks.causal[:, :known], forced[:, :known], self.count)
            if weighed is not None:
                return _select_together(*weighed, known, forced, blocks.causal, self.count, context.choosing)
        scores = scorer.score(queries, summary)
        if isinstance(scorer, OwnScorer):
            scorer.check_finite(scores, blocks.causal[:, :known])
        return select_pages(scores, forced, blocks.causal, self.count)

    def _what_to_score(self, context: BlockContext) -> tuple[torch.Tensor, Summary]:
        """The queries, and what the scorer keeps of the pages. PatternError where there is none of either."""
        summary: Summary | None = context.summaries.get(self.scorer.summary)
        if summary is None or context.queries is None:
            what = "queries" if summary is not None else f"summaries {self.scorer.summary!r} of the KV pages"
            raise PatternError(
                self.name, f"there are no {what} here.", f"It selects by {self.scorer.name}, which needs them."
            )
        pages = (summary[0] if isinstance(summary, tuple) else summary).shape[1]
        if pages > context.pages:
            hint = f"Give at most the sequence's own {context.pages}."
            raise PatternError(self.name, f"there are summaries of {pages} KV pages.", hint)
        return context.queries, summary

    def _forced(self, context: BlockContext) -> torch.Tensor:
        blocks = context.blocks
        return blocks.oldest(self.sink) | blocks.newest(self.recent) | blocks.own

    def __repr__(self) -> str:
        score = repr(self.score) if self.scorer.built_in else self.scorer.name
        return f"TopPages({self.budget}, score={score}, sink={self.sink}, recent={self.recent})"


def _select_together(
    pages: torch.Tensor,
    scores: torch.Tensor,
    known: int,
    forced: torch.Tensor,
    allowed: torch.Tensor,
    count: int,
    choosing: torch.Tensor | None,
) -> torch.Tensor:
    """As `select_pages` of `scores` of `pages` [kv_heads, blocks, n], with `count` pages a KV head on average: the best
    of all heads together, or of those in `choosing`. The first `known` pages have a summary, the others are forced.
    Does not wait for a device."""
    kv_heads, listed = pages.shape[0], pages.shape[2]
    forced = (forced | (torch.arange(allowed.shape[1], device=allowed.device) >= known)) & allowed
    free = ~forced.expand(kv_heads, -1, -1).gather(2, pages)
    if choosing is not None:
        free &= choosing[:, None, None]
    row = scores.masked_fill(~free, -math.inf).transpose(0, 1).flatten(1)  # [blocks, kv_heads * n]
    order = row.sort(dim=1, descending=True, stable=True).indices
    wanted = (count - forced.sum(1, keepdim=True)).clamp_(min=0) * (kv_heads if choosing is None else choosing.sum())
    best = torch.arange(row.shape[1], device=row.device) < wanted
    chosen = torch.zeros_like(row, dtype=torch.bool).scatter_(1, order, best) & (row > -math.inf)
    selected = torch.zeros(kv_heads, *allowed.shape, dtype=torch.bool, device=allowed.device)
    selected.scatter_(2, pages, chosen.unflatten(1, (kv_heads, listed)).transpose(0, 1))
    return selected | forced
