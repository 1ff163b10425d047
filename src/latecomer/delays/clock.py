"""Delay models with a virtual clock: every ticket has a duration, and the first to finish arrives first."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.checks import POSITIVE, checked_flag, several, whole_number
from .._util.seeds import sample_seeds, stream, uniforms
from ..policy import Async, Policy, PolicyLike
from ..trace import Trace
from .base import (
    DelayModel,
    async_trace,
    checked_steps,
    checked_workers,
    group_names,
    group_shares,
    groups_from,
    own_workers,
    tickets_of,
)
from .schedule import Jobs, clocked_trace, own_policy

__all__ = ["ClockModel", "SampleCost", "WorkerSpeeds"]

_BLOCK = 1024  # jobs that are drawn at a time where it is not known how many there will be
_FIRST_BLOCK = 8  # of a worker: most of very many workers have few jobs
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

_NOISE: dict[str, Draw] = {
    "fixed": lambda generator, n: np.ones(n),
    "exponential": lambda generator, n: generator.exponential(1.0, n),
    "uniform": lambda generator, n: generator.uniform(0.0, 2.0, n),
    "lognormal": lambda generator, n: generator.lognormal(-0.5, 1.0, n),
    "pareto": lambda generator, n: (generator.pareto(1.5, n) + 1.0) / 3.0,
}
"""Random factors of mean one; the tail of the last is so heavy that it has no variance."""


class ClockModel(DelayModel):
    """A delay model in which every job has a duration, so that it has a schedule under any policy.

    To write one, define `jobs`, and set ``workers`` and, for problems with groups, ``shares``.

    Examples:
        >>> class Warming(ClockModel):
        ...     workers = 2
        ...     def jobs(self, seed):
        ...         return lambda ticket, worker: (1.0 + 5.0 / (1 + ticket), 0)
        >>> Warming().trace(steps=4).end.round(2).tolist()
        [3.5, 6.0, 6.17, 8.17]
    """

    shares: tuple[float, ...] = (1.0,)
    """Share of every group of samples, fastest first."""
    server_seconds: float = 0.0
    """Seconds per arrival that the server is busy."""
    task: Any = None
    """A task whose batches decide the group of a ticket, in place of shares."""

    @property
    def _group_names(self) -> tuple[str, ...]:
        """Names of the groups, fastest first: the task's, if it has one."""
        return tuple(getattr(self.task, "group_names", ())) or group_names(group_shares(None, self.shares))

    def _task_of(self, seed: int) -> Any:
        """Return the task as a run on this seed has it: its epochs depend on the seed."""
        return None if self.task is None else self.task.with_seed(seed)

    _ties = "ticket"

    @abstractmethod
    def jobs(self, seed: int) -> Jobs:
        """Return a function of ticket and worker that returns the duration of a job and the group of its sample.

        It is called once per ticket, in order of issue.
        """

    def seconds(self, duration: float, worker: int, start: float) -> float:
        """Return how long a job takes that starts at this time: its duration, unless speeds change."""
        return duration

    def trace(self, steps: int, seed: int = 0, policy: PolicyLike | None = None) -> Trace:
        """Return a schedule of ``steps`` arrivals under any policy; without one every arrival is an update."""
        steps, seed = checked_steps(steps, seed)
        own = own_policy(policy, own_workers(self))
        if own is None:
            return self._async_trace(steps, seed)
        return self._clocked_trace(steps, seed, own)

    def _async_trace(self, steps: int, seed: int) -> Trace:
        return self._clocked_trace(steps, seed, Async())

    def _clocked_trace(self, steps: int, seed: int, policy: Policy) -> Trace:
        groups, jobs = self._group_names, self.jobs(seed)
        if not callable(jobs):
            raise TypeError(
                f"The jobs method of {self!r} returned {repr(jobs)[:200]} (expected a function of ticket and worker, "
                "which returns the duration and the group of a job)"
            )
        return clocked_trace(
            jobs, policy, workers=own_workers(self), steps=steps, seed=seed, groups=groups, model=repr(self),
            ties=self._ties, server_seconds=self.server_seconds,
            seconds=None if type(self).seconds is ClockModel.seconds else self.seconds,
        )  # fmt: skip


