"""The demo: all methods on one small problem with data-dependent delays, and who got how much say in it.

The problem is a quadratic with two centres. Nine samples in ten pull towards the first, one in ten towards the second,
and those are the slow ones: their gradients come late. A method that gives late gradients less say settles too close
to the first centre, and the excess loss shows how far off it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .optim import METHODS, Arrival, AsyncOptimizer
from .optim.checks import whole_number

__all__ = ["Result", "Schedule", "draw", "measure"]

WORKERS, SLOW_SHARE = 7, 0.1
LR, BETA, THRESHOLD = 0.003, 0.1, 2 * WORKERS
DIMENSIONS, START, CENTRES = 10, 5.0, (0.0, 3.0)
CURVATURE = torch.linspace(0.1, 1.0, DIMENSIONS, dtype=torch.float64)


@dataclass(frozen=True)
class Schedule:
    """Who arrives when, from which version, and whether with a slow sample: the paper's data-dependent delay model.

    At every arrival worker i of M comes with probability proportional to i. If the wait since its last arrival exceeds
    ``log(q)/log(1 - p_i)``, its sample counts as one of the slow share q.

    Examples:
        >>> schedule = Schedule.make(steps=10_000, seed=0)
        >>> delay = schedule.t - schedule.version
        >>> round(float(delay[schedule.slow].mean()), 1), round(float(delay[~schedule.slow].mean()), 1)
        (19.8, 4.3)
    """

    worker: NDArray[np.int64]
    version: NDArray[np.int64]
    slow: NDArray[np.bool_]

    @property
    def t(self) -> NDArray[np.int64]:
        """The number of every arrival."""
        return np.arange(1, len(self.worker) + 1)

    @classmethod
    def make(cls, steps: int, seed: int) -> Schedule:
        """Draw a schedule of ``steps`` arrivals."""
        p = np.arange(1, WORKERS + 1) / (WORKERS * (WORKERS + 1) / 2)
        worker = np.random.default_rng(seed).choice(WORKERS, size=steps, p=p)
        last = np.zeros(WORKERS, dtype=np.int64)
        version = np.empty(steps, dtype=np.int64)
        for t, i in enumerate(worker, start=1):
            version[t - 1] = last[i] + 1
            last[i] = t
        wait = np.arange(1, steps + 1) - version + 1
        return cls(worker, version, wait > math.log(SLOW_SHARE) / np.log1p(-p[worker]))


@dataclass(frozen=True)
class Result:
    """What one method did with one schedule."""

    method: str
    slow_say: float
    """Mean lifetime weight of a slow gradient over that of a fast one."""
    excess: float
    """Loss of the mean iterate of the second half, above the best possible loss."""


def _options(method: str, lr: float) -> dict[str, Any]:
    own = {"delay-adaptive": {"workers": WORKERS}, "delay-filtered": {"threshold": THRESHOLD}}
    has_beta = "beta" in METHODS[method].optimizer.ranges
    return {"lr": lr, **({"beta": BETA} if has_beta else {}), **own.get(method, {})}


def _replay(
    method: str,
    schedule: Schedule,
    start: Tensor,
    lr: float,
    gradient: Callable[[Tensor, int], Tensor],
    watch: Callable[[int, AsyncOptimizer, Tensor], None],
) -> None:
    """Run a method along a schedule; ``gradient(x, t)`` is that of the sample that arrives at t."""
    x = torch.nn.Parameter(start.clone())
    opt = METHODS[method]([x], **_options(method, lr))
    held = [[[x.detach().clone()] for _ in range(opt.points)] for _ in range(WORKERS)]
    rows = zip(schedule.t.tolist(), schedule.worker.tolist(), schedule.version.tolist(), strict=True)
    for t, worker, version in rows:
        grads = [[gradient(point[0], t)] for point in held[worker]]
        x.grad = opt.contribution(grads[0], grads[1] if opt.points == 2 else None, version)[0]
        opt.step(arrival=Arrival(t, version, worker=worker, workers=WORKERS))
        opt.query(held[worker], worker)
        watch(t, opt, x.detach())


def slow_say(method: str, schedule: Schedule) -> float:
    """Read the mean weight of slow over fast gradients off gradients that only say which kind they are.

    Examples:
        >>> round(slow_say("momentum", Schedule.make(2000, seed=0)), 2)
        1.0
    """
    slow = torch.tensor(schedule.slow)
    kind = torch.stack([slow, ~slow], dim=1).double()
    total = torch.zeros(2, dtype=torch.float64)

    def watch(t: int, opt: AsyncOptimizer, x: Tensor) -> None:
        if t == len(slow):
            state = opt.state[opt.param_groups[0]["params"][0]]
            total.copy_(state.get("w", x))

    # The gradients do not depend on x, so Algorithm 2's increment a_k·g - a_{k-1}·g is g itself.
    _replay(method, schedule, torch.zeros(2, dtype=torch.float64), 1.0, lambda x, t: kind[t - 1], watch)
    per_gradient = total / kind.sum(0)
    return float(per_gradient[0] / per_gradient[1])


def excess_loss(method: str, schedule: Schedule, seed: int) -> float:
    """Train on the two-centre quadratic and return the loss above the optimum.

    Examples:
        >>> schedule = Schedule.make(10_000, seed=0)
        >>> excess_loss("catch-up", schedule, seed=0) < excess_loss("ordered-momentum", schedule, seed=0)
        True
    """
    steps = len(schedule.worker)
    centre = torch.tensor(np.where(schedule.slow, CENTRES[1], CENTRES[0]))
    noise = torch.randn(steps, DIMENSIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    mean = torch.zeros(DIMENSIONS, dtype=torch.float64)

    def gradient(x: Tensor, t: int) -> Tensor:
        return CURVATURE * (x - centre[t - 1]) + noise[t - 1]

    def watch(t: int, opt: AsyncOptimizer, x: Tensor) -> None:
        if t > steps // 2:
            mean.add_(x, alpha=1.0 / (steps - steps // 2))

    lr = 1.0 / (4 * steps) if method == "ordered-mu2-anytime" else LR  # Theorem 2 with L = 1
    _replay(method, schedule, torch.full((DIMENSIONS,), START, dtype=torch.float64), lr, gradient, watch)
    optimum = centre.mean()
    return float((CURVATURE * (mean - optimum) ** 2).sum() / 2)


def measure(steps: int, seed: int) -> Iterable[Result]:
    """Run every method on one shared schedule, one at a time.

    Examples:
        >>> next(iter(measure(steps=2000, seed=0))).method
        'async-sgd'
    """
    schedule = Schedule.make(whole_number("steps", steps, least=100), whole_number("seed", seed))
    return (Result(name, slow_say(name, schedule), excess_loss(name, schedule, seed)) for name in METHODS)


def draw(results: list[Result], path: Path) -> None:
    """Draw who got how much say, and what that cost."""
    names = [result.method for result in results]
    figure = matplotlib.figure.Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    rows = range(len(names))
    colours = ["#c1502e" if result.slow_say < 0.95 else "#2f6f8f" for result in results]
    left.barh(rows, [result.slow_say for result in results], color=colours)
    left.axvline(1.0, color="#555555", linewidth=1, linestyle="--")
    left.set_yticks(rows, names)
    left.invert_yaxis()
    left.set_xlim(0, 1.18)
    left.set_xlabel("say of a slow gradient (fast = 1)")
    right.scatter([result.excess for result in results], rows, color=colours, s=45, zorder=3)
    right.hlines(rows, 1e-4, [result.excess for result in results], color=colours, linewidth=1.5, alpha=0.5)
    right.set_xscale("log")
    right.set_xlim(left=5e-4)
    right.set_xlabel("loss above the optimum")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.3)
    for row, result in zip(rows, results, strict=True):
        left.text(result.slow_say + 0.02, row, f"{result.slow_say:.2f}", va="center", fontsize=9)
    figure.suptitle(f"{WORKERS} workers, one sample in ten is slow: who gets how much say, and what it costs")
    with matplotlib.rc_context({"svg.hashsalt": "latecomer"}):  # the same bytes every time
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
