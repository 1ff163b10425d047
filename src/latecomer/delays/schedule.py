"""The schedule that a policy makes of jobs: what a server would do, without parameters."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from typing import Any

from .._util.checks import AT_LEAST_ZERO, whole_number
from .._util.seeds import sample_seeds
from ..policy import Async, Policy, PolicyLike, Ticket, as_policy
from ..policy.asking import STUCK, allowed, cancelled, decided
from ..policy.base import InFlight
from ..trace import Trace

__all__ = ["Jobs", "Schedule", "checked_time", "clocked_trace", "ordered_trace", "own_policy"]

Jobs = Callable[[int, int], tuple[float, int]]
"""A function of ticket and worker that returns the duration of the job and the group of its sample."""


def own_policy(policy: PolicyLike | None, workers: int) -> Policy | None:
    """Return a policy for one trace; None if every arrival is an update, which needs no server."""
    made = as_policy(policy, workers)
    return None if type(made) is Async else made


class Schedule:
    """Issues tickets and counts arrivals as `latecomer.Server` does, and records them.

    Whether an arrival is an update follows from the policy alone: a rule may drop its values or count them as zero, but
    the iterate still gets the next number.

    Args:
        policy: The policy.
        workers: Number of workers.
        seed: Draws the samples.
        groups: Names of the groups.
        clock: ``"none"`` or ``"virtual"``.
    """

    def __init__(self, policy: Policy, workers: int, seed: int, groups: tuple[str, ...], clock: str) -> None:
        from ..trace.recorder import Recorder  # not above: it imports torch, which most traces need not wait for

        self.policy, self.arrivals, self.version = policy, 0, 1
        self.in_flight: dict[int, Ticket] = {}  # by worker, in order of issue
        self.idle = list(range(workers))  # a heap: the lowest number is first
        self._may_cancel = type(policy).cancel is not Policy.cancel
        self._may_wait = type(policy).may_start is not Policy.may_start
        self._recorder = Recorder(workers, seed, policy.name, groups, clock)
        self._samples: list[int] = []

    def issue(self, at: float = math.nan) -> list[Ticket]:
        """Give tickets to idle workers, as far as the policy allows, and return them."""
        issued = []
        while self.idle and (not self._may_wait or allowed(self.policy, len(self.in_flight))):
            worker = heapq.heappop(self.idle)
            number = self._recorder.tickets
            ticket = Ticket(number, worker, self.version, self.arrivals, self._sample(number))
            self.in_flight[worker] = ticket
            self._recorder.issued(ticket, at)
            issued.append(ticket)
        if not self.in_flight:
            raise ValueError(STUCK.format(policy=self.policy))
        return issued

    def arrive(self, worker: int, group: int, at: float = math.nan) -> tuple[Ticket, ...]:
        """Count the arrival of a worker's ticket, and return the tickets that the policy cancels."""
        ticket = self.in_flight[worker]
        decision = decided(self.policy, ticket, self.version - ticket.version)
        update = self.version if decision.action in ("apply", "flush") else 0
        status = {"drop": "dropped", "hold": "held"}.get(decision.action, "applied")
        self.version += bool(update)
        self.arrivals += 1
        self._recorder.arrived(ticket, status, self.arrivals, update, group, at)
        del self.in_flight[worker]
        heapq.heappush(self.idle, worker)
        if not self._may_cancel:
            return ()
        stopped = cancelled(self.policy, InFlight(self.in_flight, "worker"), self.version)
        for stale in stopped:
            self._recorder.ended(stale, "cancelled", self.arrivals)
            del self.in_flight[stale.worker]
            heapq.heappush(self.idle, stale.worker)
        return stopped

    def trace(self, model: str) -> Trace:
        """Return what was recorded."""
        return self._recorder.trace(model)

    def _sample(self, number: int) -> int:
        if number >= len(self._samples):
            more = sample_seeds(self._recorder.seed, max(1024, len(self._samples)), first=len(self._samples))
            self._samples += more.tolist()
        return self._samples[number]


