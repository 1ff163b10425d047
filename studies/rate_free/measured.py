"""Runs of the study, stored with the influence that slow samples had under the rule without a learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np

from latecomer import Run
from latecomer.experiments import FinishedRun, RunSpec
from latecomer.experiments.sweep import run_one
from latecomer.optim import RateFree
from latecomer.server import Server
from latecomer.training import OnArrival

from ..stable_and_fair.measured import slow_over_fast

__all__ = ["Influence", "run_measured"]


class Influence:
    """Measures the weight of every gradient in the final parameters of `RateFree`.

    A gradient moves z by its step, divided by the denominator. The parameters are the average of z, so the part of the
    average that comes after the arrival has that step in it: ``step_i·(W_T - W_{i-1})/W_T``.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.DataDependent(workers=7, slow_share=0.1).trace(steps=2000, seed=0)
        >>> watch = Influence()
        >>> run = lc.simulate(lc.problems.quadratic(), "rate-free", trace, callbacks=[OnArrival(watch)])
        >>> weights = watch.weights()
        >>> len(weights), bool((weights > 0).all()), 0.9 < watch.relative(run) < 1.1
        (2000, True, True)
    """

    def __init__(self) -> None:
        self._sums: list[float] = [0.0]

    def __call__(self, server: Server) -> None:
        """Record one arrival."""
        if isinstance(server.optimizer, RateFree):
            self._sums.append(float(server.optimizer.param_groups[0]["W"]))

    def weights(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the weight of every arrival."""
        sums = np.array(self._sums)
        steps = np.sqrt(np.diff(sums) / np.arange(1, len(sums)))  # the weights in W are t·step²
        return np.asarray(steps * (sums[-1] - sums[:-1]) / sums[-1])

    def relative(self, run: Run) -> float:
        """Return the mean weight of slow arrivals over that of fast ones."""
        return slow_over_fast(run.trace.group, self.weights())


def run_measured(spec: dict[str, Any], folder: str) -> FinishedRun:
    """Run a spec, and store the result with the relative influence of slow samples where the rule is `RateFree`."""
    watch = Influence()

    def extra_outcome(run: RunSpec, result: Run) -> dict[str, Any]:
        return {"relative_influence": watch.relative(result)} if run.method == RateFree.method else {}

    return run_one(spec, folder, callbacks=[OnArrival(watch)], extra_outcome=extra_outcome)
