"""Is a row worse than dense? Paired differences with a lower bound, and the ratio of likelihoods.

The bound is one-sided, 95 %, by Student's t: with some twenty pairs of coarse scores a percentile bootstrap is too
narrow, the t interval is exact for normal means and a little wide for ours, and it needs no random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, variance

CONFIDENCE = 0.95
_AS_GOOD_AS_NORMAL = 1000.0
_LOWEST = -100.0  # no difference of two scores is lower


@dataclass(frozen=True, slots=True)
class Difference:
    """`mean`: row minus dense, over `pairs` pairs; `lower`: its one-sided bound, None for fewer than two pairs.

    `equal`: pairs without any difference. Where all are equal the bound is the mean; the number of pairs then says how
    far that can be trusted (a true loss in one of `pairs` / 3 samples would still be missed one time in twenty).
    """

    mean: float
    lower: float | None
    pairs: int
    equal: int


def paired_difference(row: Sequence[float], dense: Sequence[float]) -> Difference:
    """Of scores of the same samples in the same order."""
    return stratified_difference([(row, dense)])


def stratified_difference(groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Difference:
    """The mean over groups (tasks) of their mean paired differences; each group counts the same.

    Degrees of freedom after Welch and Satterthwaite. ValueError for no group, an empty one, or unequal lengths.
    """
    if not groups or any(len(row) != len(dense) or not row for row, dense in groups):
        raise ValueError("groups: got none, an empty one or unequal lengths, need pairs")
    differences = [[a - b for a, b in zip(row, dense)] for row, dense in groups]
    mean = fmean(fmean(group) for group in differences)
    pairs = sum(map(len, differences))
    equal = sum(d == 0 for group in differences for d in group)
    if any(len(group) < 2 for group in differences):
        return Difference(mean, None, pairs, equal)
    errors = [variance(group) / len(group) / len(groups) ** 2 for group in differences]
    total = sum(errors)
    if total == 0:
        return Difference(mean, mean, pairs, equal)
    freedom = total**2 / sum(error**2 / (len(group) - 1) for error, group in zip(errors, differences))
    lower = mean - t_quantile(CONFIDENCE, freedom) * math.sqrt(total)
    return Difference(mean, max(lower, _LOWEST), pairs, equal)


def nll_ratio(row: Sequence[float], dense: Sequence[float]) -> float | None:
    """Mean of the row's NLL per token / mean of dense's, of the same samples; None if there is none to divide by."""
    if not row or not fmean(dense):
        return None
    return fmean(row) / fmean(dense)


@lru_cache
def t_quantile(share: float, freedom: float) -> float:
    """Quantile of Student's t; `share` in 0.5 to 1 (both out), `freedom` >= 1, fractions allowed."""
    freedom = min(freedom, _AS_GOOD_AS_NORMAL)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        if _t_cdf(angle, freedom) < share:
            low = angle
        else:
            high = angle
    return math.sqrt(freedom) * math.tan(low)


def _t_cdf(angle: float, freedom: float, steps: int = 400) -> float:
    """P(T <= sqrt(freedom) tan(angle)): with this substitution the density is cos(angle)^(freedom - 1)."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    width = angle / steps
    heights = [math.cos(i * width) ** (freedom - 1) for i in range(steps + 1)]
    simpson = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return 0.5 + scale * simpson * width / 3
