"""The pattern that selects: the pages with the highest scores, within a budget."""

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
        shares = scorer.shares(queries, summary, blocks.causal[:, :known], self.count)
        if shares is not None:
            return _select_together(shares, forced, blocks.causal, self.count)
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


def _select_together(scores: torch.Tensor, forced: torch.Tensor, allowed: torch.Tensor, count: int) -> torch.Tensor:
    """As `select_pages`, with `count` pages a KV head on average: the best of all heads together."""
    kv_heads, pages = scores.shape[0], allowed.shape[1]
    known = scores.shape[2]
    row = torch.nn.functional.pad(scores, (0, pages - known)).transpose(0, 1).flatten(1)[None]
    unscored = torch.arange(pages, device=scores.device) >= known
    chosen = select_pages(row, (forced | unscored).repeat(1, kv_heads), allowed.repeat(1, kv_heads), count * kv_heads)
    return chosen[0].unflatten(1, (kv_heads, pages)).transpose(0, 1)
