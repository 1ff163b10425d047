"""Predictions by simulation on a clock: workers, one server with a queue, and the links between them."""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

import numpy as np

from .._util.checks import POSITIVE, whole_number
from ..delays.schedule import Schedule, checked_time
from ..policy import PolicyLike, Ticket, as_policy
from .timing import JobTimes

__all__ = ["Network", "Prediction", "predict_policy", "predict_rounds"]

_WARM_UP = 0.2
"""Share of the arrivals that is left out: at the start all workers begin at once."""


class Network(NamedTuple):
    """The network of the server and the workers.

    Args:
        gigabits: Bandwidth of every machine in each direction, in Gbit/s; None if memory is shared.

    Examples:
        >>> Network(8.0).seconds(1_000_000)
        0.001
    """

    gigabits: float | None = None

    def seconds(self, size: int) -> float:
        """Return the seconds that so many bytes take."""
        return 0.0 if self.gigabits is None else 8 * size / (POSITIVE.check("network", self.gigabits) * 1e9)

    def all_reduce(self, size: int, workers: int) -> float:
        """Return the seconds of a ring all-reduce: every machine sends and receives 2 (M-1)/M of the bytes."""
        return self.seconds(size) * 2 * (workers - 1) / workers


SHARED_MEMORY = Network()


class Prediction(NamedTuple):
    """What is predicted for a number of workers.

    Attributes:
        jobs: Contributions per second that enter an update; those that are dropped or cancelled do not count.
        updates: Updates per second.
        idle: Share of the workers' time in which they compute nothing.
        delay: Mean delay, in updates.
        wasted: Share of the jobs whose contributions were dropped or cancelled.
    """

    jobs: float
    updates: float
    idle: float
    delay: float
    wasted: float


