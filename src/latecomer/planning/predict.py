"""Predictions: expected values for rounds, and a simulation of workers, one server with a queue, and their links."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._util.checks import AT_LEAST_ZERO, POSITIVE, whole_number
from .._util.memory import check_memory
from ..delays.schedule import Schedule, checked_time
from ..policy import PolicyLike, Ticket, as_policy
from ..trace.work import shares_between
from .timing import JobTimes

__all__ = ["Network", "Prediction", "capacity", "checked_workers", "predict_policy", "predict_rounds"]

_WARM_UP = 0.2
"""Share of the arrivals that is left out: at the start all workers begin at once."""
_LONGEST, _MOST = 25, 200_000
"""A simulation lasts so many of the longest jobs, but not for more arrivals than these."""
_WORKER_BYTES = 2000
"""What a simulation keeps per worker at least."""


class Network(NamedTuple):
    """The network of the server and the workers.

    Args:
        gigabits: Bandwidth of every machine in each direction, in Gbit/s; None if memory is shared.
        latency: Microseconds from the end of sending a message to its arrival. They occupy no link.

    Examples:
        >>> Network(8.0, latency=50.0).seconds(1_000_000)
        0.001
        >>> round(Network(8.0, latency=50.0).all_reduce(1_000_000, workers=4), 6)        # 4 messages in turn
        0.0017
    """

    gigabits: float | None = None
    latency: float = 0.0

    def seconds(self, size: int) -> float:
        """Return the seconds that so many bytes occupy a link."""
        return 0.0 if self.gigabits is None else 8 * size / (POSITIVE.check("network", self.gigabits) * 1e9)

    @property
    def latency_seconds(self) -> float:
        """The latency in seconds."""
        return AT_LEAST_ZERO.check("latency", self.latency) * 1e-6

    def all_reduce(self, size: int, workers: int) -> float:
        """Return the seconds of an all-reduce by halving and doubling.

        Every machine sends 2 (M-1)/M of the bytes, as in a ring, in 2 log2(M) messages. A ring has 2 (M-1).
        """
        messages = 2 * math.ceil(math.log2(workers))
        return self.seconds(size) * 2 * (workers - 1) / workers + messages * self.latency_seconds


SHARED_MEMORY = Network()


def checked_workers(workers: int) -> int:
    """Return a number of workers that fits into memory."""
    workers = whole_number("workers", workers, least=1)
    check_memory(workers * _WORKER_BYTES, f"{workers:,} workers", "predict for fewer")
    return workers


class Prediction(NamedTuple):
    """What is predicted for a number of workers.

    Attributes:
        jobs: Contributions per second that enter an update; those that are dropped or cancelled do not count.
        updates: Updates per second.
        idle: Share of the workers' time in which they compute nothing.
        delay: Mean delay, in updates.
        wasted: Share of the time in which workers compute that goes into contributions that are dropped or cancelled.
        samples: Samples per second that enter an update.
    """

    jobs: float
    updates: float
    idle: float
    delay: float
    wasted: float
    samples: float


def predict_rounds(
    times: JobTimes, workers: int, network: Network = SHARED_MEMORY, *, buckets: bool = False
) -> Prediction:
    """Predict synchronous training with an all-reduce, by expected values: a round lasts as long as its slowest job.

    Args:
        times: Measured durations.
        workers: Number of workers.
        network: The network.
        buckets: Whether all jobs of a round are of one group, as with batches bucketed by length.

    Examples:
        >>> found = predict_rounds(JobTimes([[1.0], [4.0]], shares=[0.5, 0.5]), workers=2, buckets=True)
        >>> found.idle, found.delay, found.updates
        (0.0, 0.0, 0.4)
    """
    workers = checked_workers(workers)
    speeds = Counter(times.speeds_of(workers))
    if buckets:
        durations = (np.sort(own) for own in times.seconds)
        each = (_slowest(own, np.full(len(own), 1 / len(own)), speeds) for own in durations)
        slowest = float(sum(share * lasts for share, lasts in zip(times.shares, each, strict=True)))
    else:
        slowest = _slowest(*times.distribution, speeds)
    total = slowest + network.all_reduce(times.size, workers) + times.server
    busy = times.mean * sum(speed * count for speed, count in speeds.items()) / workers
    jobs = workers / total
    return Prediction(jobs, 1 / total, max(0.0, 1 - busy / total), 0.0, 0.0, jobs * times.samples_per_job)


def _slowest(durations: NDArray[np.float64], chances: NDArray[np.float64], speeds: Counter[float]) -> float:
    """Return the expected longest of one job per worker; durations are in order, and workers are counted by speed."""
    reached = np.cumsum(chances)
    reached[-1] = 1.0
    values = np.unique(np.concatenate([durations * speed for speed in speeds]))
    below = np.ones(len(values))  # chance that no worker takes longer
    for speed, count in speeds.items():
        place = np.searchsorted(durations * speed, values, side="right")
        below *= np.concatenate([[0.0], reached])[place] ** count
    return float((values * np.diff(below, prepend=0.0)).sum())


class Occupied(NamedTuple):
    """Seconds per contribution for which a job has what all workers share to itself."""

    down: float
    up: float
    server: float


def occupied(times: JobTimes, network: Network) -> Occupied:
    """Return how long a job occupies the server's outgoing link, its incoming link and the server."""
    return Occupied(network.seconds(times.points * times.size), network.seconds(times.size), times.server)


