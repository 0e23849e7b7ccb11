"""Who reads what: from a mode's name to the pattern of each layer, for reading a prompt and for answering.

`reading` shapes the keys and values themselves, so it belongs to the conversation and its `key` to every KV page.
`answering` is chosen for each question. Both depend on positions alone, never on how often something ran, so batching
and speculation change nothing.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from engine.patterns.combine import PerHead
from engine.patterns.context import SAMPLED_ROWS
from engine.patterns.errors import need, need_tokens
from engine.patterns.pattern import Pattern, distinct
from engine.patterns.registry import MODES, named_pattern
from engine.patterns.scorer import Scorer, resolve_scorer
from engine.patterns.static import Dense, DenseUpTo, QuestionTail, Streaming
from engine.patterns.top_pages import TopPages
from kernels.block_index import PAGE

SINK = 64
RECENT = 256  # tokens at the end that decode always reads
LOCAL = 1024  # tokens before a query block that prefill always reads, if they are at most a quarter of its budget
STREAMING_LOCAL = 8192  # what streaming heads read in prefill
DENSE_BUDGETS = 1.5  # times its reading budget of tokens are read densely: choosing among so few saves nothing
FIRST_LAYERS = 2  # they attend to everything
FIRST_DENSE = 65536  # up to so many tokens,
FIRST_BUDGET = 32768  # and to so many past that
SHARED_FROM = 65536  # positions from here on share the list made at every `reuse_interval`-th,
SHARED_TWICE_FROM = 262144  # and from here on that of every second of these
LARGEST_GATE = 0.5  # of a head that streams
COMPACT_RATIO = 0.25  # from this forced `streaming_ratio` on, streaming heads keep no more than they read,
COMPACT_LOCAL = 1024  # which is then less in prefill too

DENSE = Dense()


@dataclass(frozen=True, slots=True)
class _Mode:
    budget: int
    ratio: float


_BUDGETS = {"balanced": _Mode(4096, 1 / 32), "fast": _Mode(2048, 1 / 64)}


@dataclass(frozen=True, slots=True)
class Sparsity:
    """How sparse `balanced` and `fast` are. None leaves the choice to the mode; lengths are in tokens.

    `budget`: read by a decode step, sink and newest tokens included; or `ratio` of the context if that is more.
    `reading_budget`: read by a query block of the prompt, with its surroundings, from one and a half times as many
    tokens on; by default 2 * `budget` + 1024.
    `crossover`: answers over fewer tokens are dense. `streaming_ratio`: share of KV heads forced to stream; from 25 %
    on they keep sink and newest tokens only (`compact`). `streaming_local`: the newest tokens that they read in
    prefill, and keep then; by default 8192, or 1024 if compact.
    `reuse_interval`: past 64k so many positions share a list, past 256k twice as many; 1: none ever do.
    `score`: a scorer's name or an own scorer. `logical_pages`: tokens of a logical page.
    """

    budget: int | None = None
    ratio: float | None = None
    reading_budget: int | None = None
    crossover: int = 12288
    streaming_ratio: float | None = None
    streaming_local: int | None = None
    reuse_interval: int = 4
    score: Any = "coarse_keys"
    logical_pages: int = 16

    def __post_init__(self) -> None:
        if self.budget is not None:
            need_tokens("budget", self.budget, SINK + RECENT)
        if self.reading_budget is not None:
            need_tokens("reading_budget", self.reading_budget, 2 * PAGE)
        if self.streaming_local is not None:
            need_tokens("streaming_local", self.streaming_local, RECENT)
        need_tokens("crossover", self.crossover, 0)
        for field in ("ratio", "streaming_ratio"):
            value = getattr(self, field)
            ok = value is None or (isinstance(value, int | float) and 0 <= value <= 1)
            need(ok, field, value, "a share from 0 to 1 or None")
        divides = isinstance(self.reuse_interval, int) and self.reuse_interval > 0 and PAGE % self.reuse_interval == 0
        need(divides, "reuse_interval", self.reuse_interval, f"a divisor of {PAGE}")  # sharers lie in one KV page
        try:
            _ = self.scorer
        except ValueError as error:  # from a scorer's point of view it is only `logical`
            raise ValueError(str(error).replace("logical:", "logical_pages:")) from None

    @property
    def compact(self) -> bool:
        """Whether streaming heads keep only what they read."""
        return self.streaming_ratio is not None and self.streaming_ratio >= COMPACT_RATIO

    @property
    def local(self) -> int:
        """What streaming heads read in prefill."""
        return self.streaming_local or (COMPACT_LOCAL if self.compact else STREAMING_LOCAL)

    @property
    def scorer(self) -> Scorer:
        if self.score in ("coarse_keys", "mean_std", "min_max"):
            return replace(resolve_scorer(self.score), logical=self.logical_pages)  # type: ignore[arg-type]
        return resolve_scorer(self.score)


class AttentionPolicy:
    """`mode`: exact, balanced, fast, or the name of a pattern, which is then used as it is in all layers.

    `streaming`: bool [layers, kv_heads], which heads stream (`streaming_heads`); `exact` lets none. ValueError for
    impossible arguments, PatternError for an unknown name.
    """

    def __init__(
        self, mode: str, sparsity: Sparsity | None = None, layers: int = 1, streaming: torch.Tensor | None = None
    ) -> None:
        if streaming is not None:
            ok = streaming.dtype == torch.bool and streaming.ndim == 2 and streaming.shape[0] == layers
            need(ok, "streaming", list(streaming.shape), f"bool [{layers} layers, kv_heads]")
            streaming = None if mode == "exact" or not bool(streaming.any()) else streaming
        self.mode, self.sparsity, self.layers = mode, sparsity or Sparsity(), layers
        self.named = None if mode in MODES else named_pattern(mode)
        self._streaming = streaming
        self.compact = streaming is not None and self.sparsity.compact and self.named is None
        self._scorer = resolve_scorer(self.sparsity.scorer)
        self._top: dict[int, Pattern] = {}
        self._reading = self._reading_patterns()

    def reading(self, layer: int) -> Pattern:
        """What query blocks of the prompt attend to. The question's tokens (`BlockContext.tail`) attend to everything,
        except in streaming heads."""
        return self._reading[layer >= FIRST_LAYERS]

    def answering(self, layer: int, length: int) -> Pattern:
        """What a decode step attends to when the sequence, its own token included, has `length` tokens.

        Where a list is shared, `length` is the one at the position where it was made.
        """
        if self.named is not None:
            return self.named
        budget = self.selected(layer, length)
        return DENSE if budget is None else self._answering(budget)

    def selected(self, layer: int, length: int) -> int | None:
        """The budget in tokens that `answering` of a mode selects by, None where it attends to everything."""
        if self.mode == "exact":
            return None
        budget = self.budget(length)
        if layer < FIRST_LAYERS:
            return None if length <= FIRST_DENSE else max(FIRST_BUDGET, budget)
        return None if length <= budget or length < self.sparsity.crossover else budget

    @cached_property
    def retrieval(self) -> "AttentionPolicy":
        """The same for retrieval heads alone."""
        return AttentionPolicy(self.mode, self.sparsity, self.layers)

    def budget(self, length: int) -> int:
        """Tokens that a decode step over `length` tokens reads, outside the first layers, in whole KV pages."""
        if self.mode not in _BUDGETS:
            return length
        base, ratio = _BUDGETS[self.mode].budget, _BUDGETS[self.mode].ratio
        base = self.sparsity.budget or base
        ratio = ratio if self.sparsity.ratio is None else self.sparsity.ratio
        return math.ceil(max(base, ratio * length) / PAGE) * PAGE

    def selection_position(self, position: int) -> int:
        """At which position the list is made that the query at `position` reads."""
        return position - position % self.sharing(position)

    def sharing(self, position: int) -> int:
        """How many positions share a list, around `position`: a divisor of 64, so that they lie in one KV page."""
        interval = self.sparsity.reuse_interval
        if position < SHARED_FROM or interval == 1:
            return 1
        return interval if position < SHARED_TWICE_FROM else min(2 * interval, PAGE)

    def streaming(self, layer: int) -> torch.Tensor | None:
        """bool [kv_heads], or None if no head streams: for `BlockContext.streaming`."""
        return None if self._streaming is None else self._streaming[layer]

    @property
    def reading_scorers(self) -> tuple[Scorer, ...]:
        """Whose summaries `reading` needs."""
        return distinct(scorer for pattern in self._reading for scorer in pattern.scorers())

    @property
    def answering_scorers(self) -> tuple[Scorer, ...]:
        """Whose summaries `answering` needs."""
        if self.named is not None:
            return self.named.scorers()
        return () if self.mode == "exact" else (self._scorer,)

    @cached_property
    def key(self) -> str:
        """Everything that decides what `reading` computes, as a text that is the same in every run."""
        if self.mode == "exact":
            return "dense"
        patterns = " ; ".join(pattern.key for pattern in self._reading)
        heads = "none" if self._streaming is None else _digest(self._streaming)
        return f"reading@1 {patterns} ; streaming {heads} ; rows {SAMPLED_ROWS}"

    @cached_property
    def dense_until(self) -> float:
        """So many tokens `reading` surely computes as `exact` does, whatever follows them; infinity for all."""
        if all(pattern.is_dense(1 << 40) for pattern in self._reading):
            return math.inf
        low, high = 0, 1 << 34  # in KV pages: dense at low, not known to be at high
        while high - low > 1:
            middle = (low + high) // 2
            dense = all(pattern.is_dense(middle * PAGE) for pattern in self._reading)
            low, high = (middle, high) if dense else (low, middle)
        return low * PAGE

    def _reading_patterns(self) -> tuple[Pattern, Pattern]:
        """Of the first layers, and of the others."""
        if self.named is not None:
            pattern = self.named | QuestionTail()
            return pattern, pattern
        if self.mode == "exact":
            return DENSE, DENSE
        base = self.sparsity.budget or _BUDGETS[self.mode].budget
        budget = self.sparsity.reading_budget or 2 * base + LOCAL
        streaming = Streaming(SINK, self.sparsity.local)
        local = min(LOCAL, budget // 4)
        first = TopPages(max(FIRST_BUDGET, budget), self._scorer, SINK, local) | DenseUpTo(FIRST_DENSE) | QuestionTail()
        rest = TopPages(budget, self._scorer, SINK, local) | DenseUpTo(int(DENSE_BUDGETS * budget)) | QuestionTail()
        if self._streaming is None:
            return first, rest
        return PerHead(first, streaming), PerHead(rest, streaming)

    def _answering(self, budget: int) -> Pattern:
        if budget not in self._top:
            top = TopPages(budget, self._scorer, SINK, RECENT)
            self._top[budget] = top if self._streaming is None else PerHead(top, Streaming(SINK, RECENT))
        return self._top[budget]


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """What streaming heads read of the sink and the `local` newest tokens that they have kept.

    Positions and lengths are those among kept tokens; `gone` tokens lay between sink and window. In decode they read
    the newest 256, or all that they have where retrieval heads (`retrieval`) read everything.
    """

    retrieval: AttentionPolicy
    gone: int

    def reading(self, layer: int) -> Pattern:
        return Streaming(SINK, self.retrieval.sparsity.local)

    def answering(self, layer: int, length: int) -> Pattern:
        length += self.gone
        dense = self.retrieval.answering(layer, length).is_dense(length)
        return Streaming(SINK, self.retrieval.sparsity.local if dense else RECENT)

    def selection_position(self, position: int) -> int:
        return position

    def streaming(self, layer: int) -> torch.Tensor | None:
        """All heads do: even the question's tokens read no more."""
        return torch.ones(1, dtype=torch.bool)


def streaming_heads(gates: torch.Tensor, ratio: float | None = None) -> torch.Tensor:
    """DuoAttention gates, float [layers, kv_heads] -> bool of that shape: heads with a gate below 0.5 stream.

    `ratio`: instead the share of all heads with the lowest gates; of equal gates the earlier head streams.
    """
    if ratio is None:
        return gates < LARGEST_GATE
    need(0 <= ratio <= 1, "ratio", ratio, "a share from 0 to 1")
    order = gates.flatten().argsort(stable=True)
    mask = torch.zeros(gates.numel(), dtype=torch.bool, device=gates.device)
    mask[order[: round(ratio * gates.numel())]] = True
    return mask.view(gates.shape)


def _digest(mask: torch.Tensor) -> str:
    rows = " ".join("".join("1" if head else "0" for head in layer) for layer in mask.tolist())
    return hashlib.sha256(rows.encode()).hexdigest()[:16]
