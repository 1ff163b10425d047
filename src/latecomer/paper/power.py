"""What a test could have seen: how many pairs would decide, and which effect so many pairs would have shown.

Power is the probability of a significant result in the right direction. It is 90 % here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .._util.extras import needs
from .statistics import matched_pairs, normal_quantile, wilson

__all__ = [
    "detectable_difference", "detectable_mean", "detectable_share", "mcnemar_power", "mean_power", "pairs_for_mean",
    "pairs_for_mean_within", "pairs_for_share_within", "pairs_to_decide",
]  # fmt: skip

_SIZES: tuple[int, ...] = (*range(20, 400, 10), *range(400, 4001, 100))
_POWER = 0.9
_FEW = 10
"""The spread of fewer differences than this says nothing about more pairs."""
_DRAWS = 4000
_SIMULATED = 60
"""Up to so many pairs, the power of Wilcoxon's test is simulated; beyond that it is nearly that of a t test."""
_EFFICIENCY = 3 / math.pi
"""Pairs that a t test needs for the power that Wilcoxon's has with one, for normal differences."""


# ---- counts: McNemar's test and the sign test -----------------------------------------------------------------------


@functools.cache
def _needed_wins(trials: int, alpha: float) -> int | None:
    """Return how many of so many pairs must be won for a significant result; None if all are not enough."""
    ways = tail = 1  # of winning exactly, and at least, so many of the pairs
    wins = trials
    if not trials or 2 * tail / (1 << trials) > alpha:
        return None
    while True:
        ways = ways * wins // (trials - wins + 1)  # exact: whole numbers
        tail += ways
        if 2 * tail / (1 << trials) > alpha:
            return wins
        wins -= 1


def _binomial(trials: int, share: float) -> NDArray[np.float64]:
    """Return the probabilities of 0 to so many successes."""
    found: NDArray[np.float64] = np.zeros(trials + 1)
    if share <= 0.0 or share >= 1.0:
        found[trials if share >= 1.0 else 0] = 1.0
        return found
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    k = np.arange(trials + 1)
    found[:] = np.exp(logs[-1] - logs - logs[::-1] + k * math.log(share) + (trials - k) * math.log1p(-share))
    return found


def mcnemar_power(pairs: int, only_first: float, only_second: float, alpha: float) -> float:
    """Return the probability that McNemar's test is significant in favour of the first method.

    A sign test is the same with the probabilities of a win and of a loss.

    Args:
        pairs: Number of pairs.
        only_first: Probability that only the first method trains.
        only_second: Probability that only the second one does.
        alpha: Two-sided level.

    Examples:
        >>> mcnemar_power(20, 0.9, 0.0, 0.001) > 0.95 > mcnemar_power(20, 0.4, 0.1, 0.001)
        True
    """
    either = only_first + only_second
    if not either:
        return 0.0
    total = 0.0
    for discordant, chance in enumerate(_binomial(pairs, min(1.0, either))):
        needed = _needed_wins(discordant, alpha) if chance > 1e-9 else None
        if needed is not None:
            total += float(chance * _binomial(discordant, only_first / either)[needed:].sum())
    return total