def capacity(times: JobTimes, workers: int, network: Network = SHARED_MEMORY) -> float:
    """Return the most contributions per second that the workers, the links and the server allow, without any queue.

    Examples:
        >>> capacity(JobTimes([[0.5]]), workers=4), capacity(JobTimes([[0.5]], server=0.25), workers=4)
        (8.0, 4.0)
    """
    shared = occupied(times, network)
    besides = 2 * network.latency_seconds + sum(shared)
    alone = sum(1 / (times.mean * speed + besides) for speed in times.speeds_of(workers))
    return min([alone, *(1 / each for each in shared if each)])


def predict_policy(
    times: JobTimes,
    workers: int,
    policy: PolicyLike = "async",
    network: Network = SHARED_MEMORY,
    *,
    jobs: int | None = None,
    seed: int = 0,
) -> Prediction:
    """Predict training through one server under a policy.

    A job waits for the server's outgoing link, computes, and waits for the server's incoming link and for the server.
    Each of the three serves one job at a time, first come, first served. Both messages arrive after the latency.

    Args:
        times: Measured durations.
        workers: Number of workers.
        policy: What the server does with an arrival.
        network: The network.
        jobs: Arrivals to simulate. By default at least 100 per worker, and as many as fit into 25 of the longest jobs,
            without which rare long jobs would count too little; 200,000 are enough.
        seed: Draws the jobs.

    Examples:
        >>> found = predict_policy(JobTimes([[0.5]]), workers=4)
        >>> round(found.updates, 1), found.idle, round(found.delay, 1)
        (8.0, 0.0, 3.0)
        >>> round(predict_policy(JobTimes([[0.5]], server=0.25), workers=4).updates, 1)        # the server is full
        4.0
    """
    workers = checked_workers(workers)
    count = whole_number("jobs", _enough(times, workers) if jobs is None else jobs, least=1)
    own = as_policy(policy, workers)
    schedule = Schedule(own, workers, seed, tuple(times.names), "virtual")
    clock = _Clock(times, workers, network, seed)
    clock.start(schedule.issue(0.0), 0.0)
    marks: list[tuple[float, int]] = []  # time and updates after every arrival
    while schedule.arrivals < count:
        ticket, group, now = clock.next()
        checked_time(now, "a prediction with these durations and this network")
        for stale in schedule.arrive(ticket.worker, group, now):
            clock.stop(stale, now)
        marks.append((now, schedule.version - 1))
        clock.start(schedule.issue(now), now)
    trace = schedule.trace("prediction")
    first = int(_WARM_UP * count) if count > 10 else 0
    begin, before = marks[first - 1] if first else (0.0, 0)
    seconds = marks[-1][0] - begin
    used = np.flatnonzero(trace.status[first:] != "dropped") + first
    _, idle, wasted = shares_between(begin, marks[-1][0], trace, *clock.computed(trace.columns["ticket"]))
    samples = float(np.asarray(times.samples)[trace.group[used]].sum())
    return Prediction(
        len(used) / seconds, (marks[-1][1] - before) / seconds, idle, float(trace.delay[first:].mean()), wasted,
        samples / seconds,
    )  # fmt: skip


def _enough(times: JobTimes, workers: int) -> int:
    """Return how many arrivals to simulate."""
    speeds = times.speeds_of(workers)
    lasts = _LONGEST * max(speeds) * max(map(max, times.seconds))
    in_time = math.ceil(sum(lasts / (times.mean * speed) for speed in speeds))
    least = max(4000, 100 * workers)
    return max(least, min(in_time, _MOST))


class _Clock:
    """Jobs on their way: each waits for the outgoing link, computes, waits for the incoming link and for the server."""

    def __init__(self, times: JobTimes, workers: int, network: Network, seed: int) -> None:
        self._speeds, self._occupied = times.speeds_of(workers), occupied(times, network)
        self._drawn = times.draws(seed)
        self._latency = network.latency_seconds
        self._free = {"down": 0.0, "up": 0.0, "server": 0.0}
        self._heap: list[tuple[float, int, bool, Ticket, int]] = []  # time, order, whether received, ticket, group
        self._order = itertools.count()
        self._jobs: dict[int, tuple[float, float]] = {}  # when each ticket is computed: from, to
        self._gone: set[int] = set()  # numbers of cancelled tickets whose jobs are still in the heap

    def _take(self, what: str, at: float, lasts: float) -> float:
        """Queue for a link or the server, and return when it is done."""
        self._free[what] = max(at, self._free[what]) + lasts
        return self._free[what]

    def start(self, tickets: list[Ticket], now: float) -> None:
        """Send jobs out."""
        for ticket in tickets:
            group, duration = next(self._drawn)
            there = self._take("down", now, self._occupied.down) + self._latency
            end = there + duration * self._speeds[ticket.worker]
            self._jobs[ticket.number] = there, end
            heapq.heappush(self._heap, (end, next(self._order), False, ticket, group))

    def stop(self, ticket: Ticket, now: float) -> None:
        """Count a cancelled job until now."""
        begin, end = self._jobs[ticket.number]
        self._jobs[ticket.number] = begin, max(begin, min(end, now))
        self._gone.add(ticket.number)

    def next(self) -> tuple[Ticket, int, float]:
        """Return the ticket that the server handles next, its group, and when that is done."""
        while True:
            at, _, received, ticket, group = heapq.heappop(self._heap)
            if ticket.number in self._gone:  # nobody sends it or handles it
                self._gone.remove(ticket.number)
                continue
            if received:
                return ticket, group, self._take("server", at, self._occupied.server)
            arrival = self._take("up", at, self._occupied.up) + self._latency
            heapq.heappush(self._heap, (arrival, next(self._order), True, ticket, group))

    def computed(self, tickets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return from when the jobs of these tickets are computed, and in a second row until when."""
        return np.array([self._jobs[number] for number in tickets.tolist()]).T
