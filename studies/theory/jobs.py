"""The measurements behind the figures of docs/theory.md, as lists of small jobs that can run in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from latecomer._util.parallel import in_parallel
from latecomer.delays import SampleCost, WorkerSpeeds
from latecomer.problems import Logistic, Quadratic
from latecomer.server import Server
from latecomer.simulation import simulate
from latecomer.theory.counter_example import METHODS, CounterExample
from latecomer.theory.theorem1 import nonconvex
from latecomer.theory.workers import fastest
from latecomer.training import OnArrival

from .adversary import worst
from .rates import DIMENSIONS, convex_run, nonconvex_run

__all__ = ["adversary_jobs", "counter_example_jobs", "rate_jobs", "run", "time_jobs"]

StudyJob = tuple[str, dict[str, Any]]
DURATIONS = (1.0, 1.0, 1.5, 2.0, 3.0, 6.0, 20.0, 100.0)
EPSILON = 0.5
COSTS = (1.0, 10.0)


def run(jobs: Sequence[StudyJob], processes: int) -> Iterator[dict[str, Any]]:
    """Run jobs of this module, in parallel; rows come in order of completion, each with its study's name.

    Examples:
        >>> list(run([("counter example", {"workers": 3, "method": "momentum", "dependent": True, "seed": 0})], 1))[0][
        ...     "workers"]
        3
    """
    return in_parallel(one, jobs, processes)


def one(study: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run one job."""
    return {"study": study, **_STUDIES[study](**options)}


def counter_example_jobs(workers: Sequence[int], seeds: int) -> list[StudyJob]:
    """Return all methods on data-dependent and on independent delays, for each number of workers.

    Examples:
        >>> len(counter_example_jobs([11, 51], seeds=1))
        16
    """
    return [
        ("counter example", {"workers": m, "method": method, "dependent": dependent, "seed": seed})
        for m in sorted(workers, reverse=True)  # the long ones first
        for seed in range(seeds)
        for dependent in (True, False)
        for method in METHODS
    ]


def rate_jobs(scale: float, seeds: int) -> list[StudyJob]:
    """Return runs over T, over M and over the learning rate; ``scale`` multiplies every T.

    Examples:
        >>> len(rate_jobs(scale=1.0, seeds=1))
        41
    """
    steps = [int(scale * t) for t in (1000, 2000, 4000, 8000, 16_000)]
    worker_counts = (2, 3, 5, 9, 17, 33, 65)
    jobs: list[StudyJob] = []
    for seed in range(seeds):
        for dependent in (False, True):
            shared = {"dependent": dependent, "seed": seed}
            jobs += [("nonconvex over T", {"steps": t, "workers": 4, **shared}) for t in steps]
            jobs += [("convex over T", {"steps": t // 2, "workers": 7, "position": 1.0, **shared}) for t in steps]
        shared = {"dependent": False, "seed": seed}
        jobs += [("nonconvex over M", {"steps": steps[2], "workers": m, **shared}) for m in worker_counts]
        jobs += [("convex over M", {"steps": steps[1], "workers": m, "position": 1.0, **shared}) for m in worker_counts]
        shared = {"steps": steps[2], "workers": 7, "dependent": True, "seed": seed}
        jobs += [("convex over lr", {"position": p, **shared}) for p in (0.0, 0.125, 0.25, 0.5, 0.75, 0.875, 1.0)]
    return jobs


def time_jobs() -> list[StudyJob]:
    """Return the choice of the fastest workers, one job per number of workers.

    Examples:
        >>> len(time_jobs())
        8
    """
    return [("time", {"workers": m}) for m in range(1, len(DURATIONS) + 1)]


def adversary_jobs(tries: int, seeds: int) -> list[StudyJob]:
    """Return searches for the worst schedule.

    Examples:
        >>> len(adversary_jobs(tries=10, seeds=2))
        8
    """
    sizes = ((5, 1000), (21, 3000))
    return [
        ("adversary", {"method": method, "workers": m, "steps": steps, "tries": tries, "seed": seed})
        for m, steps in sizes
        for method in ("ordered-momentum", "catch-up")
        for seed in range(seeds)
    ]


def _counter_example(workers: int, method: str, dependent: bool, seed: int) -> dict[str, Any]:
    example = CounterExample(workers)
    known = {"workers": workers, "steps": example.steps, "method": method, "dependent": dependent, "seed": seed}
    bounds = {"bound": example.promised.bound, "repaired": example.promised.repaired}
    return {**known, "measured": example.measure(method, dependent=dependent, seed=seed), **bounds}


def _nonconvex(steps: int, workers: int, dependent: bool, seed: int) -> dict[str, Any]:
    delays = SampleCost(workers, COSTS, slow_share=0.1, dependent=dependent)
    return {"dependent": dependent, **nonconvex_run(steps, workers, seed=seed, delays=delays)}


@lru_cache(maxsize=1)
def _regression() -> Logistic:
    """Create the regression once per process, because its minimum takes a while to compute."""
    return Logistic()


def _convex(steps: int, workers: int, position: float, dependent: bool, seed: int) -> dict[str, Any]:
    delays = SampleCost(workers, COSTS, slow_share=0.1, dependent=dependent)
    row = convex_run(_regression(), steps, workers, position=position, seed=seed, delays=delays)
    return {"dependent": dependent, **row}


def _time(workers: int) -> dict[str, Any]:
    """Use the fastest workers for the steps that Theorem 1 requires, and return the time."""
    problem = Quadratic(DIMENSIONS, (0.1, 1.0), centres=(0.0,), shares=(1.0,), start=0.5, noise=0.3)
    known: dict[str, Any] = {"L": problem.L, "delta": problem.delta, "sigma": 0.3 * DIMENSIONS**0.5}
    choice = fastest(DURATIONS, **known, epsilon=EPSILON)
    _, steps, seconds = choice.table[workers - 1]
    promised = nonconvex(**known, workers=workers, steps=steps)
    trace = WorkerSpeeds(DURATIONS).fastest(workers).trace(steps)
    sums, reached = [0.0, 0.0], float("nan")

    def watch(server: Server) -> None:
        nonlocal reached
        x = server.optimizer.param_groups[0]["params"][0].detach()
        sums[0] += problem.squared_gradient(x)
        sums[1] += 1
        if reached != reached and sums[0] / sums[1] <= EPSILON:
            reached = float(trace.end[server.arrivals - 1])

    simulate(
        problem,
        "ordered-momentum",
        trace,
        lr=promised.lr,
        beta=promised.beta,
        evaluate_every=steps,
        callbacks=[OnArrival(watch)],
    )
    return {
        "workers": workers,
        "steps": steps,
        "predicted": seconds,
        "simulated": float(trace.end[-1]),
        "reached": reached,
        "mean_squared_gradient": sums[0] / sums[1],
        "best": choice.workers == workers,
        "optimal": choice.optimal,
    }


def _adversary(method: str, workers: int, steps: int, tries: int, seed: int) -> dict[str, Any]:
    ratio, schedule, start = worst(method, workers=workers, steps=steps, tries=tries, seed=seed)
    known = {"method": method, "workers": workers, "steps": steps, "seed": seed}
    return {**known, "ratio": ratio, "schedule": repr(schedule), "start": start}


_STUDIES: dict[str, Callable[..., dict[str, Any]]] = {
    "counter example": _counter_example,
    "nonconvex over T": _nonconvex,
    "nonconvex over M": _nonconvex,
    "convex over T": _convex,
    "convex over M": _convex,
    "convex over lr": _convex,
    "time": _time,
    "adversary": _adversary,
}
