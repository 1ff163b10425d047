"""Where the workers' time went: idle, busy, and busy with what was thrown away."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .schema import STATUSES
from .table import Trace

__all__ = ["WorkShares", "shares_between", "work_shares"]

_THROWN_AWAY = ("dropped", "zero", "cancelled")
"""Statuses of contributions that a worker computed, in whole or in part, and that moved nothing."""


class WorkShares(NamedTuple):
    """Where the workers' time went.

    Attributes:
        seconds: Worker seconds from the start to the last arrival: workers times that duration.
        idle: Share of them without a job.
        wasted: Share of the seconds with a job whose contribution was dropped, cancelled or counted as zero.
    """

    seconds: float
    idle: float
    wasted: float


def work_shares(trace: Trace) -> WorkShares:
    """Return idle time and thrown-away work of a trace with a clock.

    A cancelled job counts until the arrival that cancelled it, a job in flight until the last arrival.

    Examples:
        >>> import latecomer as lc
        >>> model = lc.delays.WorkerSpeeds([1.0, 3.0])
        >>> found = work_shares(model.trace(steps=6, policy="synchronous"))
        >>> found.seconds, round(found.idle, 3), found.wasted        # the fast one waits 2 of 3 seconds
        (18.0, 0.333, 0.0)
    """
    if trace.header.clock == "none" or not len(trace):
        raise ValueError("Idle time needs a trace with arrivals and a clock: use a delay model that has one")
    columns, last, first = trace.columns, float(trace.end.max()), float(np.nanmin(trace.columns["start"]))
    ended = columns["ended"]
    at = np.concatenate([[first], trace.end])  # when so many arrivals had been counted
    end = np.where(ended >= 0, at[np.maximum(ended, 0)], columns["end"])
    return shares_between(first, last, trace, columns["start"], np.where(np.isnan(end), last, end))


def shares_between(
    first: float, last: float, trace: Trace, start: NDArray[np.float64], end: NDArray[np.float64]
) -> WorkShares:
    """Return where the workers' time between two times went, if each row's job kept its worker busy for so long."""
    busy = np.maximum(0.0, np.minimum(end, last) - np.maximum(start, first))
    thrown = np.isin(trace.columns["status"], [STATUSES.index(name) for name in _THROWN_AWAY])
    seconds, spent = trace.header.workers * (last - first), float(busy.sum())
    idle = max(0.0, 1.0 - spent / seconds) if seconds else 0.0
    return WorkShares(seconds, idle if idle > 1e-12 else 0.0, float(busy[thrown].sum()) / spent if spent else 0.0)
