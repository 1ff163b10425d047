"""The loop of a run on real workers: events in, tickets out; what to do when something goes wrong."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .._util.checks import whole_number
from ..engines import Died, Done, Engine, Event, Failed, Job, Ready, WorkerSpec
from ..optim import AsyncOptimizer
from ..policy import Ticket
from ..server import Outcome, Server
from .callbacks import Callback
from .evaluator import PATIENCE, Evaluator
from .journal import Entry
from .recovery import JournalRecovery
from .run import Books
from .workers import StartupFailures, WorkerSeats

__all__ = ["TrainingLoop"]

_HOPELESS = 3  # so many tickets that raise before any other has come back end a run
_GLANCE = 0.5  # seconds without an event after which interrupts and hung workers are looked at


class TrainingLoop:
    """Keeps workers busy and counts what they bring.

    Args:
        books: The state of the run.
        engine: Who moves the bytes.
        workers: How many workers beta and lr were chosen for.
        min_workers: How many must be ready before the run begins; all ``workers`` if left out.
        max_workers: How many there may be; those who are not among the first join when they are ready.
        steps: Arrivals to count.
        evaluate_every: Arrivals between rows of the history.
        attempts: How often a ticket may kill its worker, or raise, before it counts with weight zero.
        timeout: Seconds after which a job counts as hung, or None.
        callbacks: Who is told.

    Examples:
        >>> import latecomer as lc
        >>> from latecomer.engines.inline import InlineEngine
        >>> books = Books(lc.problems.quadratic(), "momentum", {"lr": 0.1}, 2, lc.policy.Async(), 0)
        >>> driver = TrainingLoop(books, InlineEngine(), workers=2, steps=10)
        >>> _ = driver.start()
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
        min_workers: int | None = None,
        max_workers: int | None = None,
        evaluate_every: int | None = None,
        attempts: int = 3,
        timeout: float | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.books, self.engine, self.workers, self.steps = books, engine, workers, steps
        self.min_workers, self.seats = min_workers or workers, max(workers, max_workers or 0)
        self.attempts, self.timeout, self.callbacks = attempts, timeout, list(callbacks)
        self.deaths = self.failures = self.reissued = self.ignored = 0
        self.reasons: dict[int, str] = {}
        self.history = Evaluator(books, engine, self.seats, evaluate_every or steps, attempts)
        self.history.told = self._tell
        self._tried: dict[int, int] = {}
        self._up: set[int] = set()
        self._killed: set[int] = set()
        self._idle: set[int] = set()
        self._since: dict[int, float] = {}  # worker -> when it got its job
        self._seating, self._startup_failures = WorkerSeats(self.server.workers), StartupFailures(self.seats)
        self._deferred_warnings: list[str] = []
        self._news: deque[Event] = deque()
        self._stopped = self._told = False
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
        """The run's clock in seconds; it stands still while there is no server, and until enough workers are ready."""
        return self._base if self._waiting else time.monotonic() - self._zero

    @property
    def up(self) -> frozenset[int]:
        """The seats whose workers can take a job, or have one."""
        return frozenset(self._up)

    def _tell(self, row: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.evaluated(self, row)

    def kill(self, seat: int) -> bool:
        """Kill whoever is worker ``seat`` of the server; False if that one is being killed already, or not there.

        It gets no job any more, and the run does not end before it has heard of the death: every kill is counted.
        """
        if not 0 <= whole_number("seat", seat) < self.server.workers:
            raise ValueError(f"Invalid seat value: {seat} (there are {self.server.workers} workers)")
        if seat in self._killed or not self._seating.taken(seat):
            return False
        self._up.discard(seat)
        self._idle.discard(seat)
        self._since.pop(seat, None)
        self._killed.add(seat)
        self.engine.kill(self._seating.seat(seat))
        return True

    def listen(self, interrupted: Sequence[int]) -> None:
        """End what is going on as soon as there is something in this list."""
        self.interrupted = self.history.interrupted = interrupted

    def stop(self) -> None:
        """End the run after this arrival."""
        self._stopped = True

    # ---- beginning ----------------------------------------------------------------------------------------------

    def start(self, state: dict[str, Any] | None = None, entries: Sequence[Entry] = ()) -> int:
        """Seat the workers; with a state go on from there, and do again what a journal says came after it.

        Returns:
            How many entries of the journal have been done again: all, unless one does not fit.
        """
        books, points = self.books, self.books.optimizer.points
        if state is not None:
            self._check_seats(state, entries)
        x = books.flat.x
        size, statistics = x.numel(), len(books.statistics.from_last_job)
        spec = WorkerSpec(
            books.problem, size, x.dtype, points, statistics, books.seed, self.engine.bf16, self.history.seats
        )
        slots = self.engine.start(spec, self.seats + self.history.seats, self.seats + self.history.slots)
        books.use(slots[: self.seats])
        self.history.use(slots[self.seats :])
        self._begin(0.0)
        if state is None:
            self.history.note(0.0)
            return 0
        books.load_state_dict(state["books"])
        self._tried = dict(state["tried"])
        self.history.load_state_dict(state["history"])
        recovery = JournalRecovery(
            books, self.engine, self.history, self._startup_failures, attempts=self.attempts, timeout=self.timeout,
            interrupted=self.interrupted, tried=self._tried,
        )  # fmt: skip
        recovery.take(self.history.note(self._restored()))
        done = recovery(entries)
        counts = zip(state["counts"], (recovery.deaths, recovery.failures, recovery.reissued), strict=True)
        self.deaths, self.failures, self.reissued = (before + since for before, since in counts)
        self._seating = WorkerSeats(self.server.workers)
        self._news.extend(Ready(seat) for seat in sorted(recovery.up))
        self._restored()
        return done

    def _check_seats(self, state: dict[str, Any], entries: Sequence[Entry]) -> None:
        workers = len(state["books"]["server"]["busy"]) + sum(entry.kind == b"J" for entry in entries)
        if workers > self.seats:
            raise ValueError(
                f"The checkpoint has {workers} workers, {self.seats} seats are asked for: pass max_workers={workers}"
            )

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
        self.listen(interrupted)
        while not self._over() and not interrupted:
            if not self._news:
                self._take(self.engine.events(self._glance()))
            while self._news and not self._over():
                self._handle(self._news.popleft())
                if self.server.arrivals > before:
                    before = self.server.arrivals
                    if each is not None:
                        each()
                    if interrupted:
                        break
            self._kill_timed_out()
            self._warn_missing_workers()
        if not interrupted:
            self._emit_deferred_warnings()
            self._news.extend(self.history.finish(self.now))
            self._reap()

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.seat >= self.seats:  # at once: the server may come to wait for it
                self.history.handle(event)
            else:
                self._news.append(event)

    def _reap(self) -> None:
        """Hear of the deaths of those whom `kill` ended, though the run needs nobody any more."""
        while self._killed and not self.interrupted:
            events = list(self._news) or self.engine.events(_GLANCE)
            self._news.clear()
            for event in events:
                worker = self._seating.worker(event.seat)
                if isinstance(event, Died) and worker in self._killed:
                    self._killed.discard(worker)
                    self.deaths += 1

    def _over(self) -> bool:
        return self._stopped or self.server.arrivals >= self.steps or self.books.diverged_at is not None

    def _glance(self) -> float:
        if self.timeout is None or not self._since:
            return _GLANCE
        return max(0.0, min(_GLANCE, min(self._since.values()) + self.timeout - time.monotonic()))

    def _kill_timed_out(self) -> None:
        if self.timeout is None:
            return
        limit = time.monotonic() - self.timeout
        if not any(since <= limit for since in self._since.values()):
            return
        self._take(self.engine.events(0.0))  # it may be the server that was slow
        answered = {self._seating.worker(event.seat) for event in self._news}
        for seat, since in list(self._since.items()):
            if since <= limit and seat not in answered:
                self.kill(seat)

    def _warn_missing_workers(self) -> None:
        if not self._waiting or self._told or time.monotonic() - self._zero - self._base < PATIENCE:
            return
        self._told = True
        warnings.warn(
            f"After {PATIENCE:g} s {len(self._up)} of {self.workers} workers are ready, and the run begins with "
            f"{self.min_workers}: is there room for them? min_workers= begins with fewer",
            stacklevel=2,
        )

    def _known(self, event: Event) -> Event | None:
        """Say whose event it is by the server's number; somebody new joins when ready, and is nobody before."""
        worker = self._seating.worker(event.seat)
        if worker is not None:
            return replace(event, seat=worker)
        if isinstance(event, Died):
            self._startup_failures.died(event)
            self.engine.restart(event.seat)
        if not isinstance(event, Ready):
            return None
        worker = self._seating.take(event.seat)
        if worker is None:
            worker = self.books.join(self.now)
            self._seating.join(event.seat, worker)
            if self.server.arrivals and self.server.workers > self.workers:
                warnings.warn(
                    f"A worker has joined: there are {self.server.workers}, more than the {self.workers} that beta and "
                    "lr were chosen for. Delays grow along",
                    stacklevel=2,
                )
        return replace(event, seat=worker)

    def _handle(self, news: Event) -> None:
        event = self._known(news)
        if isinstance(event, Ready):
            self._startup_failures.ready()
            self._up.add(event.seat)
            if not self._waiting:
                self._employ(event.seat)
            elif len(self._up) >= self.min_workers:  # they start at once; starting processes is no part of the run
                self._begin(self._base)
                self._waiting = False
                self._release_absent()
                for seat in sorted(self._up):
                    self._employ(seat)
        elif isinstance(event, Done):
            self._done(event)
        elif isinstance(event, Failed):
            ticket = self._ticket(event.seat, event.number)
            if ticket is not None:
                self.failures += 1
                self._free(event.seat)
                self._again(ticket, event.reason, raised=event)
        elif isinstance(event, Died):
            self._died(event)

    def _release_absent(self) -> None:
        """Let others have the tickets of those who have not come back after a restart of the server."""
        for ticket in self.server.in_flight:
            if ticket.worker not in self._up and self.server.holds(ticket.worker) == ticket:
                self.books.lose(ticket, self.now, absent=True)

    def _employ(self, seat: int) -> None:
        """Give a worker that has just come its first job."""
        ticket = self.server.holds(seat)
        if ticket is None:
            self._idle.add(seat)
            self._fill()
        else:  # the seat had one when the server died
            self._submit(seat, self.books.job(ticket))

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
        self._free(event.seat)
        self._emit_deferred_warnings()
        outcome = self.books.arrive(ticket, finite=event.finite, group=event.group, at=self.now)
        self._arrived(ticket, outcome, event.loss)

    def _free(self, seat: int) -> None:
        """Note that a worker has answered; one that is being killed gets nothing more to do."""
        self._since.pop(seat, None)
        if seat not in self._killed:
            self._idle.add(seat)

    def _arrived(self, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        self._tried.pop(ticket.number, None)
        for called_off in outcome.cancelled:  # its worker still computes: only a new one is free
            self.kill(called_off.worker)
        self.history.count(loss, outcome.delay)
        for callback in self.callbacks:
            callback.arrived(self, ticket, outcome, loss)
        for event in self.history.note(self.now):
            self._news.append(event)
        self._fill()

    def _fill(self) -> None:
        """Give tickets to all who wait, as far as the policy lets them start."""
        if self._over() or self._waiting:
            return
        for seat in sorted(self._idle):
            if not self.server.lost and not self.server.policy.may_start(len(self.server.in_flight)):
                return
            self.reissued += bool(self.server.lost)
            self._submit(seat, self.books.issue(seat, self.now))

    def _submit(self, seat: int, job: Job) -> None:
        self._idle.discard(seat)
        self._since[seat] = time.monotonic()
        self.engine.submit(self._seating.seat(seat), job)

    # ---- what goes wrong ------------------------------------------------------------------------------------------

    def _died(self, event: Died) -> None:
        """Put a new worker into the seat of a dead one."""
        self.deaths += 1
        self._idle.discard(event.seat)
        self._since.pop(event.seat, None)
        startup_failures = event.seat not in self._up and event.seat not in self._killed
        if startup_failures:
            self._startup_failures.died(event)
        self._up.discard(event.seat)
        self._killed.discard(event.seat)
        self.engine.restart(self._seating.seat(event.seat))
        ticket = self.server.holds(event.seat)
        if ticket is not None and not startup_failures:  # who has not begun with it cannot have died of it
            self._again(ticket, event.reason)

    def _again(self, ticket: Ticket, reason: str, raised: Failed | None = None) -> None:
        """Have a ticket that came to nothing computed again, or give it up."""
        self._since.pop(ticket.worker, None)
        tried = self._tried[ticket.number] = self._tried.get(ticket.number, 0) + 1
        self.reasons[ticket.number] = reason
        if tried < self.attempts:
            self.books.lose(ticket, self.now, raised is not None)
            self._fill()
            return
        words = f"sample {ticket.sample}"
        nothing_yet = self.server.arrivals == len(self.books.given_up)
        if nothing_yet and raised is not None and self.server.arrivals + 1 >= min(_HOPELESS, self.steps):
            where = f" ({raised.where})" if raised.where else ""
            raise ValueError(f"The task raises on its first tickets: {reason}{where}")
        with contextlib.suppress(Exception):  # the task's own code, which may raise here too
            words = self.books.problem.words(ticket.number, ticket.sample)
        self._deferred_warnings.append(
            f"Ticket {ticket.number} ({words}) came to nothing {tried} times, last: {reason}; it counts "
            "with weight zero"
        )
        if not nothing_yet:
            self._emit_deferred_warnings()
        self._arrived(ticket, self.books.give_up(ticket, self.now, raised is not None), math.nan)

    def _emit_deferred_warnings(self) -> None:
        """Warn of tickets that were given up, once it is clear that not all of them are."""
        for words in self._deferred_warnings:
            warnings.warn(words, stacklevel=2)
        self._deferred_warnings = []
