"""Delay models without a clock: the next arrival is drawn, and its waiting time decides the group of its sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .._util.checks import Range, checked_flag, several
from .._util.seeds import sample_seeds, stream, uniforms
from ..policy import PolicyLike
from ..trace import Trace
from .base import (
    DelayModel,
    arrivals_trace,
    checked_steps,
    checked_workers,
    group_names,
    group_shares,
    groups_from,
    last_arrivals,
)

__all__ = ["Constant", "DataDependent", "Uniform"]

_WEIGHT = Range(0, low_open=True)


class DataDependent(DelayModel):
    """The paper's delay model: workers arrive at random, and long waits belong to slow samples.

    At every arrival worker i of M arrives with probability ``p_i``, proportional to i by default. Its waiting time is
    geometric. If it exceeds ``tau_i = log(q)/log(1-p_i)``, the sample is of the slow group, which has share q.

    Args:
        workers: Number of workers M.
        slow_share: Share q of the slow group.
        shares: Shares of several groups instead, fastest first; each takes the longest waits not taken by a slower one.
        weights: Arrival weights of the workers, proportional to 1, 2, ..., M by default.
        exact: Waiting times are whole numbers and the threshold is not, so the literal rule makes the slow share too
            large (0.108 instead of 0.1 for M = 7). True randomises at the threshold: the share is exact for every
            worker; False is the paper's literal rule.
        dependent: False draws the groups independently of the wait: the control of the paper's delay figure.

    Examples:
        >>> trace = DataDependent(workers=7, slow_share=0.1).trace(steps=3750, seed=0)
        >>> slow = trace.group == 1
        >>> round(float(slow.mean()), 2), round(float(trace.delay[slow].mean() / trace.delay[~slow].mean()), 1)
        (0.1, 4.6)
    """

    def __init__(
        self,
        workers: int,
        slow_share: float | None = None,
        *,
        shares: Sequence[float] | None = None,
        weights: Sequence[float] | None = None,
        exact: bool = True,
        dependent: bool = True,
    ) -> None:
        self.workers = checked_workers(workers)
        self.shares = group_shares(slow_share, shares, default=0.1)
        self.weights = tuple(range(1, self.workers + 1)) if weights is None else tuple(several("weights", weights))
        if len(self.weights) != self.workers:
            raise ValueError(f"Got {len(self.weights)} weights for {self.workers} workers")
        for weight in self.weights:
            _WEIGHT.check("weight", weight)
        self.exact, self.dependent = checked_flag("exact", exact), checked_flag("dependent", dependent)

    def __repr__(self) -> str:
        own = "" if self.weights == tuple(range(1, self.workers + 1)) else f", weights={list(self.weights)}"
        return (
            f"{type(self).__name__}(workers={self.workers}, shares={list(self.shares)}{own}, exact={self.exact}, "
            f"dependent={self.dependent})"
        )

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """The arrival probability of every worker."""
        weights = np.asarray(self.weights, dtype=np.float64)
        probabilities: NDArray[np.float64] = weights / weights.sum()
        return probabilities

    def trace(self, steps: int, seed: int = 0, policy: PolicyLike | None = None) -> Trace:
        """Return a schedule of ``steps`` arrivals, under a policy that makes no worker wait and cancels nothing."""
        steps, seed = checked_steps(steps, seed)
        p = self.probabilities
        edges = np.cumsum(p)
        drawn = np.searchsorted(edges[:-1], stream(seed, "arrivals").random(steps), side="right")
        worker = drawn.astype(np.int32)
        return arrivals_trace(
            worker,
            policy,
            workers=self.workers,
            seed=seed,
            model=repr(self),
            groups=group_names(self.shares),
            group=self._groups(worker, p, seed),
        )

    def _groups(self, worker: NDArray[np.int32], p: NDArray[np.float64], seed: int) -> NDArray[np.int16]:
        steps = len(worker)
        u = stream(seed, "groups").random(steps)
        if not self.dependent:
            return groups_from(u, self.shares)
        wait = np.arange(1, steps + 1) - last_arrivals(worker)
        stay = (1.0 - p)[worker]
        if self.exact:
            # P(T > wait) + u·P(T = wait) is uniform, and small for long waits.
            beyond = stay**wait
            return groups_from(beyond + u * (stay ** (wait - 1) - beyond), self.shares)
        tails = np.cumsum(np.asarray(self.shares)[::-1])[:-1]  # shares of the slowest group, the two slowest, ...
        with np.errstate(divide="ignore"):
            thresholds = np.log(tails)[:, None] / np.log(stay)
        group: NDArray[np.int16] = np.sum(wait > thresholds * (1 + 1e-12), axis=0, dtype=np.int16)
        return group


class Uniform(DataDependent):
    """Every worker is equally likely to arrive next.

    Args:
        workers: Number of workers M.
        slow_share: Share of a slow group, if there is one.
        shares: Shares of several groups instead, fastest first.
        exact: As in `DataDependent`.
        dependent: As in `DataDependent`.

    Examples:
        >>> trace = Uniform(workers=4).trace(steps=10_000, seed=0)
        >>> round(float((trace.delay + 1).mean()), 1)
        4.0
    """

    def __init__(
        self,
        workers: int,
        slow_share: float | None = None,
        *,
        shares: Sequence[float] | None = None,
        exact: bool = True,
        dependent: bool = True,
    ) -> None:
        if slow_share is None and shares is None:
            shares = (1.0,)
        weights = (1,) * checked_workers(workers)
        super().__init__(workers, slow_share, shares=shares, weights=weights, exact=exact, dependent=dependent)

    def __repr__(self) -> str:
        options = f"shares={list(self.shares)}, exact={self.exact}, dependent={self.dependent}"
        return f"Uniform(workers={self.workers}, {options})"


class Constant(DelayModel):
    """Workers take turns: after the first round every delay is M - 1.

    Args:
        workers: Number of workers M.
        slow_share: Share of a slow group, for problems that have one; here it is not slower.
        shares: Shares of several groups instead, fastest first.

    Examples:
        >>> Constant(workers=3).trace(steps=7, seed=0).delay.tolist()
        [0, 1, 2, 2, 2, 2, 2]
    """

    def __init__(self, workers: int, slow_share: float | None = None, *, shares: Sequence[float] | None = None) -> None:
        self.workers = checked_workers(workers)
        self.shares = group_shares(slow_share, shares)

    def __repr__(self) -> str:
        own = "" if len(self.shares) == 1 else f", shares={list(self.shares)}"
        return f"Constant(workers={self.workers}{own})"

    def trace(self, steps: int, seed: int = 0, policy: PolicyLike | None = None) -> Trace:
        """Return a schedule of ``steps`` arrivals, under a policy that makes no worker wait and cancels nothing."""
        steps, seed = checked_steps(steps, seed)
        worker = np.arange(steps) % self.workers
        # Worker i's n-th ticket is number i + n·M: tickets arrive in the order they were issued.
        group = groups_from(uniforms(sample_seeds(seed, steps)), self.shares)
        names = group_names(self.shares)
        return arrivals_trace(
            worker, policy, workers=self.workers, seed=seed, model=repr(self), groups=names, group=group
        )
