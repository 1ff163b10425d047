"""The counter-example to Theorem 1: it satisfies all assumptions, uses its parameters, and exceeds its bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from .._util.checks import whole_number
from ..delays import SampleCost
from ..problems import Quadratic
from ..trace import Trace
from .measuring import mean_squared_gradient
from .theorem1 import NonConvex, nonconvex

__all__ = ["METHODS", "CounterExample"]

METHODS = ("ordered-momentum", "catch-up", "momentum", "async-sgd")
"""Methods that the figure compares."""


@dataclass(frozen=True)
class CounterExample:
    """``f = x²/2`` with noise +0.9 on one job in ten, which lasts 100, and -0.1 on the others, which last 1.

    So most of the noise in flight has one sign. At the start both limits on beta in Theorem 1 are equal.

    Args:
        workers: M.
        steps: T; by default it grows with (M-1)², as the theorem allows.

    Examples:
        >>> example = CounterExample(workers=11)
        >>> example.steps, round(example.promised.beta * 160, 6)
        (1280, 1.0)
        >>> example.measure("ordered-momentum") > 4 * example.measure("ordered-momentum", dependent=False)
        True
    """

    workers: int
    steps: int = 0

    SIGMA = 0.3
    SUP_NOISE = 0.9

    def __post_init__(self) -> None:
        m = whole_number("workers", self.workers, least=2) - 1
        if not whole_number("steps", self.steps):
            object.__setattr__(self, "steps", 64 * m**2 // 5)

    @cached_property
    def promised(self) -> NonConvex:
        """The theorem's parameters and bounds."""
        delta = self.SIGMA**2 * self.steps / (1280 * (self.workers - 1) ** 2)
        return nonconvex(
            L=1, delta=delta, sigma=self.SIGMA, workers=self.workers, steps=self.steps, sup_noise=self.SUP_NOISE
        )

    @property
    def problem(self) -> Quadratic:
        """The objective, started at its distance from the minimum."""
        start = math.sqrt(2 * self.promised.delta)
        return Quadratic(1, curvature=(1.0, 1.0), centres=(0.1, -0.9), shares=(0.9, 0.1), start=start, noise=0.0)

    def trace(self, *, dependent: bool = True, seed: int = 0) -> Trace:
        """Return the schedule; with ``dependent=False`` the same durations are independent of the samples."""
        return SampleCost(self.workers, (1.0, 100.0), 0.1, dependent=dependent).trace(self.steps, seed)

    def measure(self, method: str, *, dependent: bool = True, seed: int = 0) -> float:
        """Return the mean squared gradient at x_1..x_T, with the theorem's beta and lr."""
        trace = self.trace(dependent=dependent, seed=seed)
        return mean_squared_gradient(self.problem, method, trace, lr=self.promised.lr, beta=self.promised.beta)
