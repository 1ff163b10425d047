"""The runs of the demo: the paper's methods and catch-up on the bundled digits, under data-dependent delays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch

from .._util.checks import whole_number
from .._util.parallel import in_parallel
from ..delays import DataDependent
from ..problems import Digits
from ..simulation import simulate
from ..theory.influence import influence_by_group
from ..trace import Trace

__all__ = ["METHOD_OPTIONS", "DemoRun", "make_trace", "problem", "run_all"]

WORKERS, SLOW_SHARE, BETA = 7, 0.1, 0.1

# Learning rates from benchmarks/demo_rates.py, which uses other seeds than the demo.
METHOD_OPTIONS: dict[str, dict[str, Any]] = {
    "async-sgd": {"lr": 0.05},
    "delay-adaptive": {"lr": 0.1},
    "delay-filtered": {"lr": 0.05, "threshold": 2 * WORKERS},
    "momentum": {"lr": 0.05, "beta": BETA},
    "mu2": {"lr": 0.05, "beta": BETA, "gamma": 0.1},
    "ordered-momentum": {"lr": 0.1, "beta": BETA},
    "catch-up": {"lr": 0.1, "beta": BETA},
    "ordered-mu2": {"lr": 0.05, "beta": BETA, "gamma": 0.1},
}


@dataclass(frozen=True)
class DemoRun:
    """One run of the demo."""

    method: str
    seed: int
    history: pl.DataFrame
    relative_influence: float
    """Mean influence of a slow gradient over that of a fast one."""
    dropped: int
    diverged_at: int | None


def make_trace(steps: int, seed: int) -> Trace:
    """Return the schedule that all methods share for one seed."""
    return DataDependent(workers=WORKERS, slow_share=SLOW_SHARE).trace(steps=steps, seed=seed)


def problem() -> Digits:
    """Return the problem of the demo: a small network without the cubic, which every method can train."""
    return Digits(network="cnn", cubic=False)


def run_method(method: str, seed: int, steps: int) -> DemoRun:
    """Train one method on one seed's schedule."""
    torch.set_num_threads(1)
    options = METHOD_OPTIONS[method]
    run = simulate(problem(), method, make_trace(steps, seed), seed=seed, evaluate_every=max(1, steps // 30), **options)
    fast, slow = influence_by_group(run.trace, method, options)
    dropped = int((run.trace.status == "dropped").sum())
    return DemoRun(method, seed, run.history, float(slow / fast), dropped, run.diverged_at)


def run_all(steps: int, seeds: int, first_seed: int = 0, processes: int = 2) -> Iterator[DemoRun]:
    """Run every method on every seed, in parallel; results come in order of completion."""
    whole_number("steps", steps, least=20)
    whole_number("seeds", seeds, least=1)
    whole_number("seed", first_seed)
    jobs = [(method, seed, steps) for seed in range(first_seed, first_seed + seeds) for method in METHOD_OPTIONS]
    return in_parallel(run_method, jobs, processes)
