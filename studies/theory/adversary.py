"""Adversarial schedules: the next arrival depends on what is in flight, and the worst rule is searched for."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from latecomer._util.seeds import sample_seeds, stream, uniforms
from latecomer.delays import DelayModel
from latecomer.delays.base import arrivals_trace, groups_from
from latecomer.policy import PolicyLike
from latecomer.problems import Quadratic
from latecomer.theory.measuring import mean_squared_gradient
from latecomer.theory.theorem1 import catch_up, nonconvex
from latecomer.trace import Trace

__all__ = ["Adversary", "measure", "worst"]


@dataclass(frozen=True)
class Adversary(DelayModel):
    """The job with the largest score arrives next, so delays may depend on the data in any way.

    The score is ``hold·g + age·a/M + swing·g·s + noise·u`` with g = +1 for a slow sample and -1 for a fast one, a its
    age in arrivals, s = ±1 a square wave, and u uniform noise.

    Args:
        workers: M.
        share: Share of the slow samples.
        hold: Negative holds slow samples back, positive fast ones.
        age: Positive bounds how long a job waits.
        swing: Holds one group for half a period and releases it in the other.
        period: Period of the square wave, in units of M arrivals.
        noise: Size of the random part.

    Examples:
        >>> trace = Adversary(workers=5, hold=-1.0, age=0.1).trace(steps=500, seed=0)
        >>> bool(trace.delay[trace.group == 1].mean() > 3 * trace.delay[trace.group == 0].mean())
        True
    """

    workers: int
    share: float = 0.5
    hold: float = 0.0
    age: float = 0.05
    swing: float = 0.0
    period: float = 10.0
    noise: float = 0.0

    def trace(self, steps: int, seed: int = 0, policy: PolicyLike | None = None) -> Trace:
        """Return a schedule of ``steps`` arrivals, under a policy that makes no worker wait and cancels nothing."""
        M = self.workers
        group = groups_from(uniforms(sample_seeds(seed, M + steps)), (1 - self.share, self.share))
        sign = np.where(group == 1, 1.0, -1.0)
        random = stream(seed, "adversary").random((steps, M)) * self.noise
        held, since = np.arange(M), np.zeros(M)
        worker, kind = np.empty(steps, dtype=np.int32), np.empty(steps, dtype=np.int16)
        for t in range(steps):
            wave = self.swing if (t // max(1, int(self.period * M / 2))) % 2 else -self.swing
            score = (self.hold + wave) * sign[held] + self.age * (t - since) / M + random[t]
            who = int(np.argmax(score))
            worker[t], kind[t] = who, group[held[who]]
            held[who], since[who] = M + t, t + 1
        groups = ("fast", "slow")
        return arrivals_trace(worker, policy, workers=M, seed=seed, model=repr(self), groups=groups, group=kind)


def measure(
    method: str,
    adversary: Adversary,
    steps: int,
    *,
    lr: float,
    beta: float,
    start: float,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the mean squared gradient of ``f = x²/2`` with noise ±1, and the largest stochastic gradient in the run.

    Examples:
        >>> squared, largest = measure("catch-up", Adversary(workers=3), 200, lr=0.05, beta=0.2, start=1.0)
        >>> 0 < squared < 1 < largest
        True
    """
    # Fast samples pull to one side, slow ones to the other; their mean is at zero and the larger noise has norm 1.
    share, scale = adversary.share, 1.0 / max(adversary.share, 1.0 - adversary.share)
    centres, shares = (share * scale, -(1.0 - share) * scale), (1.0 - share, share)
    problem = Quadratic(1, (1.0, 1.0), centres=centres, shares=shares, start=start, noise=0)
    largest = 0.0

    def look(x: Tensor) -> None:
        nonlocal largest
        largest = max(largest, *(abs(x.item() - centre) for centre in problem.centres))

    trace = adversary.trace(steps, seed)
    return mean_squared_gradient(problem, method, trace, lr=lr, beta=beta, on_iterate=look), largest


def ratio(method: str, adversary: Adversary, steps: int, start: float, seed: int = 0) -> float:
    """Return the mean squared gradient divided by the proved bound of the method, at the bound's parameters."""
    share, M = adversary.share, adversary.workers
    scale = 1.0 / max(share, 1.0 - share)
    sigma, sup = math.sqrt(share * (1 - share)) * scale, 1.0
    known: dict[str, Any] = {"L": 1.0, "delta": start**2 / 2, "sigma": sigma, "workers": M, "steps": steps}
    if method == "ordered-momentum":
        promised = nonconvex(**known, sup_noise=sup)
        squared, _ = measure(method, adversary, steps, lr=promised.lr, beta=promised.beta, start=start, seed=seed)
        return squared / promised.repaired
    first = catch_up(**known, sup_gradient=sup + start)
    squared, largest = measure(method, adversary, steps, lr=first.lr, beta=first.beta, start=start, seed=seed)
    return squared / catch_up(**known, sup_gradient=largest, lr=first.lr).bound


def worst(
    method: str,
    *,
    workers: int = 11,
    steps: int = 2000,
    tries: int = 40,
    seed: int = 0,
) -> tuple[float, Adversary, float]:
    """Search for the schedule and the start that bring a method closest to its proved bound.

    Random tries first, then small changes of the best one. Returns the largest ratio of the mean squared gradient to
    the bound, with the schedule and the start that gave it.

    Args:
        method: ``"ordered-momentum"`` or ``"catch-up"``.
        workers: M.
        steps: T.
        tries: Number of schedules to try.
        seed: Seed of the search.

    Examples:
        >>> found, adversary, start = worst("catch-up", workers=3, steps=200, tries=3)
        >>> 0 < found < 1
        True
    """
    rng = stream(seed, "search")

    def drawn() -> tuple[Adversary, float]:
        hold, swing = rng.normal(0, 1, 2)
        age, period = 10 ** rng.uniform(-3, 0), 10 ** rng.uniform(-0.5, 2)
        share = float(rng.choice([0.05, 0.1, 0.3, 0.5]))
        return Adversary(workers, share, hold, age, swing, period, float(rng.uniform(0, 1))), 10 ** rng.uniform(-2, 0.5)

    best, who, where = 0.0, *drawn()
    for index in range(tries):
        adversary, start = drawn()
        if index >= tries // 2:  # half of them near the best
            changed = [value * math.exp(rng.normal(0, 0.4)) for value in astuple(who)[2:]]
            adversary = replace(who, **dict(zip(("hold", "age", "swing", "period", "noise"), changed, strict=True)))
            start = where * math.exp(rng.normal(0, 0.4))
        found = ratio(method, adversary, steps, start, seed=seed)
        if found > best:
            best, who, where = found, adversary, start
    return best, who, where
