"""The runs of the demo: synchronous training and four asynchronous methods on one virtual clock, with a slow class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from .._util.checks import whole_number
from .._util.defaults import DEFAULT_METHOD
from .._util.parallel import in_parallel
from ..delays import SampleCost
from ..policy import Synchronous
from ..problems import Digits
from ..simulation import simulate
from ..trace import Trace

__all__ = ["METHOD_OPTIONS", "DemoRun", "SlowNines", "make_trace", "run_all"]

WORKERS, COST, SLOW_SHARE, BETA = 8, 10.0, 0.1, 0.1
EVALUATIONS = 50
SYNCHRONOUS = "synchronous"
"""Not a method but a policy: momentum that waits for all workers."""

# Learning rates from benchmarks/demo_rates.py, which uses other seeds and other images than the demo.
_TUNED: dict[str, dict[str, Any]] = {
    SYNCHRONOUS: {"lr": 1.6, "beta": 0.2},
    "delay-filtered": {"lr": 0.00625, "threshold": 2 * WORKERS},
    "ordered-momentum": {"lr": 0.2, "beta": BETA},
    "momentum": {"lr": 0.1, "beta": BETA},
    "balanced-catch-up": {"lr": 0.1, "beta": BETA},
}
METHOD_OPTIONS: dict[str, dict[str, Any]] = {
    name: _TUNED.get(name, {})  # the default may be a method without a learning rate
    for name in (SYNCHRONOUS, "delay-filtered", "ordered-momentum", "momentum", DEFAULT_METHOD)
}
"""The methods of the demo and synchronous momentum, and their options."""


class SlowNines(Digits):
    """Digits in which nines are slow, for a network with one hidden layer; evaluates the losses only, for speed."""

    def __init__(self, split: str = "test") -> None:
        super().__init__(network="mlp", cubic=False, split=split)
        self._slow_share = float(np.isin(self._test_labels, self.slow_classes).mean())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss on held-out images, and those of fast and of slow ones."""
        fast, slow = self.losses_by_group(model)
        whole = (1.0 - self._slow_share) * fast + self._slow_share * slow
        return {"loss": whole, "loss_fast": fast, "loss_slow": slow}


@dataclass(frozen=True)
class DemoRun:
    """One run of the demo."""

    method: str
    seed: int
    factor: float
    """The learning rate, relative to the method's own."""
    history: pl.DataFrame
    idle: float
    """Share of the workers' time without a job."""
    dropped: float
    """Share of the slow gradients that were dropped."""


def make_trace(method: str, steps: int, seed: int) -> Trace:
    """Return the schedule of a method: ``steps`` arrivals, or as many as there are in the same time with waiting."""
    model = SampleCost(WORKERS, cost=(1.0, COST), slow_share=SLOW_SHARE)
    trace = model.trace(steps, seed)
    if method != SYNCHRONOUS:
        return trace
    # Waiting never makes more arrivals, and an unfinished round is no update.
    end = model.trace(steps, seed, policy=Synchronous).end
    rounds = int((end <= trace.end[-1]).sum()) // WORKERS
    return model.trace(max(1, rounds) * WORKERS, seed, policy=Synchronous)


def run_method(method: str, seed: int, steps: int, factor: float = 1.0, split: str = "test", **other: float) -> DemoRun:
    """Train one method on one seed's schedule, with a multiple of its learning rate, and other options if given."""
    torch.set_num_threads(1)
    options, trace = {**METHOD_OPTIONS[method], **other}, make_trace(method, steps, seed)
    if factor != 1.0:
        options["lr"] *= factor
    waits = method == SYNCHRONOUS
    run = simulate(
        SlowNines(split), "momentum" if waits else method, trace, seed=seed, policy=Synchronous if waits else None,
        evaluate_every=max(1, len(trace) // EVALUATIONS), **options,
    )  # fmt: skip
    slow = run.trace.group == 1
    dropped = float((run.trace.status[slow] == "dropped").mean()) if slow.any() else 0.0
    return DemoRun(method, seed, factor, run.history, idle_share(trace), dropped)


def idle_share(trace: Trace) -> float:
    """Return the share of the workers' time, up to the last arrival, in which they had no job."""
    last = float(trace.end[-1])
    end = np.nan_to_num(trace.columns["end"], nan=last)  # still in flight
    busy = float(np.sum(np.maximum(end - trace.columns["start"], 0.0)))
    return max(0.0, 1.0 - busy / (trace.header.workers * last))


def run_all(steps: int, seeds: int, first_seed: int = 0, processes: int = 2) -> Iterator[DemoRun]:
    """Run every method on every seed in parallel, also at twice its learning rate; in order of completion."""
    whole_number("steps", steps, least=20)
    whole_number("seeds", seeds, least=1)
    whole_number("seed", first_seed)
    return in_parallel(run_method, planned(steps, seeds, first_seed), processes)


def planned(steps: int, seeds: int, first_seed: int) -> list[tuple[str, int, int, float]]:
    """Return the arguments of all runs."""
    return [
        (method, seed, steps, factor)
        for seed in range(first_seed, first_seed + seeds)
        for method, options in METHOD_OPTIONS.items()
        for factor in ((1.0, 2.0) if "lr" in options else (1.0,))
    ]
