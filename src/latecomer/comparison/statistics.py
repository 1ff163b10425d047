"""Statistics of a comparison: time to a target and performance profiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["NEVER", "Reached", "median", "performance_profile", "reached", "time_ratios"]


class Reached(NamedTuple):
    """When a run first met its target: on the clock and in updates; both infinite if it never did."""

    time: float
    updates: float


NEVER = Reached(math.inf, math.inf)
"""A run that misses its target."""


def reached(history: pl.DataFrame, metric: str, target: float, higher: bool) -> Reached:
    """Return when a run first met its target, at the resolution of its evaluations.

    Args:
        history: Its evaluations, with ``time``, ``update`` and the metric.
        metric: The metric.
        target: The target.
        higher: Whether higher is better.

    Examples:
        >>> rows = pl.DataFrame({"update": [0, 10, 20], "time": [0.0, 4.0, 9.0], "loss": [3.0, 1.0, 0.5]})
        >>> reached(rows, "loss", 1.0, higher=False)
        Reached(time=4.0, updates=10.0)
        >>> reached(rows, "loss", 0.1, higher=False).time
        inf
    """
    values = history[metric].cast(pl.Float64).to_numpy()
    met = np.flatnonzero(values >= target if higher else values <= target)  # NaN meets no target
    if not len(met):
        return NEVER
    first = int(met[0])
    return Reached(float(history["time"][first]), float(history["update"][first]))


def median(values: Sequence[float]) -> float:
    """Return the median; infinite if half of the values or more are, and NaN if there are none.

    Examples:
        >>> median([1.0, 2.0, float("inf")]), median([1.0, float("inf")]), median([2.0, 4.0])
        (2.0, inf, 3.0)
    """
    return statistics.median(values) if len(values) else math.nan


def time_ratios(times: Mapping[str, Sequence[float]]) -> dict[str, NDArray[np.float64]]:
    """Return every method's time over the shortest one of the same instance; infinite for a miss.

    Args:
        times: Times to target by method, one per instance, in the same order for all methods.

    Examples:
        >>> time_ratios({"a": [1.0, 4.0], "b": [2.0, float("inf")]})["b"].tolist()
        [2.0, inf]
    """
    lengths = {len(each) for each in times.values()}
    if len(lengths) > 1:
        raise ValueError(f"The methods have {sorted(lengths)} instances (expected the same number for all)")
    table = np.array([list(each) for each in times.values()], dtype=np.float64).reshape(len(times), -1)
    best = table.min(axis=0, initial=math.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(np.isinf(table), math.inf, np.where(table == best, 1.0, table / best))
    return dict(zip(times, ratios, strict=True))


def performance_profile(times: Mapping[str, Sequence[float]], factors: Sequence[float]) -> pl.DataFrame:
    """Return the share of instances that each method solves within a factor of the fastest method's time.

    An instance that no method solves stays in the denominator. At factor 1 it is the share of instances on which the
    method is the fastest; for large factors it is the share that the method solves at all.

    Args:
        times: Times to target by method, one per instance; infinite for a miss.
        factors: The factors, at least 1.

    Examples:
        >>> times = {"a": [1.0, 4.0, float("inf")], "b": [2.0, 2.0, float("inf")]}
        >>> performance_profile(times, [1.0, 2.0])["share"].round(3).to_list()
        [0.333, 0.667, 0.333, 0.667]

    References:
        Dolan and More, *Benchmarking optimization software with performance profiles*, 2002.
    """
    ratios = time_ratios(times)
    rows = [
        {"method": method, "factor": float(factor), "share": float((own <= factor).mean()) if len(own) else math.nan}
        for method, own in ratios.items()
        for factor in factors
    ]
    return pl.DataFrame(rows, schema={"method": pl.String, "factor": pl.Float64, "share": pl.Float64})
