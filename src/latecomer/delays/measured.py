"""Measured durations and delays: of a recorded run, or from a simple CSV file."""

from __future__ import annotations

import csv
import itertools
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.checks import AT_LEAST_ZERO, several, whole_number
from .._util.seeds import sample_seeds, stream
from ..policy import PolicyLike
from ..trace import STATUSES, Trace
from .base import DelayModel, arrivals_trace, checked_steps
from .clock import ClockModel, check_task
from .schedule import Jobs

__all__ = ["MeasuredDelays", "MeasuredDurations", "check_durations"]

_WORKER, _SECONDS, _GROUP = "worker", "seconds", "group"


class MeasuredDurations(ClockModel):
    """Jobs take as long as jobs of a real run took, under any policy.

    A worker's jobs take its measured durations one after the other, from a place that the seed draws, and begin again
    at the end of the list. Where the measurement has groups, a duration keeps its group: slow samples stay slow.

    With a ``task`` the batch of a ticket decides the group, and the job takes the worker's next measured duration of
    that group. A worker without one takes those of all workers.

    Args:
        jobs: The measured jobs of every worker: seconds, or pairs of seconds and group.
        groups: Number of groups.
        task: A `latecomer.Task` with a ``group_fn``, as many groups as were measured, and jobs of each of them.

    Examples:
        >>> model = MeasuredDurations([[1.0, 2.0], [5.0]])
        >>> model.trace(steps=4).end.tolist()
        [2.0, 3.0, 5.0, 5.0]
        >>> import latecomer as lc
        >>> real = lc.fit(lc.problems.quadratic(), lr=0.1, workers=2, engine="inline", steps=20)
        >>> MeasuredDurations.of(real.trace).trace(steps=6, policy="synchronous").update.tolist()
        [0, 1, 0, 2, 0, 3]
    """

    def __init__(self, jobs: Sequence[Sequence[Any]], groups: int = 1, *, task: Any = None) -> None:
        count = whole_number("groups", groups, least=1)
        what = "lists, one per worker"
        measured = [[_job(job, count) for job in several("jobs", own)] for own in several("jobs", jobs, what)]
        if not measured or not all(measured):
            empty = next((i for i, own in enumerate(measured) if not own), 0)
            raise ValueError(f"There are no measured jobs of worker {empty}: every worker needs at least one")
        self.measured, self.workers = measured, len(measured)
        flat = np.array([group for own in measured for _, group in own])
        counts = np.bincount(flat, minlength=count)
        self.shares = tuple((counts / counts.sum()).tolist())
        self.task = task
        if task is not None:
            check_task(task)
            _check_groups(counts.tolist(), task)

    def __repr__(self) -> str:
        jobs = sum(map(len, self.measured))
        own = f"groups={len(self.shares)}" if self.task is None else f"task={self.task.name}"
        return f"MeasuredDurations(<{jobs} jobs of {self.workers} workers>, {own})"

    @classmethod
    def of(cls, trace: Trace, *, task: Any = None) -> MeasuredDurations:
        """Return the durations of a recorded trace, which needs a clock.

        Jobs that were lost, or still running at its end, do not count. A record in which jobs were cancelled is
        refused, and one that ends before a worker has finished a job: the durations that it lacks are the long ones.

        Args:
            trace: The trace, for example ``run.trace`` of `latecomer.fit`.
            task: The task whose batches the jobs shall have, if it has a ``group_fn``.
        """
        if not isinstance(trace, Trace):
            raise TypeError(
                f"Invalid trace: {type(trace).__name__} (expected a latecomer.Trace; Trace.load reads a file)"
            )
        check_durations(trace)
        jobs: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for worker, start, end, group in zip(trace.worker, trace.start, trace.end, trace.group, strict=True):
            jobs[int(worker)].append((float(end - start), int(group)))
        return cls([jobs[worker] for worker in sorted(jobs)], len(trace.header.groups), task=task)

    @classmethod
    def read(cls, file: str | os.PathLike[str], *, task: Any = None) -> MeasuredDurations:
        """Read a CSV file with one job per line: columns ``worker`` and ``seconds``, and ``group`` if there are groups.

        Workers and groups are whole numbers from 0. ``task`` is as in `of`.
        """
        rows = _rows(file)
        header = [name.strip().lower() for name in rows[0]]
        if _WORKER not in header or _SECONDS not in header:
            raise ValueError(
                f"{file} has no columns {_WORKER!r} and {_SECONDS!r} (its first line is {','.join(rows[0])[:80]!r}): "
                "a file of delays is read by MeasuredDelays"
            )
        jobs: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for line, row in enumerate(rows[1:], 2):
            value = dict(zip(header, row, strict=False))
            seconds, worker, group = (
                _number(file, line, value.get(name, "0" if name == _GROUP else ""))
                for name in (_SECONDS, _WORKER, _GROUP)
            )
            jobs[_whole(file, line, worker)].append((seconds, _whole(file, line, group)))
        if not jobs or sorted(jobs) != list(range(len(jobs))):
            raise ValueError(f"{file} has jobs of the workers {sorted(jobs)[:10]} (expected all numbers from 0)")
        groups = 1 + max(group for own in jobs.values() for _, group in own)
        return cls([jobs[worker] for worker in range(len(jobs))], groups, task=task)

    def jobs(self, seed: int) -> Jobs:
        """Return the durations: a worker's n-th job (with a task its n-th of a group) is as long under every policy."""
        if self.task is not None:
            return self._jobs_of_task(seed)
        first = [int(stream(seed, "measured", i).integers(len(own))) for i, own in enumerate(self.measured)]
        done = [0] * self.workers

        def job(ticket: int, worker: int) -> tuple[float, int]:
            own = self.measured[worker]
            place = (first[worker] + done[worker]) % len(own)
            done[worker] += 1
            return own[place]

        return job

    def _jobs_of_task(self, seed: int) -> Jobs:
        task = self._task_of(seed)
        of_group = [[job for own in self.measured for job in own if job[1] == group] for group in range(task.groups)]
        places: dict[tuple[int, int], Iterator[tuple[float, int]]] = {}

        def job(ticket: int, worker: int) -> tuple[float, int]:
            group = task.group_of(ticket, int(sample_seeds(seed, 1, first=ticket)[0]))
            if (worker, group) not in places:
                own = [job for job in self.measured[worker] if job[1] == group] or of_group[group]
                first = int(stream(seed, "measured", worker, group).integers(len(own)))
                places[worker, group] = itertools.cycle(own[first:] + own[:first])
            return next(places[worker, group])

        return job


