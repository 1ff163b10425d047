"""The quantities in the proof of Theorem 1, measured along a run: the error of the momentum and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from torch import Tensor

from .._util.checks import whole_number
from .._util.seeds import sample_seeds
from ..core.callbacks import OnArrival
from ..core.flat import FlatModule
from ..core.gradient import Contributor
from ..optim.momentum import MomentumRule
from ..problems.base import Problem
from ..server import Server
from ..simulation import simulate
from ..trace import Trace

__all__ = ["Gradients", "diagnose"]


class Gradients:
    """Gradients of a problem at any flat point: of one sample, and expected.

    Args:
        problem: The problem.
        samples: Samples per group for an expected gradient, if there is no formula.
        shares: Share of each group; the problem's own, or equal ones.
        seed: Draws those samples, and initialises the model.

    Examples:
        >>> import latecomer as lc
        >>> gradients = Gradients(lc.problems.quadratic(noise=0.0))
        >>> gradients.expected(torch.full((10,), 0.3, dtype=torch.float64)).norm().item() < 1e-12
        True
    """

    def __init__(
        self, problem: Problem, *, samples: int = 64, shares: Sequence[float] | None = None, seed: int = 0
    ) -> None:
        self.problem = problem
        self.flat = FlatModule(problem.model(seed))
        self._contribute = Contributor(problem, self.flat, points=1)
        self.start = self.flat.x.detach().clone()
        given = tuple(shares or problem.shares or (1.0 / problem.groups,) * problem.groups)
        if len(given) != problem.groups or abs(sum(given) - 1.0) > 1e-9 or min(given) < 0:
            raise ValueError(f"Invalid shares: {list(given)} (expected {problem.groups} that add up to 1)")
        self.shares = given
        seeds = sample_seeds(seed, whole_number("samples", samples, least=2)).tolist()
        self._averaged = [[(int(s), group) for s in seeds] for group in range(problem.groups)]

    def of(self, x: Tensor, sample: int, group: int) -> Tensor:
        """Return the gradient of one sample at ``x``."""
        out = torch.empty_like(self.start)
        self._contribute([x], out, number=0, sample=sample, group=group, version=1)
        return out

    def expected(self, x: Tensor) -> Tensor:
        """Return the expected gradient at ``x``, by formula or as a mean over samples."""
        out = torch.empty_like(self.start)
        if self.problem.expected_gradient(x, out):
            return out
        out.zero_()
        for share, seeds in zip(self.shares, self._averaged, strict=True):
            for sample, group in seeds:
                out.add_(self.of(x, sample, group), alpha=share / len(seeds))
        return out


def diagnose(
    problem: Problem,
    trace: Trace,
    *,
    lr: float,
    beta: float,
    method: str = "ordered-momentum",
    samples: int = 64,
    seed: int = 0,
) -> pl.DataFrame:
    """Run a method and measure the error of its momentum and the parts of that error at every arrival.

    With m the momentum after arrival t, and everything at x_t:

    - ``error`` is ``|m - grad f(x_t)|``, the proof's epsilon;
    - ``virtual`` is the error of the momentum without missing gradients: all up to version t, with their noise;
    - ``expected`` is the same without noise;
    - ``delay_bias`` is ``|b|``: the weighted expected gradients of the tickets in flight;
    - ``delay_limit`` is its bound in the proof, ``(M-1) beta max |grad f(x_k)|`` over the tickets in flight;
    - ``selection`` is the weighted noise of the tickets in flight: the proof takes its mean to be zero;
    - ``drift`` is the distance of x_t from plain SGD on the same gradients in the order of their versions.

    Under ``ordered-momentum`` error = virtual + b - selection as vectors; ``residual`` is the error of that identity.
    The rows end at the first gradient in flight that never arrives, because its sample is unknown.

    Args:
        problem: What to train on.
        trace: A schedule of policy async without pauses.
        lr: Learning rate.
        beta: Momentum parameter.
        method: ``"ordered-momentum"``, ``"catch-up"`` or ``"momentum"``.
        samples: Samples per group for expected gradients, if there is no formula.
        seed: Initialises the model.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.DataDependent(workers=4, slow_share=0.2).trace(steps=200, seed=0)
        >>> rows = diagnose(lc.problems.quadratic(), trace, lr=0.02, beta=0.05)
        >>> bool(rows["residual"].max() < 1e-12), bool((rows["delay_bias"] <= rows["delay_limit"]).all())
        (True, True)
    """
    if method not in ("ordered-momentum", "catch-up", "momentum"):
        raise ValueError(f"Invalid method value: {method!r} (expected 'ordered-momentum', 'catch-up' or 'momentum')")
    if trace.header.policy != "async" or not trace.header.strict:
        raise ValueError("Diagnostics need a trace of policy async in which workers never pause (header.strict)")
    probe = _Probe(Gradients(problem, samples=samples, seed=seed), trace, lr, beta)
    simulate(
        problem, method, trace, lr=lr, beta=beta, seed=seed, evaluate_every=len(trace), callbacks=[OnArrival(probe)]
    )
    return pl.DataFrame(probe.rows)


class _Probe:
    def __init__(self, gradients: Gradients, trace: Trace, lr: float, beta: float) -> None:
        self.gradients, self.lr, self.beta, self.workers = gradients, lr, beta, trace.header.workers
        c = trace.columns
        # The job of every version; for version 1, which has M jobs, the one that arrives first.
        version = c["version"]
        owner = np.full(len(trace) + 2, -1)
        owner[version[version > 1]] = np.flatnonzero(version > 1)
        owner[1] = trace.rows[0]
        self.jobs = [(int(c["sample"][row]), int(c["group"][row]), int(c["arrival"][row])) for row in owner]
        self.rows: list[dict[str, Any]] = []
        self.in_flight: dict[int, tuple[Tensor, Tensor, int]] = {}
        self.z = gradients.start.clone()
        self.done = False
        self._new_iterate(1, gradients.start)
        self.before = self.gradient
        self.virtual, self.expected = -self.gradient, -self.gradient  # of m_0 = 0, at x_1

    def _new_iterate(self, k: int, x: Tensor) -> None:
        """Compute the expected gradient of a new iterate, and the gradient of the job that starts from it."""
        self.x, self.gradient = x.clone(), self.gradients.expected(x)
        sample, group, arrival = self.jobs[k]
        if group < 0:
            self.done = True
            return
        self.noise = self.gradients.of(x, sample, group) - self.gradient
        self.in_flight[k] = (self.gradient, self.noise, arrival)

    def __call__(self, server: Server) -> None:
        if self.done:
            return
        t, beta, keep = server.arrivals, self.beta, 1.0 - self.beta
        x = server.optimizer.param_groups[0]["params"][0]
        # e_t = (1-beta)(e_{t-1} + grad f(x_{t-1}) - grad f(x_t)) + beta noise_t, here from m_0 = 0 on
        change = self.before - self.gradient
        self.virtual = keep * (self.virtual + change) + beta * self.noise
        self.expected = keep * (self.expected + change)
        self.in_flight = {k: job for k, job in self.in_flight.items() if job[2] > t}
        zero = torch.zeros_like(self.gradient)
        weighted = [(beta * keep ** (t - k), job) for k, job in self.in_flight.items()]
        bias = sum((-weight * job[0] for weight, job in weighted), zero)
        selection = sum((weight * job[1] for weight, job in weighted), zero)
        largest = max((float(job[0].norm()) for job in self.in_flight.values()), default=0.0)
        error = cast(Tensor, cast(MomentumRule, server.optimizer).momentum()[0]) - self.gradient
        self.rows.append(
            {
                "arrival": t,
                "in_flight": len(self.in_flight),
                "gradient": float(self.gradient.norm()),
                "error": float(error.norm()),
                "virtual": float(self.virtual.norm()),
                "expected": float(self.expected.norm()),
                "delay_bias": float(bias.norm()),
                "delay_limit": (self.workers - 1) * beta * largest,
                "selection": float(selection.norm()),
                "drift": float((self.z - self.x).norm()),
                "residual": float((error - self.virtual - bias + selection).norm()),
            }
        )
        self.z -= self.lr * (self.gradient + self.noise)
        self.before = self.gradient
        self._new_iterate(t + 1, x.detach())
