"""Faults of a run: workers that die, hang, raise or do not start. No ticket is lost and none counts twice."""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence

from .._util.warn import warn
from ..core.faults import Fault, FaultLog
from ..core.state import Driver
from ..engines import Died, Engine, Event, Failed
from ..policy import Ticket
from ..server import Outcome, Server
from .evaluator import WAIT_WARNING
from .run import JournaledRun
from .startup import StartupFailures
from .workers import WorkerSeats

__all__ = ["FaultHandling"]

_MAX_FIRST_FAILURES = 3  # this many given-up tickets before any success end a run whose task raises
_MIN_TICKETS = 20  # fewer tickets than this say nothing about the share that is given up
_MAX_WARNINGS = 5  # this many given-up tickets are reported one by one, the others in one sentence at the end


class FaultHandling(Driver, ABC):
    """The part of the training loop that handles faults.

    A dead worker is replaced. Its ticket is issued again at the same iterate, so a death is only a longer delay. A
    ticket that has failed ``attempts`` times counts as an arrival of weight zero.
    """

    state: JournaledRun
    engine: Engine
    workers: int
    min_workers: int
    steps: int
    attempts: int
    give_up_limit: float
    timeout: float | None

    def __init__(self, workers: int, max_workers: int, attempts: int) -> None:
        self.deaths = self.failures = self.reissued = self.ignored = 0
        self.faults = FaultLog()
        self.reasons: dict[int, str] = {}
        self._failed_attempts: dict[int, int] = {}  # ticket -> number of failed attempts
        self._up: set[int] = set()  # workers that are ready or have a job
        self._idle: set[int] = set()
        self._being_killed: set[int] = set()  # killed workers whose death the engine has not reported yet
        self._cancelled: set[int] = set()  # those of them whose ticket the policy cancelled
        self._timed_out: set[int] = set()  # those of them that took longer than ``timeout``
        self._job_started: dict[int, float] = {}  # worker -> time at which it got its job
        self._seats, self._startup_failures = WorkerSeats(workers), StartupFailures(max_workers, attempts)
        self._events: deque[Event] = deque()
        self._deferred_warnings: list[str] = []
        self._unreported = 0  # given-up tickets without a warning of their own
        self._give_up_reasons: Counter[str] = Counter()
        self._given_up_before = 0  # given-up tickets when this call began
        self._warned_missing = False

    @property
    @abstractmethod
    def server(self) -> Server:
        """The server."""

    @property
    @abstractmethod
    def now(self) -> float:
        """Time on the run's clock."""

    @abstractmethod
    def kill(self, worker: int) -> bool:
        """Kill a worker."""

    @abstractmethod
    def _waited(self) -> float:
        """Return how many seconds the run has waited for its first workers, 0 once training has begun."""

    @abstractmethod
    def _faulted(self, fault: Fault) -> None:
        """Tell the callbacks about a fault."""

    @abstractmethod
    def _enqueue(self, events: Sequence[Event]) -> None:
        """Queue new events."""

    @abstractmethod
    def _issue_tickets(self) -> None:
        """Issue tickets to idle workers."""

    @abstractmethod
    def _arrived(self, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        """Count an arrival."""

    def _died(self, worker: int, event: Died) -> None:
        """Replace a dead worker."""
        self.deaths += 1
        self._idle.discard(worker)
        self._job_started.pop(worker, None)
        never_ready = worker not in self._up and worker not in self._being_killed
        if never_ready:
            self._startup_failures.died(event)
        self._up.discard(worker)
        self._being_killed.discard(worker)
        self.engine.restart(event.seat)
        timed_out = worker in self._timed_out
        reason = f"no answer within timeout={self.timeout:g} s" if timed_out else event.reason
        self._timed_out.discard(worker)
        ticket = self.server.holds(worker)
        self._note_death(worker, ticket, reason, timed_out)
        if ticket is not None and not never_ready:  # a worker that never started cannot have died of its ticket
            self._retry(ticket, reason)

    def _note_death(self, worker: int, ticket: Ticket | None, reason: str, timed_out: bool = False) -> None:
        """Note a death as a fault, unless the policy wanted it."""
        if worker in self._cancelled:
            self._cancelled.discard(worker)
        else:
            self._note("timed out" if timed_out else "died", worker, ticket, reason)

    def _note(self, kind: str, worker: int | None = None, ticket: Ticket | None = None, reason: str = "") -> None:
        """Keep a fault, and tell the callbacks."""
        number = None if ticket is None else ticket.number
        self._faulted(self.faults.add(kind, self.now, self.server.arrivals, worker, number, reason))

    def _retry(self, ticket: Ticket, reason: str, raised: Failed | None = None) -> None:
        """Issue a failed ticket again, or give it up after ``attempts`` failures."""
        self._job_started.pop(ticket.worker, None)
        failed = self._failed_attempts[ticket.number] = self._failed_attempts.get(ticket.number, 0) + 1
        self.reasons[ticket.number] = reason
        if failed < self.attempts:
            self.state.lose(ticket, self.now, raised is not None)
            self._issue_tickets()
            return
        # If the first tickets all raise, the task is wrong: stop with its error instead of counting zeros to the end.
        no_success_yet = self.server.arrivals == self.server.given_up
        if no_success_yet and raised is not None and self.server.arrivals + 1 >= min(_MAX_FIRST_FAILURES, self.steps):
            where = f" ({raised.where})" if raised.where else ""
            raise ValueError(f"The task raised on its first jobs: {reason}{where}")
        self._report(ticket, failed, reason)
        self._note("given up", ticket.worker, ticket, reason)
        self._arrived(ticket, self.state.give_up(ticket, self.now, raised is not None), math.nan)
        self._emit_deferred_warnings()

    @property
    def _too_many_given_up(self) -> bool:
        return self.server.given_up > self.give_up_limit * self.server.arrivals

    def _check_given_up(self) -> None:
        """End the run if too many tickets were given up.

        It is called after an arrival was counted, so the checkpoint and the record of the ended run include it. All
        tickets of the run count. But a resumed run goes on until it gives up another one: the task may be correct now.
        """
        if self.server.given_up == self._given_up_before:
            return
        if self._too_many_given_up and self.server.arrivals >= min(_MIN_TICKETS, self.steps):
            raise ValueError(
                f"{self._summary()}, more than give_up_limit={self.give_up_limit:g} allows. Correct the task; with a "
                "checkpoint, the same call then continues the run"
            )

    def _report(self, ticket: Ticket, failed: int, reason: str) -> None:
        """Prepare the warning of a ticket that is given up."""
        self._give_up_reasons[reason] += 1
        if self.server.given_up - self._given_up_before >= _MAX_WARNINGS:
            self._unreported += 1
            return
        samples = f"sample {ticket.sample}"
        with contextlib.suppress(Exception):  # user code, which may raise here too
            samples = self.state.problem.describe_samples(ticket.number, ticket.sample)
        self._deferred_warnings.append(
            f"Ticket {ticket.number} ({samples}) failed {failed} times, last: {reason}; it counts with weight zero"
        )

    def _summary(self) -> str:
        """Return how many tickets were given up, and the most frequent reasons in this call."""
        common = self._give_up_reasons.most_common(3)
        reasons = "; ".join(
            f"{reason} ({times} times)" if len(common) > 1 < times else reason for reason, times in common
        )
        if others := len(self._give_up_reasons) - len(common):
            reasons += f"; and {others} other reason{'s' if others > 1 else ''}"
        why = reasons or "all before the run was resumed"
        return f"{self.server.given_up} of {self.server.arrivals} tickets were given up ({why})"

    def _emit_deferred_warnings(self, at_end: bool = False) -> None:
        """Warn of given-up tickets, unless so many are that an error with a summary may follow."""
        if not at_end and self._too_many_given_up:
            return
        for message in self._deferred_warnings:
            warn(message)
        self._deferred_warnings = []
        if at_end and (self._unreported or (self._too_many_given_up and not self._give_up_reasons)):
            warn(f"{self._summary()} and count with weight zero")
            self._unreported = 0

    def _kill_timed_out(self) -> None:
        """Kill workers whose job has taken longer than ``timeout``."""
        if self.timeout is None:
            return
        limit = time.monotonic() - self.timeout
        if not any(since <= limit for since in self._job_started.values()):
            return
        # If the server was slow, answers may be waiting already: only a worker without one is killed.
        self._enqueue(self.engine.events(0.0))
        answered = {self._seats.worker(event.seat) for event in self._events}
        for worker, since in list(self._job_started.items()):
            if since <= limit and worker not in answered and self.kill(worker):
                self._timed_out.add(worker)

    def _release_absent(self) -> None:
        """Free the tickets of workers that have not come back after a restart of the server."""
        for ticket in self.server.in_flight:
            if ticket.worker not in self._up and self.server.holds(ticket.worker) == ticket:
                self.state.lose(ticket, self.now, absent=True)

    def _warn_missing_workers(self) -> None:
        """Warn once that the run is still waiting for workers."""
        if self._warned_missing or self._waited() <= WAIT_WARNING:
            return
        self._warned_missing = True
        warn(
            f"After {WAIT_WARNING:g} s {len(self._up)} of {self.workers} workers are ready; the run begins with "
            f"{self.min_workers}. Are there enough free cores? min_workers= lets it begin with fewer",
        )
