"""Run what is missing of a sweep, side by side; what is done is never done again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .._util.parallel import in_parallel
from ..core.callbacks import ProgressLike
from ..problems.base import Problem
from ..simulation import simulate
from .spec import RunSpec, Sweep
from .store import Store

__all__ = ["FinishedRun", "estimate_seconds", "missing", "problem_of", "run_one", "run_sweep"]


@dataclass(frozen=True)
class FinishedRun:
    """One run of a sweep is done.

    Examples:
        >>> FinishedRun("ab", "momentum", 1.5, None).diverged_at is None
        True
    """

    key: str
    method: str
    seconds: float
    diverged_at: int | None


def problem_of(run: RunSpec) -> Problem:
    """Return the problem of a run; the same one is made once a process."""
    return _problem(run.problem, json.dumps(dict(run.problem_options), sort_keys=True))


@lru_cache(maxsize=2)
def _problem(name: str, options: str) -> Problem:
    """Make a problem once a process: the data is read once."""
    return RunSpec(name, "", "", 1, problem_options=json.loads(options)).make_problem()


def run_one(spec: dict[str, Any], folder: str, progress: ProgressLike = False) -> FinishedRun:
    """Make a run and put it into the store; ``progress`` is that of `simulate`."""
    torch.set_num_threads(1)
    run, store = RunSpec(**spec), Store(Path(folder))
    start = time.process_time()
    problem = problem_of(run)
    result = simulate(
        problem,
        run.method,
        run.make_trace(),
        seed=run.seed,
        evaluate_every=run.evaluate_every,
        progress=progress,
        **run.options,
    )
    seconds = time.process_time() - start
    dropped = int((result.trace.status == "dropped").sum())
    outcome = {"diverged_at": result.diverged_at, "non_finite": result.non_finite, "dropped": dropped}
    store.put(run, result.history, outcome, seconds)
    return FinishedRun(run.key, run.method, seconds, result.diverged_at)


def missing(sweep: Sweep, store: Store) -> list[RunSpec]:
    """Return the runs of a sweep that are not in the store; those with two points, which take longest, first.

    Examples:
        >>> from .spec import Grid
        >>> sweep = Sweep("s", "quadratic", "uniform", 10, (0,), (Grid("momentum", {"lr": [0.1]}),),
        ...               delay_options={"workers": 2})
        >>> len(missing(sweep, Store(Path("nowhere"))))
        1
    """
    from ..optim import METHODS

    todo = [run for run in sweep.runs() if run.key not in store]
    return sorted(todo, key=lambda run: -METHODS[run.method].points)


def run_sweep(
    sweep: Sweep,
    store: Store,
    processes: int = 2,
    engine: str = "local",
    address: str | None = None,
    run: Callable[[dict[str, Any], str], FinishedRun] = run_one,
) -> Iterator[FinishedRun]:
    """Run what is missing; each run is in the store before it is told.

    Args:
        sweep: What to run.
        store: Where to keep it; on a cluster a folder that all nodes see.
        processes: Runs at a time.
        engine: ``"local"`` for processes of this machine, ``"ray"`` for tasks on a Ray cluster.
        address: Address of the cluster; None for Ray on this machine.
        run: What makes a run and puts it into the store: something that can be imported by name.

    Examples:
        >>> import tempfile
        >>> from .spec import Grid
        >>> sweep = Sweep("s", "quadratic", "uniform", 10, (0, 1), (Grid("momentum", {"lr": [0.1, 0.2]}),),
        ...               delay_options={"workers": 2})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder))
        ...     len(list(run_sweep(sweep, store, processes=1))), len(list(run_sweep(sweep, store, processes=1)))
        (4, 0)
    """
    store.sweep_up()
    jobs = [(each.as_dict(), str(store.folder)) for each in missing(sweep, store)]
    if engine == "ray":
        from ..engines.ray.pool import on_ray

        return _tidied(on_ray(run, jobs, processes, address), store)
    if engine != "local":
        raise ValueError(f"Unknown engine {engine!r} (expected 'local' or 'ray')")
    return _tidied(in_parallel(run, jobs, min(processes, max(1, len(jobs)))), store)


def _tidied(runs: Iterator[FinishedRun], store: Store) -> Iterator[FinishedRun]:
    """Sweep up again at the end: the workers of a sweep that was killed outlive it by a moment."""
    try:
        yield from runs
    finally:
        store.sweep_up()


def estimate_seconds(runs: Sequence[RunSpec], updates: int = 20) -> float:
    """Estimate the CPU time of runs by a few updates and evaluations of each method.

    Examples:
        >>> run = RunSpec("quadratic", "momentum", "uniform", 100, delay_options={"workers": 2}, options={"lr": 0.1})
        >>> estimate_seconds([run, run]) > 0
        True
    """
    torch.set_num_threads(1)
    cost: dict[str, tuple[float, float]] = {}
    total = 0.0
    for run in runs:
        if run.method not in cost:
            problem = problem_of(run)
            short = replace(run, steps=updates)
            start = time.process_time()
            simulate(problem, run.method, short.make_trace(), evaluate_every=updates, **run.options)
            both = time.process_time() - start
            start = time.process_time()
            simulate(problem, run.method, short.make_trace(1), evaluate_every=1, **run.options)
            evaluation = (time.process_time() - start) / 2
            cost[run.method] = (max(0.0, both - 2 * evaluation) / updates, evaluation)
        update, evaluation = cost[run.method]
        total += run.steps * update + (run.steps / run.evaluate_every + 1) * evaluation
    return total
