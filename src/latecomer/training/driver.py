"""The loop of a run on real workers: events in, tickets out; what to do when something goes wrong."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..engines import Died, Done, Engine, Event, Failed, Job, Ready, WorkerSpec
from ..optim import AsyncOptimizer
from ..optim.checks import whole_number
from ..policy import Ticket
from ..server import Outcome, Server
from .books import Books, MisfitError
from .callbacks import Callback
from .evaluation import IMPORTABLE, Evaluation
from .journal import Entry

__all__ = ["Driver"]

_HOPELESS = 3  # so many tickets that raise before any other has come back end a run
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
        self._unsaid: list[str] = []
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
        """Kill the worker in a seat; False if that one is being killed already.

        It gets no job any more, and the run does not end before it has heard of the death: every kill is counted.
        """
        if not 0 <= whole_number("seat", seat) < self.workers:
            raise ValueError(f"Invalid seat value: {seat} (there are {self.workers} workers)")
        if seat in self._killed:
            return False
        self._up.discard(seat)
        self._idle.discard(seat)
        self._since.pop(seat, None)
        self._killed.add(seat)
        self.engine.kill(seat)
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
            return 0
        books.load_state_dict(state["books"])
        self.deaths, self.failures, self.reissued = state["counts"]
        self._tried = dict(state["tried"])
        self.history.load_state_dict(state["history"])
        self._news.extend(self.history.note(self._restored()))
        done = self._redo(entries)
        self._restored()
        return done

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

    # ---- doing again what a journal says ------------------------------------------------------------------------

    def _redo(self, entries: Sequence[Entry]) -> int:
        """Do entries again, contributions by workers: their code may kill its process, and this one has to go on."""
        for place, entry in enumerate(entries):
            again = bool(self.server.lost)
            try:
                counted = self.books.redo(entry, self._recomputed)
            except MisfitError as error:
                warnings.warn(f"The journal does not fit its checkpoint ({error}): going on before that", stacklevel=2)
                entries = entries[:place]
                break
            if entry.kind == b"I":
                self.reissued += again
                continue
            if entry.kind in (b"L", b"G"):
                self._tried[entry.number] = self._tried.get(entry.number, 0) + 1
                self.failures, self.deaths = self.failures + bool(entry.group), self.deaths + (not entry.group)
            if counted is not None:
                self._tried.pop(entry.number, None)
                outcome, loss = counted
                self.history.count(loss, outcome.delay)
                for event in self.history.note(entry.at):
                    self._seated(event)
        self._news.extend(Ready(seat) for seat in sorted(self._up))
        self._up.clear()
        return len(entries)

    def _recomputed(self, job: Job) -> Done:
        """Have a contribution computed that had been counted before, by whoever is up."""
        reason = ""
        for _ in range(self.attempts):
            while not self._up:
                self._look()
            seat = min(self._up)
            self.engine.submit(seat, job)
            begun = time.monotonic()
            answer: Event | None = None
            while answer is None:
                found = self._look()
                answer = next((e for e in found if e.seat == seat and isinstance(e, (Done, Failed, Died))), None)
                if answer is None and self.timeout is not None and time.monotonic() - begun > self.timeout:
                    self.engine.kill(seat)
            if isinstance(answer, Done):
                return answer
            reason = answer.reason if isinstance(answer, (Failed, Died)) else ""
        raise ValueError(
            f"Ticket {job.number} had been counted before the server ended, and now comes to nothing {self.attempts} "
            f"times, last: {reason}; nothing is lost, the same call tries again"
        )

    def _look(self) -> list[Event]:
        """See what the engine has while the journal is being done again."""
        if self.interrupted:  # nothing is lost: the journal still has it all
            raise KeyboardInterrupt
        found = self.engine.events(_GLANCE)
        for event in found:
            self._seated(event)
        return found

    def _seated(self, event: Event) -> None:
        if event.seat >= self.workers:
            self.history.handle(event)
        elif isinstance(event, Ready):
            self._up.add(event.seat)
        elif isinstance(event, Died):
            self._replace(event)

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
            self._kill_the_hung()
        if not interrupted:
            self._tell_unsaid()
            self._news.extend(self.history.finish(self.now))
            self._bury()

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.seat >= self.workers:  # at once: the server may come to wait for it
                self.history.handle(event)
            else:
                self._news.append(event)

    def _bury(self) -> None:
        """Hear of the deaths of those whom `kill` ended, though the run needs nobody any more."""
        while self._killed and not self.interrupted:
            events = list(self._news) or self.engine.events(_GLANCE)
            self._news.clear()
            for event in events:
                if isinstance(event, Died) and event.seat in self._killed:
                    self._killed.discard(event.seat)
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
        if not any(since <= limit for since in self._since.values()):
            return
        self._take(self.engine.events(0.0))  # it may be the server that was slow
        answered = {event.seat for event in self._news}
        for seat, since in list(self._since.items()):
            if since <= limit and seat not in answered:
                self.kill(seat)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._unborn = 0
            self._up.add(event.seat)
            if not self._waiting:
                self._employ(event.seat)
            elif len(self._up) == self.workers:  # all start at once; starting processes is no part of the run
                self._begin(self._base)
                self._waiting = False
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
        self._tell_unsaid()
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
        self._replace(event)
        ticket = self.server.holds(event.seat)
        if ticket is not None:
            self._again(ticket, event.reason)

    def _replace(self, event: Died) -> None:
        """Put a new worker into the seat of a dead one."""
        self.deaths += 1
        self._idle.discard(event.seat)
        self._since.pop(event.seat, None)
        if event.seat not in self._up and event.seat not in self._killed:
            self._unborn += 1
            # A signal may be bad luck; who ends by itself before anybody was ever up will do so again.
            hopeless = self._waiting and not self._up and not event.reason.startswith("killed")
            if hopeless or self._unborn >= 2 * self.workers + 1:
                raise ValueError(f"Workers die before they are ready ({event.reason}); {IMPORTABLE}")
        self._up.discard(event.seat)
        self._killed.discard(event.seat)
        self.engine.restart(event.seat)

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
        self._unsaid.append(
            f"Ticket {ticket.number} ({words}) came to nothing {tried} times, last: {reason}; it counts "
            "with weight zero"
        )
        if not nothing_yet:
            self._tell_unsaid()
        self._arrived(ticket, self.books.give_up(ticket, self.now, raised is not None), math.nan)

    def _tell_unsaid(self) -> None:
        """Warn of tickets that were given up, once it is clear that not all of them are."""
        for words in self._unsaid:
            warnings.warn(words, stacklevel=2)
        self._unsaid = []
