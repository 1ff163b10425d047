"""The loop of a run on real workers: events in, tickets out; what to do when something goes wrong."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
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
        min_workers: How many must be ready before the run begins.
        max_workers: How many there may be; those past ``workers`` join when they are ready.
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
        min_workers: int = 1,
        max_workers: int | None = None,
        evaluate_every: int | None = None,
        attempts: int = 3,
        timeout: float | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.books, self.engine, self.workers, self.steps = books, engine, workers, steps
        self.min_workers, self.seats = min_workers, max(workers, max_workers or 0)
        self._begun = False
        self._pair(workers)
        self.attempts, self.timeout, self.callbacks = attempts, timeout, list(callbacks)
        self.deaths = self.failures = self.reissued = self.ignored = 0
        self.reasons: dict[int, str] = {}
        self.history = Evaluation(books, engine, self.seats, evaluate_every or steps, attempts)
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

    @property
    def up(self) -> frozenset[int]:
        """The seats whose workers can take a job, or have one."""
        return frozenset(self._up)

    def _tell(self, row: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.evaluated(self, row)

    def kill(self, seat: int) -> bool:
        """Kill the worker in a seat, for tests; False if that one is being killed already.

        The run does not end before it has heard of the death: every kill is counted.
        """
        if seat in self._killed:
            return False
        self._up.discard(seat)
        self._killed.add(seat)
        self.engine.kill(self._seat[seat])
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
        spec = WorkerSpec(books.problem, size, x.dtype, points, statistics, books.seed, self.engine.bf16)
        slots = self.engine.start(spec, self.seats + self.history.seats, self.seats + self.history.slots)
        books.use(slots[: self.seats])
        self.history.use(slots[self.seats :])
        self._begin(0.0)
        if state is None:
            self.history.note(0.0)
            return
        books.load_state_dict(state["books"])
        self.deaths, self.failures, self.reissued = state["counts"]
        self._tried = dict(state["tried"])
        self.history.load_state_dict(state["history"])
        self._news.extend(self.history.note(self._restored()))
        if entries:
            scratch = FlatModule(books.problem.model(books.seed))
            compute = Contributor(books.problem, scratch, points, self.engine.bf16)
            with one_thread():
                for entry in entries:
                    if self.interrupted:  # nothing is lost: the journal still has it all
                        raise KeyboardInterrupt
                    counted = books.redo(entry, compute)
                    if counted is not None:
                        outcome, loss = counted
                        self.history.count(loss, outcome.delay)
                        self._news.extend(self.history.note(entry.at))
        self._restored()
        if self.server.workers > self.seats:
            raise ValueError(
                f"The checkpoint has {self.server.workers} workers, {self.seats} seats are asked for: pass "
                f"max_workers={self.server.workers}"
            )
        self._pair(self.server.workers)

    def _pair(self, workers: int) -> None:
        """Give the engine's first seats to the server's workers; others join when they are ready."""
        self._worker = {seat: seat for seat in range(workers)}
        self._seat = dict(self._worker)

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
            "history": self.history.state_dict(),
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
                    if event.seat >= self.seats:  # at once: the server may come to wait for it
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
            self._bury()

    def _bury(self) -> None:
        """Hear of the deaths of those whom `kill` ended, though the run needs nobody any more."""
        while self._killed and not self.interrupted:
            events = list(self._news) or self.engine.events(_GLANCE)
            self._news.clear()
            for event in events:
                worker = self._worker.get(event.seat)
                if isinstance(event, Died) and worker in self._killed:
                    self._killed.discard(worker)
                    self.deaths += 1

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
                self.engine.kill(self._seat[seat])

    def _known(self, event: Event) -> Event | None:
        """Say whose event it is by the server's number; somebody new joins when ready, and is nobody before."""
        if event.seat not in self._worker:
            if isinstance(event, Died):
                self._count_unborn(event)
                self.engine.restart(event.seat)
            if not isinstance(event, Ready):
                return None
            worker = self.books.join(self.now)
            self._worker[event.seat], self._seat[worker] = worker, event.seat
            if self.server.arrivals:
                warnings.warn(
                    f"A worker has joined: there are {self.server.workers}, and the run began with {self.workers}. "
                    "Delays grow along, and beta and lr were chosen for fewer",
                    stacklevel=2,
                )
        worker = self._worker[event.seat]
        return event if worker == event.seat else replace(event, seat=worker)

    def _handle(self, news: Event) -> None:
        event = self._known(news)
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
            self.engine.kill(self._seat[called_off.worker])
        self.history.count(loss, outcome.delay)
        for callback in self.callbacks:
            callback.arrived(self, ticket, outcome, loss)
        for event in self.history.note(self.now):
            self._news.append(event)
        self._fill()

    def _fill(self) -> None:
        """Give tickets to all who wait, as far as the policy lets them start."""
        self._begun = self._begun or len(self._up) >= self.min_workers
        if self._over() or not self._begun:
            return
        for seat in sorted(self._idle):
            if not self.server.lost and not self.server.policy.may_start(len(self.server.in_flight)):
                return
            self.reissued += bool(self.server.lost)
            self._submit(seat, self.books.issue(seat, self.now))

    def _submit(self, seat: int, job: Job) -> None:
        self._idle.discard(seat)
        self._since[seat] = time.monotonic()
        self.engine.submit(self._seat[seat], job)

    # ---- what goes wrong ------------------------------------------------------------------------------------------

    def _died(self, event: Died) -> None:
        self.deaths += 1
        self._idle.discard(event.seat)
        self._since.pop(event.seat, None)
        if event.seat not in self._up and event.seat not in self._killed:
            self._count_unborn(event)
        self._up.discard(event.seat)
        self._killed.discard(event.seat)
        self.engine.restart(self._seat[event.seat])
        ticket = self.server.holds(event.seat)
        if ticket is not None:
            self._again(ticket, event.reason)

    def _count_unborn(self, event: Died) -> None:
        self._unborn += 1
        # A signal may be bad luck; who ends by itself before anybody was ever up will do so again.
        hopeless = self._waiting and not event.reason.startswith("killed")
        if hopeless or self._unborn >= 2 * self.seats + 1:
            raise ValueError(f"Workers die before they are ready ({event.reason}); {IMPORTABLE}")

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