class WorkerSpeeds(ClockModel):
    """Each worker has its own speed, independent of the sample.

    Args:
        durations: Mean duration of a job on each worker, in seconds of the virtual clock.
        noise: Random factor of a duration: ``"fixed"`` (1), or with mean one ``"exponential"``, ``"uniform"`` (0 to 2)
            or ``"lognormal"``, or the heavy-tailed ``"pareto"`` (exponent 1.5, infinite variance); or a function of a
            generator and a number of draws.
        slow_share: Share of a slow group, for problems that have one; here it is not slower.
        shares: Shares of several groups instead, fastest first.

    Examples:
        >>> trace = WorkerSpeeds([1.0, 1.0, 2.0]).trace(steps=8, seed=0)
        >>> trace.worker.tolist(), trace.end.tolist()
        ([0, 1, 2, 0, 1, 0, 1, 2], [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 4.0])
    """

    _ties = "worker"

    def __init__(
        self,
        durations: Sequence[float],
        noise: str | Draw = "fixed",
        *,
        slow_share: float | None = None,
        shares: Sequence[float] | None = None,
    ) -> None:
        self.durations = tuple(POSITIVE.check("duration", duration) for duration in several("durations", durations))
        self.workers = whole_number("number of durations", len(self.durations), least=1)
        if not _is_function(noise) and not (isinstance(noise, str) and noise in _NOISE):
            raise ValueError(f"Invalid noise value: {noise!r} (expected a function or one of {', '.join(_NOISE)})")
        self.noise = noise
        self.shares = group_shares(slow_share, shares)

    def __repr__(self) -> str:
        noise = self.noise if isinstance(self.noise, str) else getattr(self.noise, "__name__", "function")
        shown = list(self.durations) if self.workers <= 20 else f"<{self.workers} workers>"
        return f"WorkerSpeeds({shown}, noise={noise}, shares={list(self.shares)})"

    def fastest(self, m: int) -> WorkerSpeeds:
        """Return the same model with the ``m`` fastest workers only.

        Examples:
            >>> WorkerSpeeds([3.0, 1.0, 2.0]).fastest(2).durations
            (1.0, 2.0)
        """
        whole_number("m", m, least=1, most=self.workers)
        return WorkerSpeeds(sorted(self.durations)[:m], self.noise, shares=self.shares)

    def jobs(self, seed: int) -> Jobs:
        """Return the durations: a worker's n-th job takes as long under every policy."""
        generators: dict[int, np.random.Generator] = {}
        drawn: list[list[float]] = [[] for _ in range(self.workers)]
        sizes = [_FIRST_BLOCK] * self.workers
        groups: list[int] = []

        def job(ticket: int, worker: int) -> tuple[float, int]:
            if not drawn[worker]:
                if worker not in generators:
                    generators[worker] = stream(seed, "durations", worker)
                drawn[worker] = self._draw(generators[worker], worker, sizes[worker]).tolist()[::-1]
                sizes[worker] = min(2 * sizes[worker], _BLOCK)
            while ticket >= len(groups):
                seeds = sample_seeds(seed, _BLOCK, first=len(groups))
                groups.extend(groups_from(uniforms(seeds), self.shares).tolist())
            return drawn[worker].pop(), groups[ticket]

        return job

    def _draw(self, generator: np.random.Generator, worker: int, n: int) -> NDArray[np.float64]:
        """Return the durations of a worker's next jobs."""
        draw = _NOISE[self.noise] if isinstance(self.noise, str) else self.noise
        drawn = draw(generator, n)
        try:
            jobs: NDArray[np.float64] = np.asarray(drawn, dtype=np.float64) * self.durations[worker]
        except (TypeError, ValueError):
            jobs = np.zeros(0)
        if jobs.shape != (n,) or not (jobs > 0).all() or not np.isfinite(jobs).all():
            raise ValueError(f"The noise returned {repr(drawn)[:200]} (expected an array of {n} positive numbers)")
        return jobs

    def _async_trace(self, steps: int, seed: int) -> Trace:
        """Return the schedule in which every arrival is an update: sorted, not played event by event."""
        generators = [stream(seed, "durations", worker) for worker in range(self.workers)]
        ends = [np.zeros(0) for _ in generators]
        # Draw as many jobs per worker as `steps` arrivals should need; draw more for workers that run out.
        rate = float(np.sum(1.0 / np.asarray(self.durations)))
        want = [int(1.1 * steps / (duration * rate)) + 8 for duration in self.durations]
        while True:
            for i, generator in enumerate(generators):
                more = want[i] - len(ends[i])
                if more > 0:
                    jobs = self._draw(generator, i, more)
                    done = ends[i][-1] if len(ends[i]) else 0.0
                    with np.errstate(over="ignore"):  # a clock that reaches infinity is refused at the end
                        ends[i] = np.concatenate([ends[i], done + np.cumsum(jobs)])
            time = np.concatenate(ends)
            worker = np.repeat(np.arange(self.workers, dtype=np.int32), [len(e) for e in ends])
            horizon = min(float(e[-1]) for e in ends)  # after it, arrivals of some worker may be missing
            if int((time <= horizon).sum()) >= steps:
                break
            want = [len(e) if e[-1] > horizon else 2 * len(e) for e in ends]
        # At equal times the ticket that was issued first comes first; equal starts fall back on the worker.
        starts = np.concatenate([np.concatenate([[0.0], e[:-1]]) for e in ends])
        order = np.lexsort((worker, starts, time))[:steps]
        end, worker = time[order], worker[order]
        group = _groups_of_tickets(worker, self.workers, seed, self.shares)
        return async_trace(
            worker,
            workers=self.workers,
            seed=seed,
            model=repr(self),
            groups=group_names(self.shares),
            group=group,
            end=end,
        )


