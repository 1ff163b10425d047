"""A number with its interval, and Student's interval of a few measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .extras import needs

__all__ = ["Interval", "mean"]


@dataclass(frozen=True)
class Interval:
    """A number with its confidence interval; of 95 % if nothing else is said.

    Examples:
        >>> found = Interval(1.0, 0.5, 1.5)
        >>> str(found), found.half, found.within(1.2)
        ('1 (0.5 to 1.5)', 0.5, False)
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    @property
    def half(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2

    def within(self, margin: float) -> bool:
        """Whether the whole interval lies between minus and plus a margin."""
        return -margin <= self.low and self.high <= margin


def mean(values: Sequence[float] | NDArray[np.float64], comparisons: int = 1) -> Interval:
    """Return the mean of independent measurements with Student's interval; one measurement has an infinite interval.

    Args:
        values: The measurements.
        comparisons: Number of comparisons that the interval must cover together: it is widened so that all of them hold
            with 95 % confidence (Bonferroni).

    Examples:
        >>> str(mean([1.0, 2.0, 3.0]))
        '2 (-0.4841 to 4.484)'
        >>> mean([1.0]).high
        inf
    """
    with needs("report", "scipy", "A confidence interval"):
        from scipy import stats  # type: ignore[import-untyped,unused-ignore]

    if not len(values):
        raise ValueError("mean needs at least one value")
    found = np.asarray(values, dtype=float)
    if len(found) == 1:
        return Interval(float(found[0]), -math.inf, math.inf)
    half = (
        float(stats.t.ppf(1 - 0.025 / comparisons, len(found) - 1)) * float(found.std(ddof=1)) / math.sqrt(len(found))
    )
    return Interval(float(found.mean()), float(found.mean()) - half, float(found.mean()) + half)