def _first_size(enough: Callable[[int], bool], sizes: Sequence[int] = _SIZES) -> int | None:
    """Return the first number of pairs that is enough, where all larger ones are; None if none is."""
    low, high = -1, 0  # large numbers take long, so they are tried last
    while not enough(sizes[high]):
        if high == len(sizes) - 1:
            return None
        low, high = high, min(2 * high + 1, len(sizes) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(sizes[middle]) else (middle, high)
    return sizes[high]


@functools.cache
def pairs_to_decide(only_first: int, only_second: int, pairs: int, alpha: float) -> int | None:
    """Return how many pairs would decide by McNemar's test or a sign test, if the shares of wins and losses stay.

    None if they are equal.

    Examples:
        >>> pairs_to_decide(12, 4, 40, alpha=0.001) > 40
        True
    """
    if not pairs or only_first == only_second:
        return None
    more, less = max(only_first, only_second) / pairs, min(only_first, only_second) / pairs
    return _first_size(lambda n: mcnemar_power(n, more, less, alpha) >= _POWER)


@functools.cache
def pairs_for_share_within(first: int, second: int, pairs: int, margin: float, sign: bool = False) -> int | None:
    """Return how many pairs would put the whole interval of a difference of shares within a margin, with 90 % power.

    Args:
        first: Pairs in favour of the first method.
        second: Pairs in favour of the second.
        pairs: All pairs.
        margin: The margin.
        sign: Whether the effect is that of a sign test, the share of wins minus a half, and not that of McNemar's.

    Examples:
        >>> pairs_for_share_within(2, 2, 20, 0.15), pairs_for_share_within(15, 2, 20, 0.15)
        (100, None)
    """
    if not pairs:
        return None
    shares = [first / pairs, second / pairs]

    def within(wins: int, losses: int, n: int) -> bool:
        if not sign:
            return matched_pairs(wins, losses, n).within(margin)
        share = wilson(wins, wins + losses)
        return share.low >= 0.5 - margin and share.high <= 0.5 + margin

    def enough(n: int) -> bool:
        drawn = np.random.default_rng(n).multinomial(n, [*shares, max(0.0, 1.0 - sum(shares))], size=_DRAWS)
        kinds, counts = np.unique(drawn[:, :2], axis=0, return_counts=True)
        return sum(int(c) for (a, b), c in zip(kinds, counts, strict=True) if within(int(a), int(b), n)) >= (
            _POWER * _DRAWS
        )

    return _first_size(enough)


def _smallest(enough: Callable[[float], bool], high: float) -> float | None:
    """Return the smallest value, to a thousandth, from which on something is true; None if it never is."""
    low, top = 0, math.floor(1000 * high + 1e-9)
    if top < 1 or not enough(top / 1000):
        return None
    while top - low > 1:
        middle = (low + top) // 2
        low, top = (low, middle) if enough(middle / 1000) else (middle, top)
    return top / 1000


@functools.cache
def detectable_difference(pairs: int, only_second: float, alpha: float) -> float | None:
    """Return the smallest difference of shares that McNemar's test would have shown; None if there is none.

    Args:
        pairs: Number of pairs.
        only_second: Probability that only the method that is not better trains.
        alpha: Two-sided level.

    Examples:
        >>> detectable_difference(120, 0.05, 0.00114) < detectable_difference(40, 0.05, 0.00114) < 1.0
        True
    """
    return _smallest(
        lambda effect: mcnemar_power(pairs, only_second + effect, only_second, alpha) >= _POWER, 1.0 - 2 * only_second
    )


@functools.cache
def detectable_share(pairs: int, alpha: float, untied: float = 1.0) -> float | None:
    """Return by how much the share of pairs won must exceed a half for a sign test to show it; None if it cannot.

    Args:
        pairs: Number of pairs.
        alpha: Two-sided level.
        untied: Probability that a pair is not tied.

    Examples:
        >>> detectable_share(120, 0.00114) < detectable_share(20, 0.00114) < 0.5
        True
    """
    return _smallest(
        lambda effect: mcnemar_power(pairs, untied * (0.5 + effect), untied * (0.5 - effect), alpha) >= _POWER, 0.5
    )


# ---- means: Wilcoxon's test and changes of sign ---------------------------------------------------------------------


@functools.cache
def _critical_rank_sum(pairs: int, alpha: float) -> int | None:
    """Return the largest smaller rank sum of Wilcoxon's test that is significant; None if there is none."""
    counts = np.ones(1)
    for rank in range(1, pairs + 1):
        counts = (np.pad(counts, (0, rank)) + np.pad(counts, (rank, 0))) / 2.0
    significant = np.flatnonzero(2 * np.cumsum(counts) <= alpha)
    return int(significant[-1]) if len(significant) else None


@functools.cache
def mean_power(pairs: int, shift: float, alpha: float, ranks: bool) -> float:
    """Return the probability that a test on normal differences is significant in the right direction.

    Args:
        pairs: Number of differences.
        shift: Their mean, in standard deviations.
        alpha: Two-sided level.
        ranks: Whether the test is Wilcoxon's, and not that of random changes of sign, which is nearly a t test.

    Examples:
        >>> mean_power(6, 9.0, 0.00114, ranks=True)        # six pairs cannot reach the level
        0.0
        >>> mean_power(12, 2.0, 0.00114, ranks=True) < mean_power(12, 2.0, 0.00114, ranks=False)
        True
    """
    if pairs < 2 or 2.0 ** (1 - pairs) > alpha:  # both tests take all signs as equally likely
        return 0.0
    if ranks and pairs <= _SIMULATED:
        critical = _critical_rank_sum(pairs, alpha)
        drawn = shift + np.random.default_rng(pairs).normal(size=(_DRAWS, pairs))
        rank = 1 + np.argsort(np.argsort(np.abs(drawn), axis=1), axis=1)
        return 0.0 if critical is None else float(((rank * (drawn < 0)).sum(axis=1) <= critical).mean())
    with needs("report", "scipy", "The power of a test"):
        from scipy import stats  # type: ignore[import-untyped,unused-ignore]

    n = pairs * _EFFICIENCY if ranks else pairs
    return float(stats.nct.sf(stats.t.ppf(1 - alpha / 2, n - 1), n - 1, shift * math.sqrt(n)))


def pairs_for_mean(differences: Sequence[float], alpha: float, *, ranks: bool) -> int | None:
    """Return how many pairs would show a mean other than zero, if mean and spread stay; None if that cannot be told.

    Args:
        differences: What was found.
        alpha: Two-sided level.
        ranks: As in `mean_power`.

    Examples:
        >>> pairs_for_mean([0.3, 0.1, -0.1, 0.2, 0.0, 0.1] * 2, alpha=0.001, ranks=False)
        44
        >>> pairs_for_mean([0.3, 0.1, -0.1], alpha=0.001, ranks=False) is None        # too few to know the spread
        True
    """
    x = np.asarray(differences, dtype=float)
    if len(x) < _FEW or not x.mean():
        return None
    spread = float(x.std(ddof=1))
    shift = abs(float(x.mean())) / spread if spread else 1e9
    return _first_size(lambda n: mean_power(n, shift, alpha, ranks) >= _POWER, range(3, _SIZES[-1]))


def pairs_for_mean_within(differences: Sequence[float], margin: float, level: float = 0.9) -> int | None:
    """Return how many pairs would put the whole interval of a mean within a margin, with 90 % power.

    None if the mean is outside, or if there are too few differences to tell.

    Examples:
        >>> pairs_for_mean_within([0.03, -0.03, 0.02, -0.02] * 3, 0.02)
        20
    """
    x = np.asarray(differences, dtype=float)
    if len(x) < _FEW or abs(float(x.mean())) >= margin:
        return None
    reach = (normal_quantile((1 + level) / 2) + normal_quantile((1 + _POWER) / 2)) * float(x.std(ddof=1))
    return max(3, math.ceil((reach / (margin - abs(float(x.mean())))) ** 2))


def detectable_mean(spread: float, pairs: float, alpha: float, *, ranks: bool) -> float | None:
    """Return the smallest mean difference that would have been shown; None if no mean would.

    Args:
        spread: Standard deviation of the differences.
        pairs: Number of pairs that can be used.
        alpha: Two-sided level.
        ranks: As in `mean_power`.

    Examples:
        >>> round(detectable_mean(0.1, 20, 0.0015, ranks=False), 3), detectable_mean(0.1, 6, 0.0015, ranks=True)
        (0.115, None)
    """
    shift = _smallest(lambda shift: mean_power(math.floor(pairs), shift, alpha, ranks) >= _POWER, 10.0)
    return None if shift is None else shift * spread
