"""How fair a method is to slow samples: their influence after clipping, and the bias where the optimum is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..delays import DataDependent
from ..problems import Quadratic
from ..server import Server
from ..simulation import simulate
from ..theory import CounterExample, influence
from ..trace import Trace

__all__ = [
    "PROBLEMS",
    "Fairness",
    "TwoCentres",
    "applied_influence",
    "counter_example_ratio",
    "measure",
    "slow_over_fast",
]


class TwoCentres(Quadratic):
    """The two-centre quadratic with a slow group whose gradients may also be noisier, or have heavier tails.

    Args:
        distance: How far the slow group's centre is from the fast one's; their gradients grow with it.
        slow_noise: Standard deviation of the slow group's noise, in units of the fast one's.
        tail: None for Gaussian noise, or degrees of freedom of a Student distribution for the slow group, scaled to
            quartiles like those of ``slow_noise``: the lower, the heavier; at 2 and below the variance is infinite.
        slow_share: Share of the slow group, for the optimum.

    Examples:
        >>> problem = TwoCentres(distance=10.0, slow_noise=5.0, tail=2.0)
        >>> round(problem.optimum, 3)
        1.0
        >>> fast, slow = (problem.batch(sample=7, group=group)[1] for group in (0, 1))
        >>> bool(fast.abs().max() < slow.abs().max())
        True
    """

    def __init__(
        self, distance: float = 3.0, slow_noise: float = 1.0, tail: float | None = None, slow_share: float = 0.1
    ) -> None:
        super().__init__(centres=(0.0, distance), shares=(1.0 - slow_share, slow_share))
        self.slow_noise, self.tail = slow_noise, tail

    def __repr__(self) -> str:
        return f"TwoCentres({self.centres}, {self.shares}, slow_noise={self.slow_noise:g}, tail={self.tail})"

    def batch(self, sample: int, group: int) -> tuple[float, Tensor | None]:
        """Return the centre and the noise of one sample."""
        centre, noise = super().batch(sample, group)
        if group and noise is not None:
            if self.tail is not None:
                # Numerator and denominator of a Student variable; the stream is another one than the Gaussian's.
                chi = np.random.Generator(np.random.PCG64(sample + 1)).chisquare(self.tail)
                noise.div_(math.sqrt(chi / self.tail))  # one denominator for all coordinates: spherical
            noise.mul_(self.slow_noise)
        return centre, noise


PROBLEMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "near": {"distance": 3.0},
        "far": {"distance": 10.0},
        "loud": {"distance": 3.0, "slow_noise": 5.0},
        "heavy-tailed": {"distance": 3.0, "slow_noise": 2.0, "tail": 1.5},
    }
)
"""Arguments of `TwoCentres`: slow gradients like the fast ones, larger by signal, larger by noise, heavy-tailed."""


@dataclass(frozen=True)
class Fairness:
    """What `measure` found.

    Attributes:
        excess: Excess loss of the mean of the last half of the iterates, at the share of slow samples that arrived;
            infinite if the run diverged.
        slow_over_fast: Mean influence of a slow arrival over that of a fast one, with what the clip did.
        declared: The same without what the clip did.
        clipped: Share of the counted arrivals that were clipped, fast and slow.

    Examples:
        >>> Fairness(0.5, 0.8, 1.0, (0.0, 0.4)).slow_over_fast
        0.8
    """

    excess: float
    slow_over_fast: float
    declared: float
    clipped: tuple[float, float]


def applied_influence(weight: ArrayLike, scale: ArrayLike, feedback: float = 0.0) -> NDArray[np.float64]:
    """Return the lifetime weight of every arrival after clipping.

    An arrival of declared weight w that was clipped by the factor f has ``f·w`` at once. With feedback the rest is
    carried: a unit carried past arrival t is worth ``V_{t-1} = feedback·(f_t·w_t + (1-f_t)·V_t)``, since it comes back
        with
    arrival t, of which ``1-f_t`` is carried on. So the influence is ``f_t·w_t + (1-f_t)·V_t``, and ``V_T = 0``: what is
    still carried at the end has had no say. Exact for one scale; with a scale per tensor the factors are means.

    Args:
        weight: Declared influence of every arrival, by `latecomer.theory.influence`.
        scale: The optimizer's ``last_scale`` after every arrival; arrivals that weigh nothing have 0.
        feedback: The share of what was cut off that is kept.

    Examples:
        >>> applied_influence([1.0, 1.0, 1.0], [0.5, 1.0, 1.0]).tolist()
        [0.5, 1.0, 1.0]
        >>> applied_influence([1.0, 1.0, 1.0], [0.25, 0.5, 1.0], feedback=1.0).tolist()
        [1.0, 1.0, 1.0]
    """
    w, f = np.asarray(weight, dtype=np.float64), np.asarray(scale, dtype=np.float64)
    if w.shape != f.shape or w.ndim != 1:
        raise ValueError(f"Got {w.shape} weights and {f.shape} scales (expected one of each an arrival)")
    result, carried = np.zeros_like(w), 0.0
    for t in range(len(w) - 1, -1, -1):
        if f[t] == 0.0:  # not looked at: what is carried stays where it is
            continue
        result[t] = f[t] * w[t] + (1.0 - f[t]) * carried
        carried = feedback * result[t]
    return result


def slow_over_fast(group: ArrayLike, weight: ArrayLike) -> float:
    """Return the mean weight of the arrivals of group 1 and above over that of group 0; NaN where one is missing.

    Examples:
        >>> slow_over_fast([0, 0, 1], [1.0, 1.0, 0.25])
        0.25
    """
    slow, w = np.asarray(group) > 0, np.asarray(weight, dtype=np.float64)
    if slow.all() or not slow.any() or not w[~slow].any():
        return math.nan
    return float(w[slow].mean() / w[~slow].mean())


def measure(
    problem: str | TwoCentres,
    method: str,
    *,
    lr: float = 0.003,
    steps: int = 20_000,
    workers: int = 7,
    slow_share: float = 0.1,
    trace: Trace | None = None,
    seed: int = 0,
    **options: Any,
) -> Fairness:
    """Run a method on a two-centre quadratic and return how fair it was.

    Args:
        problem: A name in `PROBLEMS`, or a problem.
        method: A name in `latecomer.optim.METHODS`.
        lr: Learning rate.
        steps: Arrivals; half of them to get there, half to average over.
        workers: M of the data-dependent delays.
        slow_share: Share of slow samples.
        trace: Another schedule of two groups instead.
        seed: Draws the schedule and the samples.
        **options: Hyper-parameters of the method.

    Examples:
        >>> short = {"steps": 1000, "lr": 0.03, "beta": 0.1}
        >>> fair, unfair = (measure("near", name, **short) for name in ("catch-up", "ordered-momentum"))
        >>> fair.slow_over_fast, round(unfair.slow_over_fast, 1), fair.excess < unfair.excess
        (1.0, 0.3, True)
    """
    if isinstance(problem, str):
        if problem not in PROBLEMS:
            raise ValueError(f"Unknown problem {problem!r} (expected one of {', '.join(PROBLEMS)})")
        problem = TwoCentres(**PROBLEMS[problem], slow_share=slow_share)
    if trace is None:
        trace = DataDependent(workers=workers, slow_share=slow_share, exact=False).trace(steps=steps, seed=seed)
    scales: list[float] = []
    total = torch.zeros_like(problem.curvature)
    averaged = len(trace) - len(trace) // 2

    def watch(server: Server) -> None:
        scales.append(getattr(server.optimizer, "last_scale", 1.0))
        if len(scales) > len(trace) - averaged:
            total.add_(server.optimizer.param_groups[0]["params"][0].detach())

    run = simulate(problem, method, trace, lr=lr, evaluate_every=len(trace), watch=watch, **options)
    if run.diverged_at is not None:
        return Fairness(math.inf, math.nan, math.nan, (math.nan, math.nan))
    group = trace.group
    realised = Quadratic(centres=problem.centres, shares=(float((group == 0).mean()), float((group > 0).mean())))
    declared = influence(run.trace, method, {"lr": lr, **options})
    scale = np.array(scales)
    weight = applied_influence(declared, scale, float(options.get("feedback", 0.0)))
    # The first arrivals of each worker are of version 1 and may count as zero: group means leave them out.
    counted = declared > 0
    cut = [float((scale[counted & mine] < 1.0).mean()) for mine in (group == 0, group > 0)]
    return Fairness(
        excess=realised.excess(total / averaged),
        slow_over_fast=slow_over_fast(group[counted], weight[counted]),
        declared=slow_over_fast(group[counted], declared[counted]),
        clipped=(cut[0], cut[1]),
    )


def counter_example_ratio(method: str, *, workers: int = 51, seed: int = 0, **options: Any) -> float:
    """Return the mean squared gradient on the counter-example to Theorem 1 over the theorem's bound.

    Args:
        method: A name in `latecomer.optim.METHODS`.
        workers: M; the run has ``64·(M-1)²/5`` arrivals.
        seed: Draws the schedule and the samples.
        **options: More hyper-parameters of the method; beta and lr are the theorem's.

    Examples:
        >>> counter_example_ratio("ordered-momentum", workers=11) > counter_example_ratio("catch-up", workers=11)
        True
    """
    example = CounterExample(workers)
    return example.measure(method, seed=seed, **options) / example.promised.bound
