"""Scorers: how a pattern that selects judges KV pages. Ours, and the wrapping of anyone's own.

An own scorer is any object with `score(query, summary)`: query float32 [kv_heads, blocks, rows, d] and the summary of
all pages -> floating point [kv_heads, blocks, pages], higher is better. With `summarize(keys)`, keys float32
[kv_heads, pages, 64, d] -> a tensor or a tuple of tensors [kv_heads, pages, ...], it has a summary of its own, which is
kept beside the pages under its `name` (the class's, if it gives none) and `version` (1). Without it, it gets
(mean, std), float16 [kv_heads, pages, 4, d] each.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from engine.patterns.context import SAMPLED_ROWS, Summary
from engine.patterns.errors import PatternError, need
from engine.patterns.identity import identity
from kernels.block_index import PAGE
from kernels.kv_codec import bounds, coarse_keys, logical_statistics, summarize
from kernels.kv_codec.paged import copy_coarsely_into, summarize_into
from kernels.page_scores import coarse_scores, coarse_shares, mean_std_scores, min_max_scores

LOGICAL = 16  # tokens of a logical page
_WEIGHED = 2  # times as many pages as are wanted have their tokens weighed
MASS = "mass"  # the summary that attention itself writes


class Scorer(ABC):
    """Judges KV pages by their summaries."""

    built_in: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str:
        """As in settings and messages."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """Under which name its summaries are kept."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Everything that its scores depend on."""

    @abstractmethod
    def score(self, query: torch.Tensor, summary: Any) -> torch.Tensor:
        """query float32 [kv_heads, blocks, rows, d] -> float32 [kv_heads, blocks, pages]."""

    def weighed(
        self, query: torch.Tensor, summary: Any, allowed: torch.Tensor, forced: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Pages worth choosing from, int64 [kv_heads, blocks, n], and their scores, float32 of that shape, by which
        KV heads can be compared; None: this scorer has no such scores.

        `allowed`, `forced` bool [blocks, pages]: what a block may see, and what it reads in any case. `count`: how many
        pages a KV head wants on average.
        """
        return None

    @abstractmethod
    def summarize(self, keys: torch.Tensor) -> Summary:
        """keys of complete pages, [kv_heads, pages, 64, d], not quantized -> tensors [kv_heads, pages, ...]."""

    def keep(self, keys: torch.Tensor, pages: torch.Tensor, stored: Sequence[torch.Tensor]) -> None:
        """Summarize pages `pages` int64 [n] of the pool keys [kv_heads, slots, d] into rows of the same numbers of
        `stored`, tensors [kv_heads, rows, ...]."""
        made = _tensors(self.summarize(keys.unflatten(1, (-1, PAGE))[:, pages]))
        for into, part in zip(stored, made):
            into[:, pages] = part


@dataclass(frozen=True)
class _LogicalPages(Scorer):
    """A KV page is as good as the best of its logical pages of `logical` tokens, for the row that wants it most."""

    logical: int = LOGICAL

    def __post_init__(self) -> None:
        ok = isinstance(self.logical, int) and not isinstance(self.logical, bool)
        ok = ok and self.logical > 0 and PAGE % self.logical == 0
        need(ok, "logical", self.logical, f"a divisor of {PAGE}")

    @property
    def summary(self) -> str:
        return f"{self.name}/{self.logical}"

    @property
    def key(self) -> str:
        return f"{self.summary}@1"


@dataclass(frozen=True)
class MeanStd(_LogicalPages):
    """sum over d of q * mean + |q| * std."""

    @property
    def name(self) -> str:
        return "mean_std"

    def summarize(self, keys: torch.Tensor) -> Summary:
        return summarize(keys, self.logical)

    def keep(self, keys: torch.Tensor, pages: torch.Tensor, stored: Sequence[torch.Tensor]) -> None:
        summarize_into(keys, pages, stored[0], stored[1])

    def score(self, query: torch.Tensor, summary: Any) -> torch.Tensor:
        return mean_std_scores(query, *summary)


@dataclass(frozen=True)
class MinMax(_LogicalPages):
    """Quest's bound: sum over d of max(q * min, q * max)."""

    @property
    def name(self) -> str:
        return "min_max"

    def summarize(self, keys: torch.Tensor) -> Summary:
        return bounds(keys, self.logical)

    def score(self, query: torch.Tensor, summary: Any) -> torch.Tensor:
        return min_max_scores(query, *summary)


@dataclass(frozen=True)
class CoarseKeys(_LogicalPages):
    """Weighs single tokens by a copy of the keys in 2 bits: it finds what a logical page's mean hides.

    A decode step weighs every token of a page. A prefill block has many rows: of the pages that look best by mean and
    standard deviation of logical pages, which follow from the same codes, it weighs the tokens of twice as many as it
    wants, and a page counts for the largest share of a row's attention that it would draw (decision 0124).
    """

    @property
    def name(self) -> str:
        return "coarse_keys"

    @property
    def summary(self) -> str:
        return "coarse_keys"

    @property
    def key(self) -> str:
        return f"{self.name}/{self.logical}@2"

    def summarize(self, keys: torch.Tensor) -> Summary:
        return coarse_keys(keys)

    def keep(self, keys: torch.Tensor, pages: torch.Tensor, stored: Sequence[torch.Tensor]) -> None:
        copy_coarsely_into(keys, pages, stored[0], stored[1], stored[2])

    def score(self, query: torch.Tensor, summary: Any) -> torch.Tensor:
        codes, scale, minimum = summary
        if query.shape[2] >= SAMPLED_ROWS:  # of a prefill block: so many positions, times the heads of a group
            return mean_std_scores(query, *logical_statistics(codes, scale, minimum, self.logical))
        return coarse_scores(query, codes, scale, minimum, query.shape[-1] ** -0.5)

    def weighed(
        self, query: torch.Tensor, summary: Any, allowed: torch.Tensor, forced: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Logarithms of shares of attention, for the rows of a prompt's block."""
        codes, scale, minimum = summary
        if query.shape[2] < SAMPLED_ROWS or codes.shape[1] == 0:
            return None
        rough = self.score(query, summary).nan_to_num_(nan=math.inf, posinf=math.inf)
        rough = rough.masked_fill_(forced, math.inf).masked_fill_(~allowed, -math.inf)
        pages = rough.topk(min(_WEIGHED * count, rough.shape[2]), sorted=False).indices.sort().values
        return pages, coarse_shares(query, codes, scale, minimum, pages, allowed, query.shape[-1] ** -0.5)


@dataclass(frozen=True)
class AccumulatedMass(Scorer):
    """H2O's score: the attention that a page has drawn so far. For research: it selects, nothing is ever evicted.

    Its summary, float [kv_heads, pages], is not made from keys: who attends adds the masses up. It depends on the
    questions asked before, so answers with it may too.
    """

    @property
    def name(self) -> str:
        return "accumulated"

    @property
    def summary(self) -> str:
        return MASS

    @property
    def key(self) -> str:
        return "accumulated@1"

    def summarize(self, keys: torch.Tensor) -> Summary:
        """A new page has drawn no attention."""
        return keys.new_zeros(keys.shape[:-2], dtype=torch.float32)

    def score(self, query: torch.Tensor, summary: Any) -> torch.Tensor:
        return summary.float()[:, None].expand(-1, query.shape[1], -1)


class OwnScorer(Scorer):
    """Somebody's scorer, with everything that it returns checked."""

    built_in: ClassVar[bool] = False

    def __init__(self, own: Any) -> None:
        self.own = own
        self._name = str(getattr(own, "name", type(own).__name__))
        if not callable(getattr(own, "score", None)) or isinstance(own, type):
            need(False, "score", own, f"one of {', '.join(SCORERS)}, or an object with score(query, summary)")
        need(self.name not in SCORERS, "score.name", self.name, "a name that no built-in scorer has")
        version = getattr(own, "version", 1)
        key = getattr(own, "key", None)
        self._key = key if isinstance(key, str) else identity(own, self.name, version)
        self._summarizes = callable(getattr(own, "summarize", None))

    @property
    def name(self) -> str:
        return self._name

    @property
    def summary(self) -> str:
        return self._key if self._summarizes else MeanStd().summary

    @property
    def key(self) -> str:
        return self._key

    def summarize(self, keys: torch.Tensor) -> Summary:
        if not self._summarizes:
            return summarize(keys)
        result = self._call("summarize", keys.float())
        for tensor in result if isinstance(result, tuple) else (result,):
            if not isinstance(tensor, torch.Tensor) or tensor.shape[:2] != keys.shape[:2]:
                got = list(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
                hint = f"Return a tensor, or a tuple of tensors, [kv_heads, pages, ...], here {list(keys.shape[:2])}."
                raise PatternError(self.name, f"summarize returned {got}.", hint)
        return result

    def score(self, query: torch.Tensor, summary: Any) -> torch.Tensor:
        scores = self._call("score", query, summary)
        first = summary[0] if isinstance(summary, tuple) else summary
        shape = [*query.shape[:2], first.shape[1]]
        if not isinstance(scores, torch.Tensor) or not scores.is_floating_point() or list(scores.shape) != shape:
            got = f"{scores.dtype} {list(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise PatternError(
                self.name,
                f"score returned {got.removeprefix('torch.')}.",
                f"Return floating point [kv_heads, blocks, pages], here {shape}: the largest over rows, for instance.",
            )
        return scores.float()

    def check_finite(self, scores: torch.Tensor, causal: torch.Tensor) -> None:
        """Scores of pages that a block may see must be finite; others are never looked at. Waits for the device."""
        wrong = ~scores.isfinite() & causal
        if bool(wrong.any()):
            head, block, page = wrong.nonzero()[0].tolist()
            value = float(scores[head, block, page])
            hint = "Give every page a finite score; watch for divisions by zero and logarithms."
            raise PatternError(self.name, f"the score of KV page {page} is {value} for KV head {head}.", hint)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.own, method)(*arguments)
        except Exception as error:
            shapes = ", ".join(_shape(argument) for argument in arguments)
            raise PatternError(
                self.name, f"{method} failed with {type(error).__name__}: {error}.", f"It was given {shapes}."
            ) from error


SCORERS: dict[str, Scorer] = {scorer.name: scorer for scorer in (CoarseKeys(), MeanStd(), MinMax(), AccumulatedMass())}


def resolve_scorer(score: object) -> Scorer:
    """A built-in scorer by its name, a scorer as it is, or anyone's own object, wrapped. ValueError for others."""
    if isinstance(score, str):
        need(score in SCORERS, "score", score, f"one of {', '.join(SCORERS)}, or an object with score(query, summary)")
        return SCORERS[score]
    return score if isinstance(score, Scorer) else OwnScorer(score)


def summary_layout(scorer: Scorer, head_dim: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """(shape behind [kv_heads, pages], dtype) of each tensor of a scorer's summary: what must be stored for a page.

    PatternError if its summary of one page depends on other pages: pages are summarized one by one as they fill.
    """
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(1, 3, PAGE, head_dim, generator=generator)
    together, alone = (_tensors(scorer.summarize(part)) for part in (keys, keys[:, :1]))
    for whole, part in zip(together, alone):
        if whole.dtype != part.dtype or not torch.allclose(whole[:, :1].double(), part.double(), rtol=1e-3, atol=1e-3):
            hint = "Compute it from the page's own 64 keys alone."
            raise PatternError(scorer.name, "summarize lets the summary of a page depend on other pages.", hint)
    return [(tuple(tensor.shape[2:]), tensor.dtype) for tensor in together]


def _tensors(summary: Summary) -> tuple[torch.Tensor, ...]:
    return summary if isinstance(summary, tuple) else (summary,)


def _shape(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_shape(item) for item in value)})"
    return f"{value.dtype} {list(value.shape)}".removeprefix("torch.")