class MeasuredDelays(DelayModel):
    r"""The order of arrivals of a real run of which only the delays are known, from a CSV file of numbers.

    With one column, line t has the delay of arrival t. With one column per worker, line t has the age of each worker's
    newest gradient: a worker has arrived where its age is not one more than on the line before. Workers that arrive on
    the same line arrive in the order of their columns.

    A delay says at which version its job began, and so which worker arrives: the one that arrived just before that
    version. In real runs others may have arrived in between; then the worker whose version is nearest arrives. `exact`
    is the share of arrivals that have exactly the measured delay.

    Args:
        file: The file.
        workers: Number of workers, if there is one column; by default the least that fits its first delays.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "delays.csv")
        ...     _ = file.write_text("0\n1\n2\n1\n3\n2\n")
        ...     model = MeasuredDelays(file)
        >>> model.workers, model.trace(steps=6).delay.tolist(), model.exact
        (3, [0, 1, 2, 1, 3, 2], 1.0)
    """

    def __init__(self, file: str | os.PathLike[str], workers: int | None = None) -> None:
        rows = _rows(file)
        table = [[_number(file, line, value) for value in row] for line, row in enumerate(rows, 1)]
        if len({len(row) for row in table}) > 1:
            raise ValueError(f"The lines of {file} have several lengths (expected one column, or one per worker)")
        values = np.array(table)
        if (values < 0).any() or (values % 1 != 0).any():
            line = int(np.argmax(((values < 0) | (values % 1 != 0)).any(axis=1))) + 1
            raise ValueError(f"Line {line} of {file} has {rows[line - 1]} (expected delays: whole numbers from 0)")
        self._file = Path(file).name
        delays = values.astype(np.int64)
        if delays.shape[1] > 1:
            if workers not in (None, delays.shape[1]):
                raise ValueError(f"{file} has {delays.shape[1]} columns, one per worker, and workers={workers}")
            self.workers, self.order = delays.shape[1], _order_of_ages(delays)
            self.exact = 1.0
        else:
            self.workers = _least(delays[:, 0]) if workers is None else whole_number("workers", workers, least=1)
            self.order, self.exact = _order_of_delays(delays[:, 0], self.workers)

    def __repr__(self) -> str:
        return f"MeasuredDelays({self._file!r}, workers={self.workers})"

    def trace(self, steps: int, seed: int = 0, policy: PolicyLike | None = None) -> Trace:
        """Return a schedule of ``steps`` arrivals, under a policy that makes no worker wait and cancels nothing."""
        steps, seed = checked_steps(steps, seed)
        if steps > len(self.order):
            raise ValueError(f"Invalid steps value: {steps} ({self._file} has {len(self.order)} arrivals)")
        return arrivals_trace(
            self.order[:steps], policy, workers=self.workers, seed=seed, model=repr(self), groups=("all",),
            group=np.zeros(steps, dtype=np.int16),
        )  # fmt: skip


