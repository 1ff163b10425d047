"""`latecomer.plan`: synchronous or asynchronous, for a task and numbers of workers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from .._util.checks import AT_LEAST_ZERO, POSITIVE, several, whole_number
from .._util.defaults import DEFAULT_METHOD
from ..optim import MethodLike
from ..policy import POLICIES, PolicyLike, as_policy
from ..problems.base import Problem
from ..trace import Trace
from .predict import (
    SHARED_MEMORY,
    Network,
    Prediction,
    capacity,
    checked_workers,
    occupied,
    predict_policy,
    predict_rounds,
)
from .timing import JobTimes, recorded_times, time_jobs

__all__ = ["WORTH_IT", "Plan", "plan"]

WORTH_IT = 1.2
"""Asynchrony is advised from so many times the samples per second of the best synchronous scheme on."""
_REPLICATES = 200
_FULL = 0.9
"""The server or a link is full if it is occupied for this share of the time."""
_MOST_JOBS = 1_000_000
_SIZED = 10
"""With a record so many jobs are run, for the number of samples of a job."""
_BUSY = 0.8
"""Below so many CPU seconds per second, jobs that were timed alone waited."""
_LENGTH = 10
"""A record that lasts fewer times its longest job lacks a tenth or more of such jobs: they were still running."""
SYNCHRONOUS, BUCKETS, ASYNC = "synchronous", "synchronous, buckets", "async"


@dataclass(frozen=True, repr=False)
class Plan:
    """What is predicted for a task.

    Attributes:
        times: The durations that it rests on.
        network: The network.
        table: One row per number of workers and scheme: ``updates`` per second, ``samples`` per second that enter an
            update, ``faster`` than synchronous with its 90 % bootstrap interval, ``idle``, ``delay``, ``wasted``, and
            ``seconds`` to the same number of samples.
        advice: One sentence or two per number of workers.
        samples: The number of samples that ``seconds`` is about.
    """

    times: JobTimes
    network: Network
    table: pl.DataFrame
    advice: tuple[str, ...]
    samples: int

    @property
    def caution(self) -> str:
        """What is doubtful about the durations; empty if nothing is known to be."""
        found = []
        if self.times.missing:
            found.append(
                f"No job of {' or '.join(map(repr, self.times.missing))} was found, so the predictions leave such jobs "
                "out: take the record of a run that has some."
            )
        if self.times.record_length < _LENGTH:
            found.append(
                f"The record lasts only {self.times.record_length:.1f} times as long as its longest job. Jobs that "
                "were still running when it ended are missing, mostly slow ones, so slow jobs count too little: take "
                "the record of a longer run."
            )
        if self.times.record_length < math.inf and self.network != SHARED_MEMORY:
            found.append(
                "The durations of a record contain its transfers, and those of the network were added: leave the "
                "network and its latency out unless all processes of that run were on one machine."
            )
        if self.times.cpu <= _BUSY:
            found.append(
                f"Jobs used the CPU for {100 * self.times.cpu:.0f} % of their time. If they wait for nothing of their "
                "own, other programs slowed them down: repeat it on a quiet machine, or pass the record of a run."
            )
        return " ".join(found)

    def __repr__(self) -> str:
        return "\n".join(filter(None, (*self.advice, self.caution)))


def plan(
    task: Problem,
    workers: Sequence[int] = (4, 8, 16),
    *,
    record: str | os.PathLike[str] | Trace | None = None,
    network: float | None = None,
    latency: float = 0.0,
    jobs: int = 40,
    samples: int = 1_000_000,
    method: MethodLike = DEFAULT_METHOD,
    policies: Mapping[str, PolicyLike] | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Time some jobs of a task and predict what asynchrony would bring, before a cluster is rented.

    Args:
        task: A `latecomer.Task`, or any problem.
        workers: Numbers of workers to predict for.
        record: A recorded run of this task: its durations are used instead of timed ones. They contain the transfers
            of that run, so leave out ``network`` and ``latency`` if it had one.
        network: Bandwidth of each machine in Gbit/s; None if server and workers share memory.
        latency: Latency of a message in microseconds. It matters if jobs take milliseconds.
        jobs: Number of jobs to time.
        samples: Number of samples for the column ``seconds``.
        method: The method, for the server's work per contribution.
        policies: Policies to predict besides ``"async"``, by name; by default all of `latecomer.policy.POLICIES` but
            the synchronous one.
        seed: Draws the samples and the simulations.
        on_progress: Called with the number of timed jobs and predictions so far, and the number of both.

    Examples:
        >>> import latecomer as lc
        >>> found = lc.plan(lc.problems.digits(network="mlp"), workers=[4], jobs=5)
        >>> found.table["scheme"].to_list()[:3]
        ['synchronous', 'synchronous, buckets', 'async']
        >>> found.advice[0].startswith("4 workers: ")
        True
    """
    if not isinstance(task, Problem):
        raise TypeError(f"Invalid task: {type(task).__name__} (expected a latecomer.Task or a problem)")
    counts = list(dict.fromkeys(map(checked_workers, several("workers", workers, "numbers, such as [4, 8, 16]"))))
    if not counts:
        raise ValueError("Invalid workers: none (expected at least one number of workers, such as 4 8 16)")
    samples, seed = whole_number("samples", samples, least=1), whole_number("seed", seed)
    link = Network(
        None if network is None else POSITIVE.check("network", network), AT_LEAST_ZERO.check("latency", latency)
    )
    trace = record if record is None or isinstance(record, Trace) else Trace.load(record)  # before jobs are timed
    if trace is not None and trace.header.groups != ("all",) and len(trace.header.groups) != task.groups:
        raise ValueError(f"The record has {len(trace.header.groups)} groups, this task {task.groups}: it is of another")
    # Synchronous rounds go through an all-reduce; under the policy of that name they go through one server.
    others = {name: name for name in POLICIES if name not in (SYNCHRONOUS, ASYNC)} if policies is None else policies
    named = {f"{name} (one server)" if name == SYNCHRONOUS else name: own for name, own in _named(others, counts[0])}
    schemes: dict[str, PolicyLike] = {ASYNC: "async", **named}
    jobs = whole_number("jobs", jobs, least=1, most=_MOST_JOBS)
    timed = jobs if trace is None else min(jobs, _SIZED)
    told = on_progress or (lambda done, total: None)
    total = timed + len(counts) * len(schemes)
    times = time_jobs(task, jobs=timed, method=method, seed=seed, on_progress=lambda done, _: told(done, total))
    if trace is not None:
        times = recorded_times(trace, times)
    rows, advice = [], []
    for place, count in enumerate(counts):
        found = {SYNCHRONOUS: predict_rounds(times, count, link)}
        if times.groups > 1:
            found[BUCKETS] = predict_rounds(times, count, link, buckets=True)
        for number, (name, own) in enumerate(schemes.items(), start=1):
            found[name] = predict_policy(times, count, own, link, seed=seed)
            told(timed + place * len(schemes) + number, total)
        span = _interval(times, count, link, seed)
        for name, each in found.items():
            rate, faster = each.samples, each.samples / found[SYNCHRONOUS].samples
            low, high = (faster * factor for factor in span.rounds) if name == ASYNC else (None, None)
            rows.append(
                {
                    "workers": count, "scheme": name, "updates": each.updates, "samples": rate,
                    "faster": faster, "low": low, "high": high, "idle": each.idle,
                    "delay": each.delay, "wasted": each.wasted, "seconds": samples / rate if rate else math.inf,
                }
            )  # fmt: skip
        advice.append(_advice(count, found, span.best, _full(times, link, found[ASYNC].jobs)))
    return Plan(times, link, pl.DataFrame(rows, infer_schema_length=None), tuple(advice), samples)


