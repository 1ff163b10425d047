"""The loop of a run on real workers: events in, tickets out; what to do when something goes wrong."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..engines import Died, Done, Engine, Event, Failed, Job, Ready, WorkerSpec
from ..flat import FlatModule
from ..job import Contributor, one_thread
from ..optim import AsyncOptimizer
from ..policy import Ticket
from ..server import Outcome, Server
from .books import Books
from .callbacks import Callback
from .evaluation import IMPORTABLE, Evaluation
from .journal import Entry

__all__ = ["Driver"]

_GLANCE = 0.5  # seconds without an event after which interrupts and hung workers are looked at


class Driver:
    """Keeps workers busy and counts what they bring.

    Args:
        books: The state of the run.
        engine: Who moves the bytes.
        workers: Number of workers.
        steps: Arrivals to count.
        evaluate_every: Arrivals between rows of the history.
        attempts: How often a ticket may kill its worker, or raise, before it counts with weight zero.
        timeout: Seconds after which a job counts as hung, or None.
        callbacks: Who is told.

    Examples:
        >>> import latecomer as lc
        >>> from latecomer.engines.inline import InlineEngine
        >>> books = Books(lc.problems.quadratic(), "momentum", {"lr": 0.1}, 2, lc.policy.Async(), 0)
        >>> driver = Driver(books, InlineEngine(), workers=2, steps=10)
        >>> driver.start()
        >>> driver.run([])
        >>> driver.server.arrivals, len(driver.history.rows)
        (10, 2)
    """

    def __init__(
        self,
        books: Books,
        engine: Engine,
        *,
        workers: int,
        steps: int,
        evaluate_every: int | None = None,
        attempts: int = 3,
        timeout: float | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.books, self.engine, self.workers, self.steps = books, engine, workers, steps
        self.attempts, self.timeout, self.callbacks = attempts, timeout, list(callbacks)
        self.deaths = self.failures = self.reissued = self.ignored = 0
        self.reasons: dict[int, str] = {}
        self.history = Evaluation(books, engine, workers, evaluate_every or steps, attempts)
        self.history.told = self._tell
        self._tried: dict[int, int] = {}
        self._up: set[int] = set()
        self._killed: set[int] = set()
        self._idle: set[int] = set()
        self._since: dict[int, float] = {}  # seat -> when it got its job
        self._unborn = 0
        self._news: deque[Event] = deque()
        self._stopped = False
        self.interrupted: Sequence[int] = ()
        self._begin(0.0)

    @property
    def server(self) -> Server:
        """The server."""
        return self.books.server

    @property
    def optimizer(self) -> AsyncOptimizer:
        """The optimizer."""
        return self.books.optimizer

    @property
    def now(self) -> float:
        """The run's clock in seconds; it stands still while there is no server."""
        return time.monotonic() - self._zero

    def _tell(self, row: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.evaluated(self, row)

    def kill(self, seat: int) -> bool:
        """Kill the worker in a seat, for tests; False if there is none that is up."""
        if seat not in self._up:
            return False
        self._up.discard(seat)
        self._killed.add(seat)
        self.engine.kill(seat)
        return True

    def stop(self) -> None:
        """End the run after this arrival."""
        self._stopped = True

    # ---- beginning ----------------------------------------------------------------------------------------------

    def start(self, state: dict[str, Any] | None = None, entries: Sequence[Entry] = ()) -> None:
        """Seat the workers; with a state go on from there, and do again what a journal says came after it."""
        books, points = self.books, self.books.optimizer.points
        x = books.flat.x
        size, statistics = x.numel(), len(books.statistics.sent)
        spec = WorkerSpec(books.problem, size, x.dtype, points, statistics, books.seed)
        seats = self.workers + self.history.seats
        slots = self.engine.start(spec, seats, self.workers + self.history.slots)
        books.use(slots[: self.workers])
        self.history.use(slots[self.workers :])
        self._begin(0.0)
        if state is None:
            self.history.note(0.0)
            return
        books.load_state_dict(state["books"])
        self.deaths, self.failures, self.reissued = state["counts"]
        self._tried = dict(state["tried"])
        self.history.rows = list(state["rows"])
        self.history.note(self._restored())
        if entries:
            compute = Contributor(books.problem, FlatModule(books.problem.model(books.seed)), points)
            with one_thread():
                for entry in entries:
                    if self.interrupted:  # nothing is lost: the journal still has it all
                        raise KeyboardInterrupt
                    outcome = books.redo(entry, compute)
                    if outcome is not None:
                        self.history.count(math.nan, outcome.delay)
                        self.history.note(entry.at)
        self._restored()

    def _restored(self) -> float:
        """Set the clock to where it stood."""
        at = self.server.now if math.isfinite(self.server.now) else 0.0
        self._begin(at)
        return at

    def _begin(self, at: float) -> None:
        self._base, self._zero, self._waiting = at, time.monotonic() - at, True

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs."""
        return {
            "books": self.books.state_dict(),
            "rows": list(self.history.rows),
            "counts": [self.deaths, self.failures, self.reissued],
            "tried": dict(self._tried),
        }

    # ---- the loop -----------------------------------------------------------------------------------------------

    def run(self, interrupted: Sequence[int], each: Any = None) -> None:
        """Go on until all arrivals are counted, the run has diverged, or somebody wants it to stop.

        Args:
            interrupted: Ends the run as soon as there is something in it.
            each: Called after every arrival.
        """
        before = self.server.arrivals
        self.interrupted = self.history.interrupted = interrupted
        while not self._over() and not interrupted:
            if not self._news:
                for event in self.engine.events(self._glance()):
                    if event.seat >= self.workers:  # at once: the server may come to wait for it
                        self.history.handle(event)
                    else:
                        self._news.append(event)
            while self._news and not self._over():
                self._handle(self._news.popleft())
                if self.server.arrivals > before:
                    before = self.server.arrivals
                    if each is not None:
                        each()
                    if interrupted:
                        break
            self._kill_the_hung()
        if not interrupted:
            self._news.extend(self.history.finish(self.now))

    def _over(self) -> bool:
        return self._stopped or self.server.arrivals >= self.steps or self.books.diverged_at is not None

    def _glance(self) -> float:
        if self.timeout is None or not self._since:
            return _GLANCE
        return max(0.0, min(_GLANCE, min(self._since.values()) + self.timeout - time.monotonic()))

    def _kill_the_hung(self) -> None:
        if self.timeout is None:
            return
        limit = time.monotonic() - self.timeout
        for seat, since in list(self._since.items()):
            if since <= limit:
                del self._since[seat]
                self.engine.kill(seat)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._unborn = 0
            if self._waiting:  # starting processes is no part of the run
                self._begin(self._base)
                self._waiting = False
            self._up.add(event.seat)
            ticket = self.server.holds(event.seat)
            if ticket is None:
                self._idle.add(event.seat)
                self._fill()
            else:  # it had one when the server died
                self._submit(event.seat, self.books.job(ticket))
        elif isinstance(event, Done):
            self._done(event)
        elif isinstance(event, Failed):
            ticket = self._ticket(event.seat, event.number)
            if ticket is not None:
                self.failures += 1
                self._idle.add(event.seat)
                self._again(ticket, event.reason, raised=event)
        elif isinstance(event, Died):
            self._died(event)

    def _ticket(self, seat: int, number: int) -> Ticket | None:
        """Return the ticket that a seat answers for; None if it answers for something nobody waits for."""
        ticket = self.server.holds(seat)
        if ticket is None or ticket.number != number or seat in self._idle:
            self.ignored += 1
            return None
        return ticket

    def _done(self, event: Done) -> None:
        ticket = self._ticket(event.seat, event.number)
        if ticket is None:
            return
        self._since.pop(event.seat, None)
        self._idle.add(event.seat)
        outcome = self.books.arrive(ticket, finite=event.finite, group=event.group, at=self.now)
        self._arrived(ticket, outcome, event.loss)

    def _arrived(self, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        self._tried.pop(ticket.number, None)
        for called_off in outcome.cancelled:  # its worker still computes: only a new one is free
            self._since.pop(called_off.worker, None)
            self.engine.kill(called_off.worker)
        self.history.count(loss, outcome.delay)
        for callback in self.callbacks:
            callback.arrived(self, ticket, outcome, loss)
        for event in self.history.note(self.now):
            self._news.append(event)
        self._fill()

    def _fill(self) -> None:
        """Give tickets to all who wait, as far as the policy lets them start."""
        if self._over():
            return
        for seat in sorted(self._idle):
            if not self.server.lost and not self.server.policy.may_start(len(self.server.in_flight)):
                return
            self.reissued += bool(self.server.lost)
            self._submit(seat, self.books.issue(seat, self.now))

    def _submit(self, seat: int, job: Job) -> None:
        self._idle.discard(seat)
        self._since[seat] = time.monotonic()
        self.engine.submit(seat, job)

    # ---- what goes wrong ------------------------------------------------------------------------------------------

    def _died(self, event: Died) -> None:
        self.deaths += 1
        self._idle.discard(event.seat)
        self._since.pop(event.seat, None)
        if event.seat not in self._up and event.seat not in self._killed:
            self._unborn += 1
            # A signal may be bad luck; who ends by itself before anybody was ever up will do so again.
            hopeless = self._waiting and not event.reason.startswith("killed")
            if hopeless or self._unborn >= 2 * self.workers + 1:
                raise ValueError(f"Workers die before they are ready ({event.reason}); {IMPORTABLE}")
        self._up.discard(event.seat)
        self._killed.discard(event.seat)
        self.engine.restart(event.seat)
        ticket = self.server.holds(event.seat)
        if ticket is not None:
            self._again(ticket, event.reason)

    def _again(self, ticket: Ticket, reason: str, raised: Failed | None = None) -> None:
        """Have a ticket that came to nothing computed again, or give it up."""
        self._since.pop(ticket.worker, None)
        tried = self._tried[ticket.number] = self._tried.get(ticket.number, 0) + 1
        self.reasons[ticket.number] = reason
        if tried < self.attempts:
            self.books.lose(ticket, self.now)
            self._fill()
            return
        if raised is not None and self.server.arrivals == len(self.books.given_up):
            where = f" ({raised.where})" if raised.where else ""
            raise ValueError(f"The task raises on its first tickets: {reason}{where}")
        warnings.warn(
            f"Ticket {ticket.number} (sample {ticket.sample}) came to nothing {tried} times, last: {reason}; it counts "
            "with weight zero",
            stacklevel=2,
        )
        self._arrived(ticket, self.books.give_up(ticket, self.now), math.nan)