def _order_of_ages(ages: NDArray[np.int64]) -> NDArray[np.int32]:
    arrived = np.ones_like(ages, dtype=bool)
    arrived[1:] = ages[1:] != ages[:-1] + 1
    return np.nonzero(arrived)[1].astype(np.int32)


def _least(delays: NDArray[np.int64]) -> int:
    """Return how many arrivals have version 1: each worker has one, the first."""
    return max(1, int((delays == np.arange(len(delays))).sum()))


def _order_of_delays(delays: NDArray[np.int64], workers: int) -> tuple[NDArray[np.int32], float]:
    """Return who arrives, so that delays are as measured or as near as can be, and the share of exact ones."""
    holder: dict[int, list[int]] = {1: list(range(workers))[::-1]}  # workers by the version that they compute
    order, exact = np.zeros(len(delays), dtype=np.int32), 0
    for index, delay in enumerate(delays.tolist()):
        t = index + 1
        wanted = t - delay
        version = wanted if wanted in holder else min(holder, key=lambda v, w=wanted: (abs(v - w), v))  # type: ignore[misc]
        exact += version == wanted
        worker = holder[version].pop()
        if not holder[version]:
            del holder[version]
        order[index] = worker
        holder[t + 1] = [worker]
    return order, exact / len(delays)


def check_durations(trace: Trace) -> None:
    """Raise unless the jobs that arrived in a record stand for all that it had."""
    if trace.header.clock == "none" or not len(trace):
        raise ValueError(
            "The record has no arrivals with a clock, so its jobs have no durations: record a run of `latecomer train` "
            "or `fit`"
        )
    columns = trace.columns
    stopped = int((columns["status"] == STATUSES.index("cancelled")).sum())
    if stopped:
        raise ValueError(
            f"{stopped:,} jobs of the record were cancelled, mostly slow ones, so its durations are too short: record "
            "a run under a policy that cancels nothing"
        )
    running = set(columns["worker"][columns["status"] < 0].tolist())
    left = {worker for _, worker in trace.header.left}
    unknown = sorted(running - left - set(trace.worker.tolist()))
    if unknown:
        raise ValueError(
            f"Worker {unknown[0]} had finished no job when the record ended, so how long its jobs take is not known: "
            "record a longer run"
        )


def _job(job: Any, groups: int) -> tuple[float, int]:
    seconds, group = job if isinstance(job, (tuple, list)) and len(job) == 2 else (job, 0)
    return AT_LEAST_ZERO.check("seconds", seconds), whole_number("group", group, most=groups - 1)


def _check_groups(counts: Sequence[int], task: Any) -> None:
    """Raise unless jobs of each group of a task were measured, and of no other."""
    names = ", ".join(task.group_names)
    if len(counts) != task.groups:
        raise ValueError(f"The measured jobs have {len(counts)} groups and the task has {task.groups}: {names}")
    missing = [name for name, count in zip(task.group_names, counts, strict=True) if not count]
    if missing:
        raise ValueError(
            f"There are no measured jobs of the group {missing[0]} (the task's groups are {names}): measure more jobs"
        )


def _rows(file: str | os.PathLike[str]) -> list[list[str]]:
    """Return the lines of a CSV file that are not empty; what is not such a file gets a sentence."""
    if not isinstance(file, (str, os.PathLike)):
        raise TypeError(f"Invalid file: {file!r} (expected the name of a CSV file)")
    try:
        with Path(file).open(newline="", encoding="utf-8") as opened:
            rows = [row for row in csv.reader(opened) if any(value.strip() for value in row)]
    except FileNotFoundError:
        raise ValueError(f"There is no file {file}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not a CSV file: {error}") from None
    if not rows:
        raise ValueError(f"{file} is empty (expected a CSV file of numbers)")
    return rows


def _number(file: Any, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"Line {line} of {file} has {text!r} (expected a number of at least 0)")
    return value


def _whole(file: Any, line: int, value: float) -> int:
    if value % 1:
        raise ValueError(f"Line {line} of {file} has {value:g} (expected a whole number)")
    return int(value)
