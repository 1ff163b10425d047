"""The loop of a run on real workers: events in, tickets out."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

from .._util.checks import whole_number
from ..core.callbacks import Callback
from ..engines import Died, Done, Engine, Event, Failed, Job, Ready, WorkerSpec
from ..optim import AsyncOptimizer
from ..policy import Ticket
from ..server import Outcome, Server
from .evaluator import Evaluator
from .faults import FaultHandling
from .journal import Entry
from .resume import JournalRecovery
from .run import JournaledRun
from .workers import WorkerSeats

__all__ = ["TrainingLoop"]

_GLANCE = 0.5  # seconds without an event after which interrupts and hung workers are looked at


class TrainingLoop(FaultHandling):
    """Keeps workers busy and counts what they bring.

    Args:
        state: The state of the run.
        engine: Who moves the bytes.
        workers: How many workers beta and lr were chosen for.
        min_workers: How many must be ready before the run begins; all ``workers`` if left out.
        max_workers: How many there may be; those who are not among the first join when they are ready.
        steps: Arrivals to count.
        evaluate_every: Arrivals between rows of the history.
        attempts: How often a ticket may kill its worker, or raise, before it counts with weight zero.
        timeout: Seconds after which a job counts as hung, or None.
        callbacks: Who is told.
    """

    def __init__(
        self,
        state: JournaledRun,
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
        self.state, self.engine, self.workers, self.steps = state, engine, workers, steps
        self.min_workers, self.seats = min_workers or workers, max(workers, max_workers or 0)
        super().__init__(self.server.workers, self.seats)
        self.attempts, self.timeout, self.callbacks = attempts, timeout, list(callbacks)
        self.evaluator = Evaluator(state, engine, self.seats, evaluate_every or steps, attempts)
        self.evaluator.on_row = self._evaluated
        self._stopped = False
        self.interrupted: Sequence[int] = ()
        self._begin(0.0)

    @property
    def server(self) -> Server:
        """The server."""
        return self.state.server

    @property
    def optimizer(self) -> AsyncOptimizer:
        """The optimizer."""
        return self.state.optimizer

    @property
    def now(self) -> float:
        """The run's clock in seconds; it stands still while there is no server, and until enough workers are ready."""
        return self._base if self._waiting else time.monotonic() - self._zero

    def _waited(self) -> float:
        return time.monotonic() - self._zero - self._base if self._waiting else 0.0

    @property
    def up(self) -> frozenset[int]:
        """The workers that can take a job, or have one."""
        return frozenset(self._up)

    def _evaluated(self, row: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.evaluated(self, row)

    def kill(self, worker: int) -> bool:
        """Kill a worker; False if it is being killed already, or not there.

        It gets no job any more, and the run does not end before it has heard of the death: every kill is counted.
        """
        if not 0 <= whole_number("worker", worker) < self.server.workers:
            raise ValueError(f"Invalid worker value: {worker} (there are {self.server.workers} workers)")
        if worker in self._killed or not self._seats.taken(worker):
            return False
        self._up.discard(worker)
        self._idle.discard(worker)
        self._since.pop(worker, None)
        self._killed.add(worker)
        self.engine.kill(self._seats.seat(worker))
        return True

    def listen(self, interrupted: Sequence[int]) -> None:
        """End what is going on as soon as there is something in this list."""
        self.interrupted = self.evaluator.interrupted = interrupted

    def stop(self) -> None:
        """End the run after this arrival."""
        self._stopped = True

    # ---- beginning ----------------------------------------------------------------------------------------------

    def start(self, state: dict[str, Any] | None = None, entries: Sequence[Entry] = ()) -> int:
        """Seat the workers; with a state go on from there, and do again what a journal says came after it.

        Returns:
            How many entries of the journal have been done again: all, unless one does not fit.
        """
        run = self.state
        if state is not None:
            self._check_seats(state, entries)
        x, evaluator = run.flat.x, self.evaluator
        spec = WorkerSpec(
            run.problem, x.numel(), x.dtype, self.optimizer.points, run.averages.size, run.seed, self.engine.bf16,
            evaluator.seats,
        )  # fmt: skip
        slots = self.engine.start(spec, self.seats + evaluator.seats, self.seats + evaluator.slots)
        run.use(slots[: self.seats])
        evaluator.use(slots[self.seats :])
        self._begin(0.0)
        if state is None:
            evaluator.note(0.0)
            return 0
        run.load_state_dict(state["run"])
        self._tried = dict(state["tried"])
        evaluator.load_state_dict(state["evaluator"])
        recovery = JournalRecovery(
            run, self.engine, evaluator, self._startup_failures, attempts=self.attempts, timeout=self.timeout,
            interrupted=self.interrupted, tried=self._tried,
        )  # fmt: skip
        recovery.take(evaluator.note(self._restored()))
        done = recovery(entries)
        counted = zip(state["counts"], (recovery.deaths, recovery.failures, recovery.reissued), strict=True)
        self.deaths, self.failures, self.reissued = (before + since for before, since in counted)
        self._seats = WorkerSeats(self.server.workers)
        self._news.extend(Ready(seat) for seat in sorted(recovery.up))
        self._restored()
        return done

    def _check_seats(self, state: dict[str, Any], entries: Sequence[Entry]) -> None:
        workers = len(state["run"]["server"]["busy"]) + sum(entry.kind == b"J" for entry in entries)
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
            "run": self.state.state_dict(),
            "evaluator": self.evaluator.state_dict(),
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
            self._news.extend(self.evaluator.finish(self.now))
            self._reap()

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.seat >= self.seats:  # at once: the server may come to wait for it
                self.evaluator.handle(event)
            else:
                self._news.append(event)

    def _reap(self) -> None:
        """Hear of the deaths of those whom `kill` ended, though the run needs nobody any more."""
        while self._killed and not self.interrupted:
            events = list(self._news) or self.engine.events(_GLANCE)
            self._news.clear()
            for event in events:
                worker = self._seats.worker(event.seat)
                if isinstance(event, Died) and worker in self._killed:
                    self._killed.discard(worker)
                    self.deaths += 1

    def _over(self) -> bool:
        return self._stopped or self.server.arrivals >= self.steps or self.state.diverged_at is not None

    def _glance(self) -> float:
        if self.timeout is None or not self._since:
            return _GLANCE
        return max(0.0, min(_GLANCE, min(self._since.values()) + self.timeout - time.monotonic()))

    def _worker_of(self, event: Event) -> int | None:
        """Return the server's number of the worker an event is of; who is new joins when ready, and has none before."""
        worker = self._seats.worker(event.seat)
        if worker is not None:
            return worker
        if isinstance(event, Died):
            self._startup_failures.died(event)
            self.engine.restart(event.seat)
        if not isinstance(event, Ready):
            return None
        worker = self._seats.take(event.seat)
        if worker is None:
            worker = self.state.join(self.now)
            self._seats.join(event.seat, worker)
            if self.server.arrivals and self.server.workers > self.workers:
                warnings.warn(
                    f"A worker has joined: there are {self.server.workers}, more than the {self.workers} that beta and "
                    "lr were chosen for. Delays grow along",
                    stacklevel=2,
                )
        return worker

    def _handle(self, event: Event) -> None:
        worker = self._worker_of(event)
        if worker is None:
            return
        if isinstance(event, Ready):
            self._ready(worker)
        elif isinstance(event, Done):
            self._done(worker, event)
        elif isinstance(event, Failed):
            ticket = self._ticket(worker, event.number)
            if ticket is not None:
                self.failures += 1
                self._free(worker)
                self._again(ticket, event.reason, raised=event)
        elif isinstance(event, Died):
            self._died(worker, event)

    def _ready(self, worker: int) -> None:
        self._startup_failures.ready()
        self._up.add(worker)
        if not self._waiting:
            self._employ(worker)
        elif len(self._up) >= self.min_workers:  # they start at once; starting processes is no part of the run
            self._begin(self._base)
            self._waiting = False
            self._release_absent()
            for each in sorted(self._up):
                self._employ(each)

    def _employ(self, worker: int) -> None:
        """Give a worker that has just come its first job."""
        ticket = self.server.holds(worker)
        if ticket is None:
            self._idle.add(worker)
            self._fill()
        else:  # the worker had one when the server died
            self._submit(worker, self.state.job(ticket))

    def _ticket(self, worker: int, number: int) -> Ticket | None:
        """Return the ticket that a worker answers for; None if it answers for something nobody waits for."""
        ticket = self.server.holds(worker)
        if ticket is None or ticket.number != number or worker in self._idle:
            self.ignored += 1
            return None
        return ticket

    def _done(self, worker: int, event: Done) -> None:
        ticket = self._ticket(worker, event.number)
        if ticket is None:
            return
        self._free(worker)
        self._emit_deferred_warnings()
        outcome = self.state.arrive(ticket, finite=event.finite, group=event.group, at=self.now)
        self._arrived(ticket, outcome, event.loss)

    def _free(self, worker: int) -> None:
        """Note that a worker has answered; one that is being killed gets nothing more to do."""
        self._since.pop(worker, None)
        if worker not in self._killed:
            self._idle.add(worker)

    def _arrived(self, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        self._tried.pop(ticket.number, None)
        for called_off in outcome.cancelled:  # its worker still computes: only a new one is free
            self.kill(called_off.worker)
        self.evaluator.history.count(loss, outcome.delay)
        for callback in self.callbacks:
            callback.arrived(self, ticket, outcome, loss)
        for event in self.evaluator.note(self.now):
            self._news.append(event)
        self._fill()

    def _fill(self) -> None:
        """Give tickets to all who wait, as far as the policy lets them start."""
        if self._over() or self._waiting:
            return
        for worker in sorted(self._idle):
            if not self.server.lost and not self.server.policy.may_start(len(self.server.in_flight)):
                return
            self.reissued += bool(self.server.lost)
            self._submit(worker, self.state.issue(worker, self.now))

    def _submit(self, worker: int, job: Job) -> None:
        self._idle.discard(worker)
        self._since[worker] = time.monotonic()
        self.engine.submit(self._seats.seat(worker), job)
