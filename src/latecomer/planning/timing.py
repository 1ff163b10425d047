"""How long the jobs of a task take, by group: timed here, or read from a recorded run."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._util.checks import AT_LEAST_ZERO, POSITIVE, several, whole_number
from .._util.defaults import DEFAULT_METHOD
from .._util.places import user_code
from .._util.seeds import sample_seeds
from ..core.flat import FlatModule
from ..core.gradient import Contributor, one_thread
from ..core.server_cost import update_seconds
from ..delays.base import group_shares
from ..delays.measured import check_durations
from ..optim import MethodLike, as_method
from ..optim._kernels import is_finite
from ..problems.base import Problem
from ..trace import Trace

__all__ = ["JobTimes", "recorded_times", "time_jobs"]

_LEAST = 3
"""Jobs of every group that are wanted at least."""
_WARM_UP = 2
_LOOKED_AT = 2000
"""Further batches whose group is looked at: for the shares of groups, and for jobs of rare ones."""
_IN_ANY_CASE = 3
"""So many times the timed jobs are looked at, however long it takes; the others no longer than the jobs took."""
_LOOKING = 1.0
"""Or than so many seconds, if that is longer."""


@dataclass(frozen=True)
class JobTimes:
    """Measured durations of jobs, and what else a prediction needs.

    Args:
        seconds: Durations of jobs, one list per group.
        shares: Share of each group among the jobs.
        names: Names of the groups.
        speeds: Factors on the duration, one per worker that was seen; workers of a prediction take them in turn.
        size: Bytes of one copy of the parameters.
        points: Copies that a worker gets per job.
        server: Seconds of the server per contribution.
        samples: Mean number of samples of a job, one per group; 1 each if left out.
        cpu: CPU seconds per second while the jobs were timed: below 1 they waited, for something of their own or for
            other programs.
        counted: Number of jobs that the shares were counted over; 0 if they are declared.
        missing: Names of groups that no timed job is of.
        record_length: How many times as long as its longest job the record lasted; infinite if jobs were timed, of
            which each is waited for.

    Examples:
        >>> JobTimes([[0.1, 0.12], [1.0]], shares=[0.9, 0.1]).mean
        0.199
    """

    seconds: Sequence[Sequence[float]]
    shares: Sequence[float] = (1.0,)
    names: Sequence[str] = ()
    speeds: Sequence[float] = (1.0,)
    size: int = 0
    points: int = 1
    server: float = 0.0
    samples: Sequence[float] = ()
    cpu: float = 1.0
    counted: int = 0
    missing: Sequence[str] = ()
    record_length: float = math.inf

    def __post_init__(self) -> None:
        own = tuple(
            tuple(POSITIVE.check("duration", each) for each in several("seconds", group)) for group in self.seconds
        )
        if not own or not all(own):
            raise ValueError(f"Invalid seconds: {self.seconds!r} (expected at least one duration per group)")
        if len(self.shares) != len(own):
            raise ValueError(f"Got {len(self.shares)} shares for {len(own)} groups of durations")
        object.__setattr__(self, "seconds", own)
        object.__setattr__(self, "shares", group_shares(None, self.shares))
        names = tuple(self.names) or (("all",) if len(own) == 1 else tuple(f"group {i}" for i in range(len(own))))
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "speeds", tuple(POSITIVE.check("speed", each) for each in self.speeds))
        samples = tuple(POSITIVE.check("samples", each) for each in several("samples", self.samples))
        samples = samples or (1.0,) * len(own)
        if len(samples) != len(own):
            raise ValueError(f"Got {len(samples)} numbers of samples for {len(own)} groups of durations")
        object.__setattr__(self, "samples", samples)
        for name, least in (("size", 0), ("points", 1)):
            whole_number(name, getattr(self, name), least=least)
        AT_LEAST_ZERO.check("server", self.server)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.seconds)

    @property
    def mean(self) -> float:
        """Mean duration of a job, in seconds."""
        return float(sum(share * np.mean(own) for share, own in zip(self.shares, self.seconds, strict=True)))

    @property
    def samples_per_job(self) -> float:
        """Mean number of samples of a job."""
        return float(np.dot(self.shares, self.samples))

    def speeds_of(self, workers: int) -> list[float]:
        """Return the factors on the duration of so many workers."""
        return list(itertools.islice(itertools.cycle(self.speeds), workers))

    @property
    def distribution(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Every duration, shortest first, and its chance."""
        durations, chances, _ = self._outcomes()
        order = np.argsort(durations, kind="stable")
        return durations[order], chances[order]

    def _outcomes(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        counts = [len(own) for own in self.seconds]
        chances = np.repeat([share / count for share, count in zip(self.shares, counts, strict=True)], counts)
        return np.concatenate(self.seconds), chances / chances.sum(), np.repeat(np.arange(self.groups), counts)

    def draws(self, seed: int) -> Iterator[tuple[int, float]]:
        """Yield groups and durations of jobs without end.

        A systematic sample in random order: every stretch of 1,024 jobs has each group and duration as often as its
        chance says, to within one, so that a rare slow group is neither missing nor doubled by luck.
        """
        generator, block = np.random.default_rng(seed), 1024
        durations, chances, groups = self._outcomes()
        reached = np.cumsum(chances)
        while True:
            places = np.searchsorted(reached, (generator.random() + np.arange(block)) / block, side="right")
            places = generator.permutation(np.minimum(places, len(durations) - 1))
            yield from zip(groups[places].tolist(), durations[places].tolist(), strict=True)

    def resampled(self, generator: np.random.Generator) -> JobTimes:
        """Return a bootstrap replicate: as many jobs per group, and other shares where they were counted."""
        drawn = [generator.choice(np.asarray(own), size=len(own)).tolist() for own in self.seconds]
        shares = self.shares
        if self.counted and self.groups > 1:
            shares = generator.dirichlet(np.maximum(self.counted * np.asarray(self.shares), 1e-9)).tolist()
        return replace(self, seconds=drawn, shares=shares)


def time_jobs(
    task: Problem,
    *,
    jobs: int = 40,
    method: MethodLike = DEFAULT_METHOD,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> JobTimes:
    """Time jobs of a task in this process, with one torch thread as a worker has, and the server's work per job.

    A job is what a worker does: draw the batch, forward, backward. Its samples are the rows of its batch. Groups come
    in their natural shares. Unless the task declares them, they are counted over up to 2,000 more batches; of these,
    only jobs of rare groups are timed.

    Args:
        task: A `latecomer.Task`, or any problem.
        jobs: Number of jobs to time.
        method: The method, which decides the work of the server and the number of points.
        seed: Draws the samples.
        on_progress: Called with the number of jobs so far and the total.

    Examples:
        >>> import latecomer as lc
        >>> times = time_jobs(lc.problems.digits(network="mlp"), jobs=5)
        >>> len(times.seconds), times.samples, times.size
        (2, (16.0, 16.0), 9640)
    """
    jobs = whole_number("jobs", jobs, least=1)
    found = as_method(method)
    with one_thread():
        with user_code("The model of the task"):
            flat = FlatModule(task.model(seed))
        points = [flat.x.detach().clone()] * found.points
        out = torch.empty_like(points[0])
        contribute = Contributor(task, flat, found.points)
        seconds: list[list[float]] = [[] for _ in range(task.groups)]
        counts, cpu, some_finite, until = np.zeros(task.groups), 0.0, False, math.inf
        sizes: list[list[int]] = [[] for _ in range(task.groups)]  # samples of the timed jobs
        own_batches = getattr(task, "_batch_fn", None) is not None
        wanted = [place for place in range(task.groups) if not task.shares or task.shares[place] > 0]
        few = min(_LEAST, jobs)
        for number, sample in enumerate(sample_seeds(seed, _WARM_UP + jobs + _LOOKED_AT).tolist()):
            done = number - _WARM_UP  # negative while warming up
            if done == jobs:
                until = time.perf_counter() + max(_LOOKING, sum(map(sum, seconds)))
            if done >= jobs:
                known = task.groups == 1 or (task.shares and all(len(seconds[place]) >= few for place in wanted))
                if known or (done >= (1 + _IN_ANY_CASE) * jobs and time.perf_counter() > until):
                    break
            with user_code(f"Job {number} of the task"):
                start, used = time.perf_counter(), time.process_time()
                group = task.group_of(number, sample)
                counts[group] += done >= 0
                if done >= jobs and len(seconds[group]) >= few:
                    continue
                contribute(points, out, number, sample, group, 2)
                finite = is_finite(contribute.result)  # as a worker asks, which waits for an accelerator
            some_finite |= finite
            if done >= 0:
                seconds[group].append(time.perf_counter() - start)
                cpu += time.process_time() - used
                with user_code(f"Job {number} of the task"):
                    rows = _rows(task.batch_of(number, sample, group)) if own_batches else None
                sizes[group].append(rows or int(getattr(task, "batch_size", 1)))
            if on_progress is not None:
                on_progress(min(number + 1, jobs), jobs)
    if not some_finite:
        raise ValueError("No job of the task gave a finite gradient, so there is nothing to train: look at its loss")
    with user_code(f"The optimizer of {found.name}"):
        server = update_seconds(flat.x.numel(), method=found)
    shares = tuple(task.shares) or tuple(counts / counts.sum())
    names = tuple(getattr(task, "group_names", ())) or tuple(f"group {i}" for i in range(task.groups))
    kept = [place for place in wanted if seconds[place]]
    total = sum(shares[place] for place in kept)
    return JobTimes(
        seconds=[seconds[place] for place in kept],
        shares=[shares[place] / total for place in kept],
        names=[names[place] for place in kept],
        size=flat.x.numel() * flat.x.element_size(),
        points=found.points,
        server=server,
        samples=[float(np.mean(sizes[place])) * int(getattr(task, "accumulate", 1)) for place in kept],
        cpu=cpu / sum(map(sum, seconds)),
        counted=0 if task.shares else int(counts.sum()),
        missing=[names[place] for place in wanted if not seconds[place]],
    )


def _rows(batch: Any) -> int | None:
    """Return the number of samples of a batch: the first dimension of its first tensor; None if it has none."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((rows for rows in map(_rows, batch) if rows is not None), None)
    return len(batch) if isinstance(batch, (torch.Tensor, np.ndarray)) and batch.ndim else None


def recorded_times(record: str | os.PathLike[str] | Trace, times: JobTimes | None = None) -> JobTimes:
    """Return the durations of a recorded run, by group, and how fast each of its workers was.

    A recorded duration lasts from the issue of a ticket to its arrival. So it contains the transfers of that run, and
    the wait while its server was busy with others. The server's work on the contribution itself comes after.

    Args:
        record: The trace, or its file.
        times: What a trace does not have: size, server, samples, points, from `time_jobs`.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.WorkerSpeeds([1.0, 3.0]).trace(steps=40)
        >>> recorded_times(trace).speeds
        (0.5, 1.5)
    """
    trace = record if isinstance(record, Trace) else Trace.load(record)
    check_durations(trace)
    running = trace.columns["start"][trace.columns["status"] < 0]
    last, first = float(trace.end.max()), float(np.nanmin(trace.columns["start"]))
    lasted, group, worker = trace.end - trace.start, trace.group, trace.worker
    usable = np.isfinite(lasted) & (lasted > 0) & (group >= 0)
    if not usable.any():
        raise ValueError("The record has no job of positive duration: record a run of `latecomer train` or `fit`")
    lasted, group, worker = lasted[usable], group[usable], worker[usable]
    longest = max(float(lasted.max()), float((last - running).max(initial=0.0)))
    kept = sorted(set(group.tolist()))
    means = {each: float(lasted[group == each].mean()) for each in kept}
    relative = lasted / np.array([means[each] for each in group.tolist()])
    factors = [float(relative[worker == each].mean()) for each in sorted(set(worker.tolist()))]
    middle = float(np.mean(factors))
    speeds = tuple(round(factor / middle, 6) for factor in factors)
    by_worker = dict(zip(sorted(set(worker.tolist())), speeds, strict=True))
    plain = lasted / np.array([by_worker[each] for each in worker.tolist()])
    names = trace.header.groups
    base = times or JobTimes([[1.0]])
    samples = [*base.samples] if len(names) == base.groups else []
    samples += [base.samples_per_job] * (1 + kept[-1] - len(samples))  # of groups that are not the task's
    return replace(
        base,
        seconds=[plain[group == each].tolist() for each in kept],
        shares=[float((group == each).mean()) for each in kept],
        names=[names[each] if each < len(names) else f"group {each}" for each in kept],
        samples=[samples[each] for each in kept],
        speeds=speeds,
        cpu=1.0,
        counted=len(group),
        missing=[name for place, name in enumerate(names) if place not in kept],
        record_length=(last - first) / longest,
    )
