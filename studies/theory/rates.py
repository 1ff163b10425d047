"""Rates: the theorems' quantities measured against T, M and the learning rate, with fitted slopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from latecomer._util.intervals import Interval
from latecomer.delays import DelayModel, Uniform
from latecomer.optim.projection import Ball
from latecomer.problems import Logistic, Quadratic
from latecomer.simulation import simulate
from latecomer.theory.estimates import Constants, estimate
from latecomer.theory.measuring import mean_squared_gradient
from latecomer.theory.theorem1 import nonconvex
from latecomer.theory.theorem2 import convex

__all__ = ["Slope", "constants", "convex_run", "fitted", "nonconvex_run", "slope"]

DIMENSIONS = 10


@dataclass(frozen=True)
class Slope(Interval):
    """A power law fitted to measurements, with its 95 % interval.

    Examples:
        >>> str(Slope(-0.5, -0.6, -0.4))
        '-0.50 (-0.60 to -0.40)'
    """

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    def no_slower_than(self, declared: float) -> bool:
        """Return whether the interval excludes that the quantity falls more slowly than the declared power."""
        return self.high <= declared


def slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Fit ``log y = a + slope·log x`` by least squares.

    Examples:
        >>> found = slope([1, 10, 100, 1000], [2.0, 0.2, 0.02, 0.002])
        >>> round(found.value, 6), found.no_slower_than(-0.9)
        (-1.0, True)
    """
    from scipy import stats  # type: ignore[import-untyped,unused-ignore]

    fit = stats.linregress(np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float)))
    half = float(stats.t.ppf(0.975, max(1, len(x) - 2))) * float(fit.stderr)
    return Slope(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)


def nonconvex_run(
    steps: int, workers: int, *, seed: int = 0, method: str = "ordered-momentum", delays: DelayModel | None = None
) -> dict[str, Any]:
    """Run a method on a quadratic with Theorem 1's parameters; return the mean squared gradient and the bounds.

    Args:
        steps: T.
        workers: M.
        seed: Draws schedule and samples.
        method: A method with a momentum.
        delays: The delay model; by default all workers are equally likely, independent of the sample.

    Examples:
        >>> row = nonconvex_run(steps=500, workers=3)
        >>> row["measured"] < row["repaired"]
        True
    """
    problem = Quadratic(DIMENSIONS, curvature=(0.1, 1.0), centres=(-0.1, 0.9), shares=(0.9, 0.1), start=1.0, noise=0.3)
    spread = float((problem.curvature**2).sum()) * 0.09 + DIMENSIONS * 0.09  # of the centres, and of the noise
    promised = nonconvex(L=problem.L, delta=problem.delta, sigma=spread**0.5, workers=workers, steps=steps)
    model = delays or Uniform(workers, slow_share=0.1, dependent=False)
    trace = model.trace(steps, seed)
    measured = mean_squared_gradient(problem, method, trace, lr=promised.lr, beta=promised.beta)
    known = {"steps": steps, "workers": workers, "seed": seed, "method": method}
    return {**known, "measured": measured, "bound": promised.bound, "repaired": promised.repaired}


def convex_run(
    problem: Logistic,
    steps: int,
    workers: int,
    *,
    position: float = 1.0,
    seed: int = 0,
    delays: DelayModel | None = None,
) -> dict[str, Any]:
    """Run Algorithm 2 on the softmax regression; return the excess loss of ``x_T`` and the bounds.

    Args:
        problem: The regression.
        steps: T.
        workers: M.
        position: Position of the learning rate in Theorem 2's interval, from 0 (smallest) to 1 (largest), on a log
            scale.
        seed: Draws schedule and samples.
        delays: The delay model; by default all workers are equally likely, independent of the sample.

    Examples:
        >>> row = convex_run(Logistic(), steps=200, workers=3)
        >>> 0 < row["measured"] < row["repaired"]
        True
    """
    found = constants(problem)
    promised = convex(
        L=problem.L,
        D=problem.diameter,
        sigma=found.sigma.high,
        sigma_L=found.sigma_L.high,
        G=problem.gradient_at_minimum,
        workers=workers,
        steps=steps,
        sup_noise=found.sup_noise,
        sup_noise_L=2.0 * problem.L,
    )
    lr = promised.lr_min ** (1 - position) * promised.lr_max**position
    trace = (delays or Uniform(workers, slow_share=0.1, dependent=False)).trace(steps - 1, seed)  # x_T, not x_{T+1}
    projection = Ball(problem.radius)
    run = simulate(problem, "ordered-mu2-anytime", trace, lr=lr, projection=projection, evaluate_every=steps)
    known = {"steps": steps, "workers": workers, "seed": seed, "position": position, "lr": lr}
    bounds = {"bound": promised.bound(lr), "repaired": promised.repaired(lr)}
    return {**known, "measured": run.final["excess"], **bounds}


@lru_cache(maxsize=4)
def constants(problem: Logistic) -> Constants:
    """Return sampled constants of the regression, at zero and on the way to its minimum.

    Examples:
        >>> found = constants(Logistic())
        >>> 0 < found.sigma.low < found.sigma.high
        True
    """
    return estimate(problem, samples=96, points=4, path=2.0, iterations=5)


def fitted(rows: pl.DataFrame, x: str) -> tuple[Slope, NDArray[np.float64]]:
    """Fit the power of ``measured`` in a column; return it with the means over seeds.

    Examples:
        >>> rows = pl.DataFrame({"steps": [10, 100, 1000], "measured": [1.0, 0.1, 0.01]})
        >>> round(fitted(rows, "steps")[0].value, 6)
        -1.0
    """
    means = rows.group_by(x).agg(pl.col("measured").mean()).sort(x)
    return slope(rows[x].to_list(), rows["measured"].to_list()), means["measured"].to_numpy()
