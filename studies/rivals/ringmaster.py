"""Ringmaster's quadratic, with the settings of its public code: the problem, the workers' times, and the methods.

The settings are those of ``code/experiments/ringmaster_new.py`` in the public repository vectozavr/ringmaster-lmo: the
experiment of arXiv 2501.16168, with worker times that grow like sqrt(i). The code is not copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import latecomer as lc
from latecomer._util.seeds import stream
from latecomer.delays import ClockModel
from latecomer.problems.base import Problem

__all__ = ["DIMENSIONS", "METHODS", "SECONDS", "WORKERS", "SquareRootTimes", "Tridiagonal", "curves"]

DIMENSIONS, WORKERS, SECONDS, NOISE = 1729, 6174, 2000.0, 0.01
METHODS: dict[str, dict[str, Any]] = {
    "ringmaster-stop": {"lr": 0.25, "R": 6},
    "rennala-stop": {"lr": 1.0, "S": 6},
    "rennala": {"lr": 1.0, "S": 6},
    "delay-adaptive": {"lr": 0.00032},
}
"""The compared methods, with the hyper-parameters that the public code calls tuned. Its Rennala is ``rennala-stop``."""
NEAR = 100
"""Workers that take part in methods with stops: the others never finish a job, which `curves` verifies."""
POINTS = 100
"""About so many points per curve."""


class Tridiagonal(Problem):
    """``f(x) = x·A·x/2 - b·x`` with ``A = tridiag(-1, 2, -1)/4`` and ``b = (-1/4, 0, ...)``.

    It starts from ``(sqrt(d), 0, ...)``. The noise of a gradient is one Gaussian number for all
    coordinates, as in the public code.

    Args:
        dimensions: Number of coordinates d.
        noise: Standard deviation of the noise.
    """

    name, groups = "tridiagonal", 1

    def __init__(self, dimensions: int = DIMENSIONS, noise: float = NOISE) -> None:
        self.dimensions, self.noise = dimensions, noise
        # A·x = b has the solution x_i = -(d + 1 - i)/(d + 1), i = 1..d; f there is -b·x/2.
        self.least = -0.5 * 0.25 * dimensions / (dimensions + 1)

    def __repr__(self) -> str:
        return f"Tridiagonal(dimensions={self.dimensions}, noise={self.noise:g})"

    def model(self, seed: int) -> nn.Module:
        """Return the starting point; the seed has no effect."""
        module = nn.Module()
        start = torch.zeros(self.dimensions, dtype=torch.float64)
        start[0] = math.sqrt(self.dimensions)
        module.x = nn.Parameter(start)
        return module

    def batch(self, sample: int, group: int) -> float:
        """Return the noise of a sample."""
        return self.noise * float(np.random.Generator(np.random.PCG64(sample)).standard_normal())

    def gradient(self, x: Tensor, batch: Any, out: Tensor) -> bool:
        """Write ``A·x - b + noise``."""
        torch.mul(x, 0.5, out=out)
        out[1:].sub_(x[:-1], alpha=0.25)
        out[:-1].sub_(x[1:], alpha=0.25)
        out[0] += 0.25
        out.add_(batch)
        return True

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of one sample."""
        x: Tensor = model.x  # type: ignore[assignment]
        loss: Tensor = self.value(x) + batch * x.sum()
        return loss

    def value(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        value: Tensor = (x @ x) / 4 - (x[1:] @ x[:-1]) / 4 + x[0] / 4
        return value

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return f above its minimum, and the squared norm of its gradient."""
        x: Tensor = model.x.detach()  # type: ignore[operator]
        gradient = torch.empty_like(x)
        self.gradient(x, 0.0, gradient)
        return {"loss": float(self.value(x)) - self.least, "squared_gradient": float(gradient @ gradient)}


class SquareRootTimes(ClockModel):
    """Worker i = 0, 1, ... takes ``1 + sqrt(i) + |z|`` seconds for a job, z Gaussian with deviation ``sqrt(i + 1)``.

    Args:
        workers: Number of workers; those of a smaller number have the same times.
    """

    def __init__(self, workers: int = WORKERS) -> None:
        self.workers = workers

    def jobs(self, seed: int) -> Any:
        """Return the durations."""
        generators: dict[int, np.random.Generator] = {}
        drawn: dict[int, list[float]] = {}

        def job(ticket: int, worker: int) -> tuple[float, int]:
            if not drawn.get(worker):
                if worker not in generators:
                    generators[worker] = stream(seed, "durations", worker)
                noise = np.abs(generators[worker].normal(0.0, math.sqrt(worker + 1), 16))
                drawn[worker] = (1.0 + math.sqrt(worker) + noise).tolist()
            return drawn[worker].pop(), 0

        return job


def curves(seed: int, seconds: float = SECONDS, workers: int = WORKERS) -> Iterator[dict[str, Any]]:
    """Run every method for so many seconds of the virtual clock, and yield the rows of its curve."""
    for method, options in METHODS.items():
        stops = method.endswith("-stop")
        own = min(workers, NEAR) if stops else workers
        options = dict(options)
        rule = method if method in lc.optim.METHODS else "async-sgd"
        given: dict[str, Any] = {name: options.pop(name) for name in ("R", "S") if name in options}
        policy = lc.policy.as_policy(method if given else None, own, given)
        trace = _until(SquareRootTimes(own), seconds, seed, policy)
        if own < workers:
            _check_unreached(trace, own, *given.values())
        each = max(1, len(trace) // POINTS)
        run = lc.simulate(Tridiagonal(), rule, trace, policy=policy, evaluate_every=each, **options)
        for row in run.history.iter_rows(named=True):
            kept = {key: row[key] for key in ("time", "update", "arrival", "loss", "squared_gradient")}
            yield {"method": method, "seed": seed, **kept}


def _until(model: ClockModel, seconds: float, seed: int, policy: lc.policy.Policy) -> lc.Trace:
    """Return the arrivals of so many seconds."""
    steps = 4096
    while True:
        trace = model.trace(steps, seed, policy=policy)
        if trace.end[-1] >= seconds:
            return trace.head(max(1, int((trace.end < seconds).sum())))
        steps = int(steps * min(4.0, 1.1 * seconds / float(trace.end[-1]) + 0.1))


def _check_unreached(trace: lc.Trace, workers: int, arrivals: int) -> None:
    """Raise unless no worker beyond these could have finished a job.

    A job is cancelled at the latest once so many contributions have arrived since it began: R of Ringmaster, each an
    update, or the S of an update of Rennala's. Worker ``workers`` and all after it need at least ``1 + sqrt(workers)``
    seconds, so if these never take that long, they never arrive, and change nothing.
    """
    ends = np.concatenate([[0.0], trace.end])
    longest = float((ends[arrivals:] - ends[:-arrivals]).max())
    if longest >= 1.0 + math.sqrt(workers):
        raise ValueError(
            f"{arrivals} arrivals took up to {longest:.1f} s, and worker {workers} might have finished a job"
        )