class SampleCost(ClockModel):
    """The duration of a job depends on its sample and on the worker.

    The sample is drawn when the ticket is issued; a worker with a costly sample returns late.

    Args:
        workers: Number of workers M.
        cost: Duration of a job: one number per group, fastest first, or a function ``cost(worker, group,
            sample_seed)``.
        slow_share: Share of the slow group.
        shares: Shares of several groups instead, fastest first.
        speeds: A factor on the duration per worker.
        group_of: A function from sample seeds (an array) to groups, for problems whose samples have their own groups;
            by default groups are drawn by their shares.
        task: A `latecomer.Task` with a ``group_fn``, in place of shares: the batch of a ticket is drawn, and its group
            decides how long the job takes.
        dependent: False takes the duration of an independent second sample: the same durations, but not those of the
            sample that is trained on. A task cannot draw one.

    Examples:
        >>> trace = SampleCost(workers=5, cost=(1.0, 10.0), slow_share=0.1).trace(steps=2000, seed=0)
        >>> round(float(trace.delay[trace.group == 1].mean() / trace.delay[trace.group == 0].mean()), 1)
        9.4
    """

    def __init__(
        self,
        workers: int,
        cost: Sequence[float] | Callable[[int, int, int], float],
        slow_share: float | None = None,
        *,
        shares: Sequence[float] | None = None,
        speeds: Sequence[float] | None = None,
        group_of: Callable[[NDArray[np.uint64]], NDArray[Any]] | None = None,
        task: Any = None,
        dependent: bool = True,
    ) -> None:
        self.workers = checked_workers(workers)
        self.task, self.dependent = task, checked_flag("dependent", dependent)
        if task is not None:
            check_task(task)
            if (slow_share, shares, group_of) != (None, None, None) or not dependent:
                raise ValueError("A task has its own groups: leave out slow_share, shares, group_of and dependent")
            shares = (1.0 / task.groups,) * task.groups  # only their number counts
        self.shares = group_shares(slow_share, shares, default=0.1)
        given = (1.0,) * self.workers if speeds is None else several("speeds", speeds)
        self.speeds = tuple(POSITIVE.check("speed", speed) for speed in given)
        if len(self.speeds) != self.workers:
            raise ValueError(f"Got {len(self.speeds)} speeds for {self.workers} workers")
        if not _is_function(cost):
            cost = tuple(POSITIVE.check("cost", each) for each in several("cost", cost, "numbers, one per group"))
            if len(cost) != len(self.shares):
                raise ValueError(f"Got {len(cost)} costs for {len(self.shares)} groups")
        self.cost = cost
        if group_of is not None and not callable(group_of):
            raise TypeError(f"Invalid group_of: {group_of!r} (expected a function of the sample seeds)")
        self.group_of = group_of

    def __repr__(self) -> str:
        cost = getattr(self.cost, "__name__", "function") if callable(self.cost) else list(self.cost)
        own = "" if len(set(self.speeds)) == 1 else f", speeds={list(self.speeds)}"
        if self.task is not None:
            return f"SampleCost(workers={self.workers}, cost={cost}, task={self.task.name}{own})"
        options = f"cost={cost}, shares={list(self.shares)}{own}, dependent={self.dependent}"
        return f"SampleCost(workers={self.workers}, {options})"

    def jobs(self, seed: int) -> Jobs:
        """Return the durations: a ticket's job takes as long under every policy, on the same worker."""
        generator, task = stream(seed, "independent durations"), self._task_of(seed)
        blocks: list[tuple[list[int], Callable[[int, int], float]]] = []

        def grow() -> None:
            first = _BLOCK * len(blocks)
            seeds = sample_seeds(seed, _BLOCK, first=first)
            group = self._group(seeds, task, first)
            costed = seeds if self.dependent else generator.integers(2**64, size=_BLOCK, dtype=np.uint64)
            blocks.append((group.tolist(), self._durations(costed, group if self.dependent else self._group(costed))))

        def job(ticket: int, worker: int) -> tuple[float, int]:
            block, index = divmod(ticket, _BLOCK)
            while block >= len(blocks):
                grow()
            group, duration = blocks[block]
            return duration(index, worker), group[index]

        return job

    def _async_trace(self, steps: int, seed: int) -> Trace:
        """Return the schedule in which every arrival is an update, with all samples drawn at once."""
        n = self.workers + steps - 1
        seeds = sample_seeds(seed, n)
        group = self._group(seeds, self._task_of(seed))
        costed = (
            seeds if self.dependent else stream(seed, "independent durations").integers(2**64, size=n, dtype=np.uint64)
        )
        duration_of = self._durations(costed, group if self.dependent else self._group(costed))
        # (time, ticket, worker): at equal times the ticket that was issued first comes first.
        heap = [(duration_of(i, i), i, i) for i in range(self.workers)]
        heapq.heapify(heap)
        worker, ticket, end = [0] * steps, [0] * steps, [0.0] * steps
        for t in range(steps):
            now, number, idle = heap[0]
            worker[t], ticket[t], end[t] = idle, number, now
            issued = self.workers + t
            if issued < n:
                heapq.heapreplace(heap, (now + duration_of(issued, idle), issued, idle))
            else:
                heapq.heappop(heap)
        return async_trace(
            np.array(worker, dtype=np.int32),
            workers=self.workers,
            seed=seed,
            model=repr(self),
            groups=self._group_names,
            group=group[np.array(ticket)],
            end=np.array(end),
        )

    def _group(self, seeds: NDArray[np.uint64], task: Any = None, first: int = 0) -> NDArray[np.int16]:
        """Return the groups of tickets from their seeds; a task needs their numbers, from ``first`` on, too."""
        if task is not None:
            groups = [task.group_of(first + i, seed) for i, seed in enumerate(seeds.tolist())]
            return np.array(groups, dtype=np.int16)
        if self.group_of is None:
            return groups_from(uniforms(seeds), self.shares)
        found = self.group_of(seeds)
        group = np.asarray(found)
        whole = group.dtype.kind in "iubf" and group.shape == seeds.shape and bool((group % 1 == 0).all())
        if not whole or group.min() < 0 or group.max() >= len(self.shares):
            raise ValueError(
                f"group_of returned {repr(found)[:200]} (expected an array with a group from 0 to "
                f"{len(self.shares) - 1} for each of {len(seeds)} samples)"
            )
        return group.astype(np.int16)

    def _durations(self, seeds: NDArray[np.uint64], group: NDArray[np.int16]) -> Callable[[int, int], float]:
        """Return a function of ticket and worker that gives the duration."""
        speeds = self.speeds
        if not callable(self.cost):
            costs = np.asarray(self.cost)[group].tolist()
            return lambda ticket, worker: costs[ticket] * speeds[worker]
        cost = self.cost

        def duration(ticket: int, worker: int) -> float:
            return POSITIVE.check("cost", cost(worker, int(group[ticket]), int(seeds[ticket]))) * speeds[worker]

        return duration


def check_task(task: Any) -> None:
    """Raise unless the batches of a task have groups."""
    if not getattr(task, "own_groups", False):
        raise TypeError(f"Invalid task: {task!r} (expected a latecomer.Task with a group_fn)")


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _groups_of_tickets(
    worker: NDArray[np.int32], workers: int, seed: int, shares: Sequence[float]
) -> NDArray[np.int16]:
    """Return the groups of arrivals by ticket, for models in which they do not depend on the schedule."""
    group = groups_from(uniforms(sample_seeds(seed, workers + len(worker))), shares)
    return group[tickets_of(worker, workers)]