def _named(policies: Mapping[str, PolicyLike], workers: int) -> Iterator[tuple[str, PolicyLike]]:
    """Yield policies and the names of their rows; what would replace another scheme's row is refused."""
    if not isinstance(policies, Mapping):
        raise TypeError(
            f"Invalid policies value: {policies!r} (expected a dict of policies by name, such as "
            "{'ringmaster': 'ringmaster'})"
        )
    for name, own in policies.items():
        if not isinstance(name, str):
            raise TypeError(f"Invalid name of a policy: {name!r} (expected a text)")
        found = as_policy(own, workers).name
        if name == BUCKETS or (name in POLICIES and name != found):
            raise ValueError(
                f"The policy {found!r} is called {name!r}, which is the name of another scheme: choose another name"
            )
        yield name, own


class _Spans(NamedTuple):
    """Between which factors of the prediction 90 % of bootstrap replicates are."""

    rounds: tuple[float, float]
    best: tuple[float, float]


def _interval(times: JobTimes, workers: int, network: Network, seed: int) -> _Spans:
    """Return the intervals of how much faster asynchrony is: than plain rounds, and than the better synchronous scheme.

    A replicate is not simulated: queues matter less to its ratio than the durations do.
    """
    generator = np.random.default_rng((seed, workers))

    def faster(own: JobTimes) -> tuple[float, float]:
        plain = predict_rounds(own, workers, network).jobs
        bucketed = predict_rounds(own, workers, network, buckets=True).jobs if own.groups > 1 else plain
        free = capacity(own, workers, network)
        return free / plain, free / max(plain, bucketed)

    ratios = np.array([faster(times.resampled(generator)) for _ in range(_REPLICATES)]) / faster(times)
    low, high = np.quantile(ratios, [0.05, 0.95], axis=0).tolist()
    return _Spans((low[0], high[0]), (low[1], high[1]))


