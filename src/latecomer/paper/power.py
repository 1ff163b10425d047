"""What a test could have seen: how many pairs would decide, and which effect so many pairs would have shown.

Power is the probability of a significant result in the right direction, 90 % if nothing else is said.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from .._util.intervals import Interval
from .statistics import matched_pairs, normal_quantile, wilson

__all__ = [
    "detectable_difference", "detectable_mean", "detectable_share", "mcnemar_power", "pairs_for_mean",
    "pairs_for_mean_within", "pairs_for_share_within", "pairs_to_decide",
]  # fmt: skip

_SIZES: tuple[int, ...] = (*range(20, 400, 10), *range(400, 4001, 100))
_POWER = 0.9


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


def _upper_tail(least: int, trials: int, share: float) -> float:
    """Return the probability of at least so many successes."""
    if share >= 1.0:
        return 1.0
    if share <= 0.0:
        return float(least <= 0)
    return math.fsum(_binomial(k, trials, share) for k in range(least, trials + 1))


def _binomial(k: int, trials: int, share: float) -> float:
    if share >= 1.0 or share <= 0.0:
        return float(k == (trials if share >= 1.0 else 0))
    ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
    return math.exp(ways + k * math.log(share) + (trials - k) * math.log1p(-share))


def pairs_to_decide(only_first: int, only_second: int, pairs: int, alpha: float, power: float = _POWER) -> int | None:
    """Return how many pairs would decide by McNemar's test, if shares stay as they are; None if they are equal.

    Examples:
        >>> pairs_to_decide(12, 4, 40, alpha=0.001) > 40
        True
    """
    if not pairs or only_first == only_second:
        return None
    either = (only_first + only_second) / pairs
    larger = max(only_first, only_second) / (only_first + only_second)
    for n in _SIZES:
        discordant = round(n * either)
        needed = _needed_wins(discordant, alpha)
        if needed is not None and _upper_tail(needed, discordant, larger) >= power:
            return n
    return None


def pairs_for_mean(differences: Sequence[float], alpha: float, power: float = _POWER) -> int | None:
    """Return how many pairs would show a mean other than zero, if mean and spread stay; None if that cannot be told.

    Examples:
        >>> pairs_for_mean([0.3, 0.1, -0.1, 0.2, 0.0, 0.1], alpha=0.001)
        42
    """
    x = np.asarray(differences, dtype=float)
    if len(x) < 3 or not x.mean():
        return None
    reach = normal_quantile(1 - alpha / 2) + normal_quantile(power)
    return max(3, math.ceil((reach * float(x.std(ddof=1)) / abs(float(x.mean()))) ** 2))


def pairs_for_mean_within(differences: Sequence[float], margin: float, level: float = 0.9) -> int | None:
    """Return how many pairs would put the whole interval of a mean within a margin; None if the mean is outside.

    Examples:
        >>> pairs_for_mean_within([0.03, -0.03, 0.02, -0.02], 0.02)
        6
    """
    x = np.asarray(differences, dtype=float)
    if len(x) < 3 or abs(float(x.mean())) >= margin:
        return None
    reach = normal_quantile((1 + level) / 2) * float(x.std(ddof=1))
    return max(3, math.ceil((reach / (margin - abs(float(x.mean())))) ** 2))


def pairs_for_share_within(first: int, second: int, pairs: int, margin: float, sign: bool = False) -> int | None:
    """Return how many pairs would put the whole interval of a difference of shares within a margin.

    Args:
        first: Pairs in favour of the first method.
        second: Pairs in favour of the second.
        pairs: All pairs.
        margin: The margin.
        sign: Whether the effect is that of a sign test, the share of wins minus a half, and not that of McNemar's.

    Examples:
        >>> pairs_for_share_within(6, 6, 40, 0.15)
        40
    """
    if not pairs:
        return None

    def interval(n: int) -> Interval:
        a, b = round(n * first / pairs), round(n * second / pairs)
        if not sign:
            return matched_pairs(a, b, n)
        share = wilson(a, a + b)
        return Interval(share.value - 0.5, share.low - 0.5, share.high - 0.5)

    return next((n for n in _SIZES if interval(n).within(margin)), None)


def mcnemar_power(pairs: int, only_first: float, only_second: float, alpha: float) -> float:
    """Return the probability that McNemar's test is significant in favour of the first method.

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
    total = 0.0
    for discordant in range(pairs + 1):
        needed = _needed_wins(discordant, alpha)
        if needed is not None:
            total += _binomial(discordant, pairs, either) * _upper_tail(needed, discordant, only_first / either)
    return total


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
def detectable_difference(pairs: int, only_second: float, alpha: float, power: float = _POWER) -> float | None:
    """Return the smallest difference of shares that McNemar's test would have shown; None if there is none.

    Args:
        pairs: Number of pairs.
        only_second: Probability that only the method that is not better trains.
        alpha: Two-sided level.
        power: The power.

    Examples:
        >>> detectable_difference(120, 0.05, 0.00114) < detectable_difference(40, 0.05, 0.00114) < 1.0
        True
    """
    return _smallest(
        lambda effect: mcnemar_power(pairs, only_second + effect, only_second, alpha) >= power, 1.0 - 2 * only_second
    )


@functools.cache
def detectable_share(pairs: int, alpha: float, power: float = _POWER) -> float | None:
    """Return by how much the share of pairs won must exceed a half for a sign test to show it; None if it cannot.

    Examples:
        >>> detectable_share(120, 0.00114) < detectable_share(20, 0.00114) < 0.5
        True
    """
    needed = _needed_wins(pairs, alpha)
    if needed is None:
        return None
    return _smallest(lambda effect: _upper_tail(needed, pairs, 0.5 + effect) >= power, 0.5)


def detectable_mean(spread: float, pairs: float, alpha: float, power: float = _POWER) -> float | None:
    """Return the smallest mean difference that would have been shown, by the normal approximation.

    Examples:
        >>> round(detectable_mean(0.1, 20, 0.0015), 3)
        0.1
    """
    if pairs < 3:
        return None
    return (normal_quantile(1 - alpha / 2) + normal_quantile(power)) * spread / math.sqrt(pairs)
