"""What a run does when a worker dies, hangs, raises or does not come: nothing is lost, and nothing counts twice."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from ..engines import Died, Engine, Event, Failed
from ..policy import Ticket
from ..server import Outcome, Server
from .evaluator import IMPORTABLE, WAIT_WARNING
from .run import JournaledRun
from .workers import WorkerSeats

__all__ = ["FaultHandling", "StartupFailures"]

_HOPELESS = 3  # so many tickets that raise before any other has come back end a run


class StartupFailures:
    """Counts workers that die before they are ready, and gives up when that would go on for ever.

    Args:
        seats: How many workers there may be.

    Examples:
        >>> startup_failures = StartupFailures(seats=2)
        >>> startup_failures.died(Died(0, "killed by SIGKILL"))
        >>> startup_failures.died(Died(0, "exit code 1"))
        Traceback (most recent call last):
        ValueError: Workers die before they are ready (exit code 1); everything a task uses must be importable, and a
            script that calls fit needs `if __name__ == '__main__':` around the call
    """

    def __init__(self, seats: int) -> None:
        self.seats = seats
        self._count, self._anybody = 0, False

    def ready(self) -> None:
        """Note that a worker is up."""
        self._count, self._anybody = 0, True

    def died(self, event: Died) -> None:
        """Note a death; a signal may be bad luck, but who ends by itself before anybody was up will do so again."""
        self._count += 1
        hopeless = not self._anybody and not event.reason.startswith("killed")
        if hopeless or self._count >= 2 * self.seats + 1:
            raise ValueError(f"Workers die before they are ready ({event.reason}); {IMPORTABLE}")


class FaultHandling(ABC):
    """The part of a training loop that deals with faults.

    A dead worker is replaced. Its ticket is issued again at the same iterate, so a death is only a longer delay; a
    ticket that has come to nothing ``attempts`` times counts as an arrival of weight zero.
    """

    state: JournaledRun
    engine: Engine
    workers: int
    min_workers: int
    steps: int
    attempts: int
    timeout: float | None

    def __init__(self, workers: int, seats: int) -> None:
        self.deaths = self.failures = self.reissued = self.ignored = 0
        self.reasons: dict[int, str] = {}
        self._tried: dict[int, int] = {}  # ticket -> how often it has come to nothing
        self._up: set[int] = set()  # workers that can take a job, or have one
        self._idle: set[int] = set()
        self._killed: set[int] = set()  # whose death has not been heard of
        self._since: dict[int, float] = {}  # worker -> when it got its job
        self._seats, self._startup_failures = WorkerSeats(workers), StartupFailures(seats)
        self._news: deque[Event] = deque()
        self._deferred_warnings: list[str] = []
        self._warned_missing = False

    @property
    @abstractmethod
    def server(self) -> Server:
        """The server."""

    @property
    @abstractmethod
    def now(self) -> float:
        """The run's clock."""

    @abstractmethod
    def kill(self, worker: int) -> bool:
        """Kill a worker."""

    @abstractmethod
    def _waited(self) -> float:
        """Return for how many seconds the run has waited for workers, 0 once it has begun."""

    @abstractmethod
    def _take(self, events: Sequence[Event]) -> None:
        """Sort new events."""

    @abstractmethod
    def _fill(self) -> None:
        """Give tickets to all who wait."""

    @abstractmethod
    def _arrived(self, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        """Count an arrival."""

    def _died(self, worker: int, event: Died) -> None:
        """Put a new worker into the seat of a dead one."""
        self.deaths += 1
        self._idle.discard(worker)
        self._since.pop(worker, None)
        never_ready = worker not in self._up and worker not in self._killed
        if never_ready:
            self._startup_failures.died(event)
        self._up.discard(worker)
        self._killed.discard(worker)
        self.engine.restart(event.seat)
        ticket = self.server.holds(worker)
        if ticket is not None and not never_ready:  # who has not begun with it cannot have died of it
            self._again(ticket, event.reason)

    def _again(self, ticket: Ticket, reason: str, raised: Failed | None = None) -> None:
        """Have a ticket that came to nothing computed again, or give it up."""
        self._since.pop(ticket.worker, None)
        tried = self._tried[ticket.number] = self._tried.get(ticket.number, 0) + 1
        self.reasons[ticket.number] = reason
        if tried < self.attempts:
            self.state.lose(ticket, self.now, raised is not None)
            self._fill()
            return
        words = f"sample {ticket.sample}"
        nothing_yet = self.server.arrivals == self.server.given_up
        if nothing_yet and raised is not None and self.server.arrivals + 1 >= min(_HOPELESS, self.steps):
            where = f" ({raised.where})" if raised.where else ""
            raise ValueError(f"The task raises on its first tickets: {reason}{where}")
        with contextlib.suppress(Exception):  # the task's own code, which may raise here too
            words = self.state.problem.words(ticket.number, ticket.sample)
        self._deferred_warnings.append(
            f"Ticket {ticket.number} ({words}) came to nothing {tried} times, last: {reason}; it counts "
            "with weight zero"
        )
        if not nothing_yet:
            self._emit_deferred_warnings()
        self._arrived(ticket, self.state.give_up(ticket, self.now, raised is not None), math.nan)

    def _emit_deferred_warnings(self) -> None:
        """Warn of tickets that were given up, once it is clear that not all of them are."""
        for words in self._deferred_warnings:
            warnings.warn(words, stacklevel=2)
        self._deferred_warnings = []

    def _kill_timed_out(self) -> None:
        """Kill workers whose job takes longer than ``timeout``."""
        if self.timeout is None:
            return
        limit = time.monotonic() - self.timeout
        if not any(since <= limit for since in self._since.values()):
            return
        self._take(self.engine.events(0.0))  # it may be the server that was slow
        answered = {self._seats.worker(event.seat) for event in self._news}
        for worker, since in list(self._since.items()):
            if since <= limit and worker not in answered:
                self.kill(worker)

    def _release_absent(self) -> None:
        """Let others have the tickets of those who have not come back after a restart of the server."""
        for ticket in self.server.in_flight:
            if ticket.worker not in self._up and self.server.holds(ticket.worker) == ticket:
                self.state.lose(ticket, self.now, absent=True)

    def _warn_missing_workers(self) -> None:
        """Say once why nothing happens."""
        if self._warned_missing or self._waited() <= WAIT_WARNING:
            return
        self._warned_missing = True
        warnings.warn(
            f"After {WAIT_WARNING:g} s {len(self._up)} of {self.workers} workers are ready, and the run begins with "
            f"{self.min_workers}: is there room for them? min_workers= begins with fewer",
            stacklevel=2,
        )