def _full(times: JobTimes, network: Network, jobs: float) -> str:
    """Return what is full at so many contributions per second, or an empty text."""
    each = occupied(times, network)
    busiest, seconds = max(("server", each.server), ("network of the server", each.down), key=lambda own: own[1])
    return busiest if jobs * seconds > _FULL else ""


def _advice(
    workers: int, found: Mapping[str, Prediction], span: tuple[float, float] = (1.0, 1.0), is_full: str = ""
) -> str:
    """Say plainly whether to stay synchronous; the span is that of the gain over the better synchronous scheme."""
    waiting = {name: each for name, each in found.items() if name in (SYNCHRONOUS, BUCKETS)}
    best = max(waiting, key=lambda name: waiting[name].jobs)
    own, plain = found[ASYNC], found[SYNCHRONOUS].jobs
    gain = own.jobs / waiting[best].jobs
    noun = "1 worker" if workers == 1 else f"{workers} workers"
    if workers == 1:
        return f"{noun}: there is nobody to wait for, so asynchrony brings nothing."
    scheme = "synchronous training with jobs of one group per round" if best == BUCKETS else "synchronous training"
    full = f" The {is_full} is full: workers wait {100 * own.idle:.0f} % of the time." if is_full else ""
    near = ""
    if span[0] * gain < WORTH_IT <= span[1] * gain:
        near = f" It is close: the interval of this number is {span[0] * gain:.2f} to {span[1] * gain:.2f}."
    if gain >= WORTH_IT:
        return (
            f"{noun}: asynchronous training processes {gain:.1f} times as many samples per second as {scheme}, at a "
            f"mean delay of {own.delay:.1f} updates.{near} What late gradients cost in accuracy is not predicted: "
            f"`latecomer compare` measures it.{full}"
        )
    but = ""
    if best == BUCKETS and waiting[best].jobs >= WORTH_IT * plain:
        but = (
            f", but give all workers jobs of one group per round: {waiting[best].jobs / plain:.1f} times as many "
            f"samples per second as without. If that cannot be done, asynchrony brings "
            f"{own.jobs / plain:.1f} times as many"
        )
    return (
        f"{noun}: stay synchronous{but}. Compared with {scheme}, asynchronous training would process {gain:.2f} times "
        f"as many samples per second; below {WORTH_IT:g} that does not pay for gradients that are late.{near}{full}"
    )
