"""Influence of the arrivals of a trace: the declared influence of a method, by group and by worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..optim import known_method
from ..trace import Trace

__all__ = ["influence", "influence_by_group", "influence_by_worker"]


def influence(trace: Trace, method: str, options: Mapping[str, Any] | None = None) -> NDArray[np.float64]:
    """Return the influence of every arrival, in units of lr and of a gradient without delay.

    Args:
        trace: The trace; zero and dropped arrivals have no influence. What was held counts in a later mean.
        method: A name in `latecomer.optim.METHODS`.
        options: The method's hyper-parameters, such as beta and threshold.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.Constant(workers=3).trace(steps=5, seed=0)
        >>> influence(trace, "ordered-momentum", {"beta": 0.5}).tolist()
        [1.0, 0.0, 0.0, 0.25, 0.25]
    """
    rule, known = known_method(method), {"beta": 0.1, "workers": None, **(options or {})}
    weight = np.zeros(len(trace))
    for workers in np.unique(trace.workers):
        now = trace.workers == workers
        options_now = {**known, "workers": known["workers"] or int(workers)}
        table = [rule.influence(delay=delay, **options_now) for delay in range(int(trace.delay[now].max()) + 1)]
        weight[now] = np.array(table)[trace.delay[now]]
    weight[~np.isin(trace.status, ("applied", "held"))] = 0.0
    if getattr(rule.optimizer, "first_version_once", False):
        weight[(trace.version == 1) & (trace.arrival > 1)] = 0.0
    return weight


def influence_by_group(trace: Trace, method: str, options: Mapping[str, Any] | None = None) -> NDArray[np.float64]:
    """Return the mean influence of an arrival of each group, fastest first; NaN for a group that never arrived.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.DataDependent(workers=7, slow_share=0.1).trace(steps=20_000, seed=0)
        >>> fast, slow = influence_by_group(trace, "ordered-momentum", {"beta": 0.1})
        >>> round(float(slow / fast), 1)
        0.3
    """
    return _mean_by(trace.group, len(trace.header.groups), influence(trace, method, options))


def influence_by_worker(trace: Trace, method: str, options: Mapping[str, Any] | None = None) -> NDArray[np.float64]:
    """Return the mean influence of an arrival of each worker; NaN for one that never arrived.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.DataDependent(workers=3, slow_share=0.1).trace(steps=9_000, seed=0)
        >>> slowest, _, fastest = influence_by_worker(trace, "ordered-momentum", {"beta": 0.1})
        >>> bool(slowest < 0.8 * fastest)
        True
    """
    return _mean_by(trace.worker, trace.header.workers, influence(trace, method, options))


def _mean_by(which: NDArray[Any], count: int, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    arrivals = np.bincount(which, minlength=count)
    with np.errstate(invalid="ignore"):
        mean: NDArray[np.float64] = np.bincount(which, weights=weight, minlength=count) / arrivals
    return mean