def clocked_trace(
    jobs: Jobs,
    policy: Policy,
    *,
    workers: int,
    steps: int,
    seed: int,
    groups: tuple[str, ...],
    model: str,
    ties: str = "ticket",
    seconds: Callable[[float, int, float], float] | None = None,
    server_seconds: float = 0.0,
) -> Trace:
    """Return the trace of jobs that take time, under any policy.

    A worker starts its next ticket as soon as it is idle and the policy allows it. A cancelled job ends at once.

    Args:
        jobs: Duration and group of a job.
        policy: The policy.
        workers: Number of workers.
        steps: Number of arrivals.
        seed: Draws the samples.
        groups: Names of the groups.
        model: Description of where the schedule comes from.
        ties: Which of two jobs that end at the same time arrives first: the one of the older ``"ticket"``, or the one
            that started first and then that of the lower ``"worker"``.
        seconds: Returns how long a job takes, by its duration, its worker and its start.
        server_seconds: Seconds per arrival that the server is busy; the next one waits.
    """
    schedule = Schedule(policy, workers, seed, groups, "virtual")
    heap: list[tuple[float, float, int, int, Ticket, int]] = []
    now = 0.0  # also when the server is free again: it receives one arrival after the other
    while True:
        for ticket in schedule.issue(now):
            duration, group = _job(jobs, ticket, len(groups), model)
            if seconds is not None:
                duration = seconds(duration, ticket.worker, now)
            tie = (0.0, ticket.number) if ties == "ticket" else (now, ticket.worker)
            # The number is last: a worker whose job is cancelled twice at one time has two jobs with the same tie.
            heapq.heappush(heap, (now + duration, *tie, ticket.number, ticket, group))
        while True:  # skip what was cancelled
            end, _, _, _, ticket, group = heapq.heappop(heap)
            if schedule.in_flight.get(ticket.worker) is ticket:
                break
        now = checked_time(max(now, end) + server_seconds, model)
        stopped = schedule.arrive(ticket.worker, group, now)
        if schedule.arrivals == steps:
            return schedule.trace(model)
        if stopped and len(heap) > 2 * workers:  # more than half is cancelled: else the heap would grow with the run
            heap = [job for job in heap if schedule.in_flight.get(job[4].worker) is job[4]]
            heapq.heapify(heap)


def checked_time(time: float, model: str) -> float:
    """Return the time of an arrival; raise if the clock has reached infinity, after which nothing has an order."""
    if time == math.inf:
        raise ValueError(f"The clock of {model} runs beyond the largest number: use shorter durations")
    return time


def _job(jobs: Jobs, ticket: Ticket, groups: int, model: str) -> tuple[float, int]:
    """Return the duration and the group of a job; a function of the user's may return anything."""
    try:
        answer: Any = jobs(ticket.number, ticket.worker)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is None:  # it was not even entered
            raise TypeError(f"The jobs of {model} cannot be called with a ticket and a worker: {error}") from None
        raise
    try:
        duration, group = answer
        return AT_LEAST_ZERO.check("duration", duration), whole_number("group", group, most=groups - 1)
    except (TypeError, ValueError) as error:
        which = "0" if groups == 1 else f"0 to {groups - 1}"
        raise type(error)(
            f"The jobs of {model} returned {repr(answer)[:200]} for ticket {ticket.number} (expected its duration, a "
            f"number of at least 0, and its group, {which}: return 1.0, 0)"
        ) from None


def ordered_trace(
    worker: Iterable[int],
    group: Iterable[int],
    policy: Policy,
    *,
    workers: int,
    seed: int,
    groups: tuple[str, ...],
    model: str,
) -> Trace:
    """Return the trace in which workers arrive in this order, under a policy that makes none of them wait.

    Args:
        worker: The worker of every arrival.
        group: Group of every arrival.
        policy: The policy.
        workers: Number of workers.
        seed: Draws the samples.
        groups: Names of the groups.
        model: Description of where the order comes from.
    """
    schedule = Schedule(policy, workers, seed, groups, "none")
    for who, which in zip(worker, group, strict=True):
        schedule.issue()
        if schedule.idle:
            raise ValueError(_no_clock(model, policy, f"lets worker {schedule.idle[0]} wait", schedule.arrivals))
        if stale := schedule.arrive(int(who), int(which)):
            raise ValueError(
                _no_clock(model, policy, f"cancels the job of worker {stale[0].worker}", schedule.arrivals)
            )
    return schedule.trace(model)


def _no_clock(model: str, policy: Policy, what: str, arrivals: int) -> str:
    return (
        f"{model} draws who arrives next and has no clock, and the policy {policy!r} {what} after {arrivals} arrivals: "
        "use a delay model with a clock, WorkerSpeeds or SampleCost, which knows when such a worker comes back"
    )
