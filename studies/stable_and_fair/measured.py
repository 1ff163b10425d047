"""Runs of the study, stored with the effect of the clip on slow and on fast samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from latecomer import Run
from latecomer.experiments import FinishedRun, RunSpec
from latecomer.experiments.sweep import problem_of, run_one
from latecomer.problems import Problem, Quadratic
from latecomer.server import Server
from latecomer.theory import influence
from latecomer.training import OnArrival

__all__ = ["Watch", "run_measured", "slow_over_fast"]


def slow_over_fast(group: ArrayLike, weight: ArrayLike) -> float:
    """Return the mean weight of the arrivals of group 1 and above over that of group 0; NaN if one is missing.

    Examples:
        >>> slow_over_fast([0, 0, 1], [1.0, 1.0, 0.25])
        0.25
    """
    slow, w = np.asarray(group) > 0, np.asarray(weight, dtype=np.float64)
    if slow.all() or not slow.any() or not w[~slow].any():
        return math.nan
    return float(w[slow].mean() / w[~slow].mean())


class Watch:
    """Records during a run what the clip let pass, and the iterates of a quadratic.

    Pass it to `latecomer.simulate` as ``watch`` and ask for `outcome` afterwards.

    Args:
        problem: The problem.
        steps: Arrivals of the run.

    Examples:
        >>> import latecomer as lc
        >>> problem = lc.problems.two_centres(distance=10.0)
        >>> trace = lc.delays.DataDependent(workers=7, slow_share=0.1).trace(steps=2000, seed=0)
        >>> watch, options = Watch(problem, len(trace)), {"lr": 0.01, "beta": 0.05, "clip": 2.0}
        >>> run = lc.simulate(problem, "clipped-catch-up", trace, callbacks=[OnArrival(watch)], **options)
        >>> found = watch.outcome(run)
        >>> found["clipped_slow"] > 5 * found["clipped_fast"], 0 < found["slow_over_fast"] < found["declared"]
        (True, True)
    """

    def __init__(self, problem: Problem, steps: int) -> None:
        self.problem = problem if isinstance(problem, Quadratic) else None
        self.scales: list[float] = []
        self.averaged = steps - steps // 2
        self.first = steps - self.averaged
        if self.problem is not None:
            self.total = torch.zeros_like(self.problem.curvature)
            self.squares, self.now = 0.0, self.problem.squared_gradient(torch.full_like(self.total, self.problem.start))

    def __call__(self, server: Server) -> None:
        """Record one arrival."""
        self.scales.append(getattr(server.optimizer, "last_scale", 1.0))
        if self.problem is not None:
            x = server.optimizer.param_groups[0]["params"][0].detach()
            self.squares += self.now
            self.now = self.problem.squared_gradient(x)
            if len(self.scales) > self.first:
                self.total.add_(x)

    def outcome(self, run: Run) -> dict[str, float | None]:
        """Return the measures; None for those that do not apply.

        ``slow_over_fast`` is the mean influence of a slow arrival over that of a fast one with what the clip did,
        ``declared`` without. ``clipped_fast`` and ``clipped_slow`` are shares of arrivals that were clipped. On a
        quadratic ``excess`` is the excess loss of the mean of the last half of the iterates, at the shares that really
        arrived, and ``squared_gradient_mean`` what Theorem 1 bounds.
        """
        seen: dict[str, float] = {}
        if run.diverged_at is None:
            group = run.trace.group
            declared = influence(run.trace, run.method, run.options)
            scale = np.array(self.scales)
            weight = declared * scale
            # The first arrivals of each worker are of version 1 and may count as zero: group means leave them out.
            counted = declared > 0
            seen["slow_over_fast"] = slow_over_fast(group[counted], weight[counted])
            seen["declared"] = slow_over_fast(group[counted], declared[counted])
            for name, mine in (("clipped_fast", group == 0), ("clipped_slow", group > 0)):
                own = scale[counted & mine]
                seen[name] = float((own < 1.0).mean()) if len(own) else math.nan
            if self.problem is not None:
                seen["squared_gradient_mean"] = self.squares / len(self.scales)
                shares = np.bincount(group, minlength=self.problem.groups) / len(group)
                realised = Quadratic(centres=self.problem.centres, shares=shares.tolist())
                realised.curvature = self.problem.curvature
                seen["excess"] = realised.excess(self.total / self.averaged)
        names = ["slow_over_fast", "declared", "clipped_fast", "clipped_slow"]
        if self.problem is not None:
            names += ["excess", "squared_gradient_mean"]
        return {name: seen[name] if math.isfinite(seen.get(name, math.nan)) else None for name in names}


def run_measured(spec: dict[str, Any], folder: str) -> FinishedRun:
    """Run a spec with `Watch`, and store the result with its measures.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from latecomer.experiments import Store
        >>> spec = RunSpec("two-centres", "momentum", "data-dependent", 200, delay_options={"workers": 3},
        ...                options={"lr": 0.01, "beta": 0.1})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = run_measured(spec.as_dict(), folder)
        ...     Store(Path(folder)).record(spec.key)["outcome"]["slow_over_fast"]
        1.0
    """
    run = RunSpec(**spec)
    watch = Watch(problem_of(run), run.steps)
    return run_one(
        spec, folder, callbacks=[OnArrival(watch)], extra_outcome=lambda _, result: dict(watch.outcome(result))
    )