def predict_rounds(
    times: JobTimes,
    workers: int,
    network: Network = SHARED_MEMORY,
    *,
    buckets: bool = False,
    rounds: int = 500,
    seed: int = 0,
) -> Prediction:
    """Predict synchronous training with an all-reduce: a round lasts as long as its slowest job.

    Args:
        times: Measured durations.
        workers: Number of workers.
        network: The network.
        buckets: Whether all jobs of a round are of one group, as with batches bucketed by length.
        rounds: Rounds to simulate.
        seed: Draws the jobs.

    Examples:
        >>> found = predict_rounds(JobTimes([[1.0], [4.0]], shares=[0.5, 0.5]), workers=2, buckets=True)
        >>> found.idle, found.delay
        (0.0, 0.0)
    """
    workers, rounds = whole_number("workers", workers, least=1), whole_number("rounds", rounds, least=1)
    generator = np.random.default_rng(seed)
    speeds = np.resize(np.asarray(times.speeds), workers)
    if buckets:
        order, _ = times.drawn(generator, rounds)
        drawn = np.stack([times.drawn(generator, workers, int(group))[1] for group in order])
    else:
        drawn = times.drawn(generator, rounds * workers)[1].reshape(rounds, workers)
    lasted = drawn * speeds
    total = float((lasted.max(axis=1) + network.all_reduce(times.size, workers) + times.server).sum())
    return Prediction(rounds * workers / total, rounds / total, 1 - float(lasted.sum()) / (workers * total), 0.0, 0.0)


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
    Each of the three serves one job at a time, first come, first served.

    Args:
        times: Measured durations.
        workers: Number of workers.
        policy: What the server does with an arrival.
        network: The network.
        jobs: Arrivals to simulate; at least 100 per worker by default.
        seed: Draws the jobs.

    Examples:
        >>> found = predict_policy(JobTimes([[0.5]]), workers=4)
        >>> round(found.updates, 1), found.idle, round(found.delay, 1)
        (8.0, 0.0, 3.0)
        >>> round(predict_policy(JobTimes([[0.5]], server=0.25), workers=4).updates, 1)        # the server is full
        4.0
    """
    workers = whole_number("workers", workers, least=1)
    count = whole_number("jobs", max(1000, 100 * workers) if jobs is None else jobs, least=1)
    own = as_policy(policy, workers)
    schedule = Schedule(own, workers, seed, tuple(times.names), "virtual")
    clock = _Clock(times, workers, network, seed)
    clock.start(schedule.issue(0.0), 0.0)
    marks: list[tuple[float, int]] = []  # time and updates after every arrival
    while schedule.arrivals < count:
        ticket, group, now = clock.next()
        checked_time(now, "a prediction with these durations and this network")
        if schedule.in_flight.get(ticket.worker) is not ticket:  # it was cancelled
            continue
        for stale in schedule.arrive(ticket.worker, group, now):
            clock.stop(stale, now)
        marks.append((now, schedule.version - 1))
        clock.start(schedule.issue(now), now)
    trace = schedule.trace("prediction")
    first = int(_WARM_UP * count) if count > 10 else 0
    begin, before = marks[first - 1] if first else (0.0, 0)
    seconds = marks[-1][0] - begin
    dropped = int((trace.status[first:] == "dropped").sum())
    stopped = sum(at > begin for at in clock.stopped)
    arrived = count - first
    return Prediction(
        (arrived - dropped) / seconds,
        (marks[-1][1] - before) / seconds,
        max(0.0, 1 - clock.computed(begin, marks[-1][0]) / (workers * seconds)),
        float(trace.delay[first:].mean()),
        (dropped + stopped) / (arrived + stopped),
    )


class _Clock:
    """Jobs on their way: each waits for the outgoing link, computes, waits for the incoming link and for the server."""

    def __init__(self, times: JobTimes, workers: int, network: Network, seed: int) -> None:
        self._times, self._speeds = times, np.resize(np.asarray(times.speeds), workers).tolist()
        self._generator = np.random.default_rng(seed)
        self._drawn: list[tuple[int, float]] = []
        self._down, self._up = network.seconds(times.points * times.size), network.seconds(times.size)
        self._free = {"down": 0.0, "up": 0.0, "server": 0.0}
        self._heap: list[tuple[float, int, bool, Ticket, int]] = []  # time, order, whether received, ticket, group
        self._order = itertools.count()
        self._jobs: dict[int, tuple[float, float]] = {}  # when each ticket is computed: from, to
        self.stopped: list[float] = []

    def _take(self, what: str, at: float, lasts: float) -> float:
        """Queue for a link or the server, and return when it is done."""
        self._free[what] = max(at, self._free[what]) + lasts
        return self._free[what]

    def start(self, tickets: list[Ticket], now: float) -> None:
        """Send jobs out."""
        for ticket in tickets:
            if not self._drawn:
                groups, durations = self._times.drawn(self._generator, 1024)
                self._drawn = list(zip(groups.tolist(), durations.tolist(), strict=True))
            group, duration = self._drawn.pop()
            there = self._take("down", now, self._down)
            end = there + duration * self._speeds[ticket.worker]
            self._jobs[ticket.number] = there, end
            heapq.heappush(self._heap, (end, next(self._order), False, ticket, group))

    def stop(self, ticket: Ticket, now: float) -> None:
        """Count a cancelled job until now."""
        begin, end = self._jobs[ticket.number]
        self._jobs[ticket.number] = begin, max(begin, min(end, now))
        self.stopped.append(now)

    def next(self) -> tuple[Ticket, int, float]:
        """Return the ticket that the server handles next, its group, and when that is done."""
        while True:
            at, _, received, ticket, group = heapq.heappop(self._heap)
            if received:
                return ticket, group, self._take("server", at, self._times.server)
            arrival = self._take("up", at, self._up)
            heapq.heappush(self._heap, (arrival, next(self._order), True, ticket, group))

    def computed(self, begin: float, end: float) -> float:
        """Return the worker seconds between two times that were spent computing."""
        spans = np.array(list(self._jobs.values()))
        return float(np.maximum(0.0, np.minimum(spans[:, 1], end) - np.maximum(spans[:, 0], begin)).sum())
