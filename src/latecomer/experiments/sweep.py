"""Runs the missing runs of a sweep in parallel."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from .._util.imports import import_file
from .._util.parallel import in_parallel
from ..core.callbacks import Callback, ProgressLike
from ..core.result import Run
from ..optim import METHODS
from ..problems.base import Problem
from ..simulation import simulate
from .spec import RunSet, RunSpec, Sweep
from .store import Store

__all__ = ["FinishedRun", "estimate_seconds", "missing", "problem_of", "run_one", "run_sweep"]


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of a sweep.

    Examples:
        >>> FinishedRun("ab", "momentum", 1.5, None).diverged_at is None
        True
    """

    key: str
    method: str
    seconds: float
    diverged_at: int | None


def problem_of(run: RunSpec) -> Problem:
    """Return the problem of a run; the same problem is created once per process."""
    return _cached_problem(run.problem, json.dumps(dict(run.problem_options), sort_keys=True))


@lru_cache(maxsize=2)
def _cached_problem(name: str, options: str) -> Problem:
    """Create a problem once per process, so that its data is read once."""
    return RunSpec(name, "", "", 1, problem_options=json.loads(options)).make_problem()


def run_one(
    spec: dict[str, Any],
    folder: str,
    progress: ProgressLike = False,
    callbacks: Sequence[Callback] = (),
    extra_outcome: Callable[[RunSpec, Run], dict[str, Any]] | None = None,
) -> FinishedRun:
    """Run a spec and store the result.

    Args:
        spec: The run, as `RunSpec.as_dict` returns it.
        folder: Folder of the store.
        progress: That of `simulate`.
        callbacks: Those of `simulate`.
        extra_outcome: Returns what else to store with the outcome.
    """
    torch.set_num_threads(1)
    run, store = RunSpec(**spec), Store(Path(folder))
    start = time.process_time()
    problem = problem_of(run)
    with run.method_code():
        result = simulate(
            problem,
            run.method,
            run.make_trace(),
            seed=run.seed,
            evaluate_every=run.evaluate_every,
            progress=progress,
            callbacks=callbacks,
            **run.options,
        )
    seconds = time.process_time() - start
    dropped = int((result.trace.status == "dropped").sum())
    outcome = {"diverged_at": result.diverged_at, "non_finite": result.non_finite, "dropped": dropped}
    if extra_outcome is not None:
        outcome |= extra_outcome(run, result)
    store.put(run, result.history, outcome, seconds)
    return FinishedRun(run.key, run.method, seconds, result.diverged_at)


def missing(sweep: Sweep | RunSet, store: Store) -> list[RunSpec]:
    """Return the runs that are not in the store, problem by problem, because a process keeps few of them.

    Methods with two points come first, because they take longest.

    Examples:
        >>> from .spec import Grid
        >>> sweep = Sweep("s", "quadratic", "uniform", 10, (0,), (Grid("momentum", {"lr": [0.1]}),),
        ...               delay_options={"workers": 2})
        >>> len(missing(sweep, Store(Path("nowhere"))))
        1
    """
    todo = [run for run in sweep.runs() if run.key not in store]
    problems = list(dict.fromkeys(repr((run.problem, run.problem_options)) for run in todo))
    places = {problem: place for place, problem in enumerate(problems)}
    return sorted(todo, key=lambda run: (places[repr((run.problem, run.problem_options))], -METHODS[run.method].points))


def run_sweep(
    sweep: Sweep | RunSet,
    store: Store,
    processes: int = 2,
    engine: str = "local",
    address: str | None = None,
    run: Callable[[dict[str, Any], str], FinishedRun] = run_one,
) -> Iterator[FinishedRun]:
    """Run the missing runs; each is in the store before it is yielded.

    Args:
        sweep: The sweep, or a set of runs.
        store: The store; on a cluster a folder that all nodes share.
        processes: Number of runs in parallel.
        engine: ``"local"`` for processes of this machine, ``"ray"`` for tasks on a Ray cluster.
        address: Address of the cluster; None for Ray on this machine.
        run: Runs a spec and stores the result: a function that can be imported by name.

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
    store.remove_leftovers()
    todo = missing(sweep, store)
    jobs = [(spec.sent(), str(store.folder)) for spec in todo]
    registered = {spec.method: METHODS[spec.method].files for spec in todo}
    if any(registered.values()) or any("factor" in spec.delay_options for spec in todo):
        # The first of a method's files is the one that registers it.
        homes = {method: next(iter(files)) for method, files in registered.items() if files}
        run = partial(_run_registered, [str(Path(file).resolve()) for file in sweep.imports], homes, run)
    if engine == "ray":
        from ..engines.ray.pool import on_ray

        return _then_clean_up(on_ray(run, jobs, processes, address), store)
    if engine != "local":
        raise ValueError(f"Unknown engine {engine!r} (expected 'local' or 'ray')")
    return _then_clean_up(in_parallel(run, jobs, min(processes, max(1, len(jobs)))), store)


def _run_registered(
    imports: Sequence[str],
    homes: Mapping[str, str],
    run: Callable[[dict[str, Any], str], FinishedRun],
    spec: dict[str, Any],
    folder: str,
) -> FinishedRun:
    """Run a spec in a process that may not know its method yet: import the files that register it, and check files."""
    for file in imports:
        import_file(file)
    method = spec["method"]
    if method not in METHODS and method in homes:
        import_file(homes[method])
    RunSpec(**spec).check_files()
    return run(spec, folder)


def _then_clean_up(runs: Iterator[FinishedRun], store: Store) -> Iterator[FinishedRun]:
    """Remove leftovers again at the end: workers of a killed sweep end a moment after it."""
    try:
        yield from runs
    finally:
        store.remove_leftovers()


def estimate_seconds(runs: Sequence[RunSpec], updates: int = 20) -> float:
    """Estimate the CPU time of runs from a few updates and evaluations per method; all are of one problem.

    Where slow samples arrive late, the first arrivals are the cheap ones: take more updates than workers then.

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
            elapsed = time.process_time() - start
            start = time.process_time()
            simulate(problem, run.method, short.make_trace(1), evaluate_every=1, **run.options)
            evaluation = (time.process_time() - start) / 2
            cost[run.method] = (max(0.0, elapsed - 2 * evaluation) / updates, evaluation)
        update, evaluation = cost[run.method]
        total += run.steps * update + (run.steps / run.evaluate_every + 1) * evaluation
    return total
