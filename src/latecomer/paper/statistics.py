"""Exact and resampling tests for pairs of runs that share a seed, and the intervals shown beside them.

All p-values are two-sided. A pair is two methods on one seed: the same initialisation, arrivals and samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .._util.intervals import Interval

__all__ = [
    "binomial_two_sided", "holm", "matched_pairs", "mcnemar", "mean_interval", "normal_quantile",
    "sign_flip", "signed_rank_sum", "wilcoxon", "wilson",
]  # fmt: skip

_DRAWS = 2_000_000
_FAR = 1e9
"""In standard errors: a mean of values without any spread, which is not the true one."""
_EXACT = 40
"""Up to so many pairs all changes of sign are counted."""


def binomial_two_sided(successes: int, trials: int) -> float:
    """Return the exact two-sided p-value of so many successes where half are expected.

    Examples:
        >>> binomial_two_sided(0, 5), binomial_two_sided(3, 6)
        (0.0625, 1.0)
    """
    if not trials:
        return 1.0
    fewer = min(successes, trials - successes)
    total: int = sum(math.comb(trials, k) for k in range(fewer + 1))
    return min(1.0, 2 * total / (1 << trials))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact p-value of McNemar's test: pairs in which only one of the two methods trained.

    Examples:
        >>> mcnemar(10, 0) < 0.002 < mcnemar(9, 1)
        True
    """
    return binomial_two_sided(only_first, only_first + only_second)


def _doubled_ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return twice the ranks of the sizes of differences, which are whole numbers; ties get their mean rank."""
    size = np.abs(values)
    return np.array([2 * int((size < s).sum()) + int((size == s).sum()) + 1 for s in size], dtype=np.int64)


def wilcoxon(differences: Sequence[float]) -> float:
    """Return the exact p-value of Wilcoxon's signed-rank test; zeros are left out, ties get their mean rank.

    Examples:
        >>> round(wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0]), 4)
        0.0625
    """
    values = np.array([d for d in differences if d])
    if not len(values):
        return 1.0
    doubled = _doubled_ranks(values)  # whole numbers, so the distribution of their sum is a list of counts
    counts = np.zeros(int(doubled.sum()) + 1)
    counts[0] = 1.0
    for rank in doubled:
        shifted = np.zeros_like(counts)
        shifted[rank:] = counts[: len(counts) - rank]
        counts = (counts + shifted) / 2.0
    positive = int(doubled[values > 0].sum())
    fewer = min(positive, int(doubled.sum()) - positive)
    return min(1.0, 2.0 * float(counts[: fewer + 1].sum()))


def signed_rank_sum(differences: Sequence[float]) -> float:
    """Return the ranks of the positive differences minus those of the negative ones, which Wilcoxon's test is about.

    Examples:
        >>> signed_rank_sum([3.0, -1.0, 2.0]), signed_rank_sum([-9.0, 1.0, 2.0, 3.0])
        (4.0, 2.0)
    """
    values = np.array([d for d in differences if d])
    return float((np.sign(values) * _doubled_ranks(values)).sum()) / 2


def sign_flip(differences: Sequence[float], seed: int = 0) -> float:
    """Return the p-value of the mean under random changes of the pairs' signs.

    Up to 40 pairs all changes are counted, so the value is exact; beyond that two million are drawn.

    Examples:
        >>> sign_flip([1.0] * 10), sign_flip([1.0, -1.0]), sign_flip([1.0] * 20) == 2 / 2**20
        (0.001953125, 1.0, True)
    """
    values = np.asarray(differences, dtype=float)
    if not np.isfinite(values).all():
        raise ValueError("Differences that are not finite cannot be compared: count a run without a score as zero")
    n = len(values)
    if not n:
        return 1.0
    observed = float(abs(values.sum()) - 1e-12 * np.abs(values).sum())  # sums in another order round differently
    if n <= _EXACT:
        # Every sum is one of the first half plus one of the second: count the partners of each instead of all pairs.
        first, second = (_signed_sums(half) for half in (values[: n // 2], values[n // 2 :]))
        second.sort()
        above = len(second) - np.searchsorted(second, observed - first, side="left")
        below = np.searchsorted(second, -observed - first, side="right")
        extreme = int(above.sum()) + int(below.sum())
        return min(1.0, extreme / (1 << n))
    draws = np.random.default_rng(seed)
    extreme, chunk = 0, _DRAWS // 40
    for _ in range(40):
        signs = 1 - 2 * draws.integers(0, 2, size=(chunk, n), dtype=np.int8)
        extreme += int((np.abs(signs @ values) >= observed).sum())
    return (extreme + 1) / (_DRAWS + 1)


def _signed_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of values under all changes of their signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method, in the order they came.

    Examples:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def matched_pairs(only_first: int, only_second: int, pairs: int, level: float = 0.9) -> Interval:
    """Return the difference of two shares over the same pairs, with the interval of Agresti and Min.

    Half a pair is added to each of the four cells, which keeps the interval honest for few discordant pairs.

    Examples:
        >>> found = matched_pairs(8, 2, 20)
        >>> found.value, found.low < 0.3 < found.high
        (0.3, True)
    """
    first, second, n = only_first + 0.5, only_second + 0.5, pairs + 2.0
    middle = (first - second) / n
    spread = math.sqrt(max(0.0, first + second - (first - second) ** 2 / n)) / n * _normal(level)
    value = (only_first - only_second) / pairs if pairs else math.nan
    return Interval(value, max(-1.0, middle - spread), min(1.0, middle + spread))


def wilson(successes: int, trials: int, level: float = 0.9) -> Interval:
    """Return a share with Wilson's interval.

    Examples:
        >>> str(wilson(5, 10))
        '0.5 (0.2693 to 0.7307)'
    """
    if not trials:
        return Interval(math.nan, 0.0, 1.0)
    z, share = _normal(level), successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2)) / (1 + z * z / trials)
    return Interval(share, middle - spread, middle + spread)


def mean_interval(values: Sequence[float], level: float = 0.9, seed: int = 0, most: float = math.inf) -> Interval:
    """Return a mean with its bootstrap-t interval, which does not ask for a normal distribution.

    A draw whose values are all the same is as far from the mean as can be. So a single value that differs makes the
    interval wide, not narrow.

    Args:
        values: The values.
        level: Of the interval.
        seed: Of the bootstrap.
        most: No value can be larger than this, or smaller than its negative, and neither can an end of the interval.

    Examples:
        >>> found = mean_interval([0.1, 0.2, 0.3, 0.2, 0.1, 0.3])
        >>> round(found.value, 2), found.low < 0.2 < found.high
        (0.2, True)
    """
    x = np.asarray(values, dtype=float)
    n = len(x)
    if n < 3:
        return Interval(float(x.mean()) if n else math.nan, -math.inf, math.inf)
    mean, error = float(x.mean()), float(x.std(ddof=1)) / math.sqrt(n)
    if not error:
        return Interval(mean, mean, mean)
    drawn = x[np.random.default_rng(seed).integers(0, n, size=(10_000, n))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(n)
    away = drawn.mean(axis=1) - mean
    t = np.where(errors > 0, away / np.where(errors > 0, errors, 1.0), np.sign(away) * _FAR)
    low, high = np.quantile(t, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, max(-most, mean - float(high) * error), min(most, mean - float(low) * error))


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return statistics.NormalDist().inv_cdf(probability)


def _normal(level: float) -> float:
    """Return how many standard deviations a central interval of this level reaches."""
    return normal_quantile((1 + level) / 2)
