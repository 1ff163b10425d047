"""The training loop on real workers: handles the engine's events and issues tickets."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from .._util.checks import whole_number
from .._util.warn import warn
from ..core.callbacks import Callback
from ..core.checkpoint import loading
from ..core.faults import Fault
from ..core.history import History
from ..engines import Died, Done, Engine, Event, Failed, Job, Ready, WorkerSpec
from ..optim import AsyncOptimizer
from ..policy import Ticket
from ..policy.asking import STUCK, allowed
from ..server import Outcome, Server
from .evaluator import Evaluator
from .faults import FaultHandling
from .journal import Entry
from .resume import POLL_SECONDS, JournalRecovery
from .run import JournaledRun
from .workers import WorkerSeats

__all__ = ["TrainingLoop"]


class TrainingLoop(FaultHandling):
    """Keeps workers busy and counts their contributions.

    The server numbers its workers, the engine its seats (see `latecomer.engines.base`). `_seats` maps one to the other,
    because a worker that starts late joins the server with the next free number.

    Args:
        state: The state of the run.
        engine: The engine.
        workers: Number of workers that beta and lr were chosen for.
        min_workers: Number of workers that must be ready before training begins; ``workers`` by default.
        max_workers: Largest number of workers; those beyond the first join when they are ready.
        steps: Number of arrivals.
        evaluate_every: Arrivals between rows of the history.
        attempts: How often a ticket may fail before it counts with weight zero.
        give_up_limit: Largest share of tickets that may be given up in this way.
        timeout: Seconds after which a job counts as hung, or None.
        device: Where workers compute: a device of torch, or ``"auto"``.
        threads: Torch threads per worker.
        prefetch: Number of batches that a worker draws ahead.
        callbacks: The callbacks.

    Attributes:
        devices: Kinds of devices on which workers have computed.
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
        give_up_limit: float = 0.5,
        timeout: float | None = None,
        device: str = "cpu",
        threads: int = 1,
        prefetch: int = 0,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.device, self.threads, self.prefetch = device, threads, prefetch
        self.devices: set[str] = set()
        self.state, self.engine, self.workers, self.steps = state, engine, workers, steps
        self.min_workers, self.max_workers = min_workers or workers, max(workers, max_workers or 0)
        super().__init__(self.server.workers, self.max_workers, attempts)
        self.attempts, self.timeout, self.callbacks = attempts, timeout, list(callbacks)
        self.give_up_limit = give_up_limit
        self.evaluator = Evaluator(state, engine, self.max_workers, evaluate_every or steps, attempts)
        self.evaluator.on_row = self._evaluated
        self._stopped = False
        self.interrupted: Sequence[int] = ()
        self._reset_clock(0.0)

    @property
    def server(self) -> Server:
        """The server."""
        return self.state.server

    @property
    def optimizer(self) -> AsyncOptimizer:
        """The optimizer."""
        return self.state.optimizer

    @property
    def history(self) -> History:
        """The rows of the history so far."""
        return self.evaluator.history

    @property
    def now(self) -> float:
        """Seconds on the run's clock; it does not run while the server is down or too few workers are ready."""
        return self._base if self._waiting else time.monotonic() - self._zero

    def _waited(self) -> float:
        return time.monotonic() - self._zero - self._base if self._waiting else 0.0

    @property
    def up(self) -> frozenset[int]:
        """The workers that are ready or have a job."""
        return frozenset(self._up)

    def _evaluated(self, row: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.evaluated(self, row)

    def _faulted(self, fault: Fault) -> None:
        for callback in self.callbacks:
            callback.faulted(self, fault)

    def kill(self, worker: int) -> bool:
        """Kill a worker; return False if it is being killed already, or never started.

        It gets no more jobs, and the run waits for its death before it ends, so that every kill is counted.
        """
        if not 0 <= whole_number("worker", worker) < self.server.workers:
            raise ValueError(f"Invalid worker value: {worker} (there are {self.server.workers} workers)")
        if worker in self._being_killed or not self._seats.has_seat(worker):
            return False
        self._up.discard(worker)
        self._idle.discard(worker)
        self._job_started.pop(worker, None)
        self._being_killed.add(worker)
        self.engine.kill(self._seats.seat(worker))
        return True

    def set_interrupts(self, interrupted: Sequence[int]) -> None:
        """End the run as soon as this list has an entry; a signal handler adds one."""
        self.interrupted = self.evaluator.interrupted = interrupted

    def stop(self) -> None:
        """End the run after this arrival."""
        self._stopped = True

    # ---- start and resume ---------------------------------------------------------------------------------------

    def start(self, state: dict[str, Any] | None = None, entries: Sequence[Entry] = ()) -> int:
        """Start the workers; with a state, continue from it and repeat the journal entries after it.

        Returns:
            The number of repeated entries: all of them, unless one does not match the state.
        """
        run = self.state
        if state is not None:
            self._check_worker_count(state, entries)
        x, evaluator = run.flat.x, self.evaluator
        spec = WorkerSpec(
            run.problem, x.numel(), x.dtype, self.optimizer.points, run.averages.size, run.seed, self.engine.bf16,
            evaluator.seats, self.device, self.threads, self.prefetch,
        )  # fmt: skip
        slots = self.engine.start(spec, self.max_workers + evaluator.seats, self.max_workers + evaluator.slots)
        run.use(slots[: self.max_workers])
        evaluator.use(slots[self.max_workers :])
        self._reset_clock(0.0)
        if state is None:
            evaluator.evaluate_if_due(0.0)
            return 0
        with loading():
            run.load_state_dict(state["run"])
            self.devices |= set(state.get("devices", ()))
            self._failed_attempts, before = dict(state["tried"]), [int(count) for count in state["counts"]]
            evaluator.load_state_dict(state["evaluator"])
            if "faults" in state:
                self.faults.load_state_dict(state["faults"])
        recovery = JournalRecovery(
            run, self.engine, evaluator, self._startup_failures, attempts=self.attempts, timeout=self.timeout,
            interrupted=self.interrupted, failed_attempts=self._failed_attempts, faults=self.faults,
        )  # fmt: skip
        recovery.handle(evaluator.evaluate_if_due(self._restore_clock()))
        done = recovery(entries)
        counted = zip(before, (recovery.deaths, recovery.failures, recovery.reissued), strict=True)
        self.deaths, self.failures, self.reissued = (then + since for then, since in counted)
        # The loop sees workers that started during the recovery as new ones, so their numbers may differ from those
        # before the crash. Which worker computes a ticket does not change its bits.
        self._seats = WorkerSeats(self.server.workers)
        self._events.extend(event for _, event in sorted(recovery.up.items()))
        self._restore_clock()
        self._note("server restarted", reason=f"the run resumes at arrival {self.server.arrivals:,}")
        return done

    def _check_worker_count(self, state: dict[str, Any], entries: Sequence[Entry]) -> None:
        with loading():
            busy = len(state["run"]["server"]["busy"])
        workers = busy + sum(entry.kind == b"J" for entry in entries)
        if workers > self.max_workers:
            raise ValueError(
                f"The checkpoint has {workers} workers, this run at most {self.max_workers}: pass max_workers={workers}"
            )

    def _restore_clock(self) -> float:
        """Set the clock to its last value."""
        at = self.server.now if math.isfinite(self.server.now) else 0.0
        self._reset_clock(at)
        return at

    def _reset_clock(self, at: float) -> None:
        # `_base` is the clock while waiting; once training has begun the clock counts from `_zero`.
        self._base, self._zero, self._waiting = at, time.monotonic() - at, True

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs."""
        return {
            "run": self.state.state_dict(),
            "evaluator": self.evaluator.state_dict(),
            "counts": [self.deaths, self.failures, self.reissued],
            "tried": dict(self._failed_attempts),
            "devices": sorted(self.devices),
            "faults": self.faults.state_dict(),
        }

    # ---- the loop -----------------------------------------------------------------------------------------------

    def run(self, interrupted: Sequence[int], on_arrival: Any = None) -> None:
        """Train until all arrivals are counted, the run has diverged, or it is stopped or interrupted.

        Args:
            interrupted: Ends the run as soon as it has an entry.
            on_arrival: Called after every arrival.
        """
        before = self.server.arrivals
        self._given_up_before = self.server.given_up
        self.set_interrupts(interrupted)
        while not self._over() and not interrupted:
            # One event at a time: a checkpoint, made by `on_arrival`, must see the state between two arrivals.
            if not self._events:
                self._enqueue(self.engine.events(self._poll_timeout()))
            while self._events and not self._over():
                self._handle(self._events.popleft())
                if self.server.arrivals > before:
                    before = self.server.arrivals
                    if on_arrival is not None:
                        on_arrival()
                    self._check_given_up()
                    if interrupted:
                        break
            self._kill_timed_out()
            self._warn_missing_workers()
        self._emit_deferred_warnings(at_end=True)
        if not interrupted:  # an interrupted run saves its state and ends; the rest is done when it resumes
            self._events.extend(self.evaluator.finish(self.now))
            self._reap()

    def _enqueue(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.seat >= self.max_workers:  # at once: the server may be waiting for a free snapshot
                self.evaluator.handle(event)
            else:
                self._events.append(event)

    def _reap(self) -> None:
        """Wait for the reported deaths of killed workers, so that every kill is counted."""
        while self._being_killed and not self.interrupted:
            events = list(self._events) or self.engine.events(POLL_SECONDS)
            self._events.clear()
            for event in events:
                worker = self._seats.worker(event.seat)
                if isinstance(event, Died) and worker in self._being_killed:
                    self._being_killed.discard(worker)
                    self.deaths += 1
                    self._note_death(worker, self.server.holds(worker), event.reason, worker in self._timed_out)

    def _over(self) -> bool:
        return self._stopped or self.server.arrivals >= self.steps or self.state.diverged_at is not None

    def _poll_timeout(self) -> float:
        """Return how long to wait for an event: not past the next timeout."""
        if self.timeout is None or not self._job_started:
            return POLL_SECONDS
        return max(0.0, min(POLL_SECONDS, min(self._job_started.values()) + self.timeout - time.monotonic()))

    def _worker_of(self, event: Event) -> int | None:
        """Return the server's number of the event's worker; a new worker gets one when it is ready, None before."""
        worker = self._seats.worker(event.seat)
        if worker is not None:
            return worker
        if isinstance(event, Died):
            self._startup_failures.died(event)
            self.engine.restart(event.seat)
        if not isinstance(event, Ready):
            return None
        worker = self._seats.assign_free(event.seat)
        if worker is None:
            worker = self.state.join(self.now)
            self._seats.assign(event.seat, worker)
            if self.server.arrivals and self.server.workers > self.workers:
                warn(
                    f"A worker has joined: there are {self.server.workers}, more than the {self.workers} that beta and "
                    "lr were chosen for, so delays grow. With twice the workers, use half the beta",
                )
        return worker

    def _handle(self, event: Event) -> None:
        worker = self._worker_of(event)
        if worker is None:
            return
        if isinstance(event, Ready):
            self.devices.add(event.device)
            self._ready(worker)
        elif isinstance(event, Done):
            self._done(worker, event)
        elif isinstance(event, Failed):
            ticket = self._ticket(worker, event.number)
            if ticket is not None:
                self.failures += 1
                self._note("raised", worker, ticket, event.reason)
                self._mark_idle(worker)
                self._retry(ticket, event.reason, raised=event)
        elif isinstance(event, Died):
            self._died(worker, event)

    def _ready(self, worker: int) -> None:
        self._startup_failures.ready()
        self._up.add(worker)
        if not self._waiting:
            self._assign_first_job(worker)
        elif len(self._up) >= self.min_workers:
            # Enough are ready: the clock starts now, so the start of processes is no part of the run.
            self._reset_clock(self._base)
            self._waiting = False
            self._release_absent()
            for other in sorted(self._up):
                self._assign_first_job(other)

    def _assign_first_job(self, worker: int) -> None:
        """Give a job to a worker that has just started."""
        ticket = self.server.holds(worker)
        if ticket is None:
            self._idle.add(worker)
            self._issue_tickets()
        else:  # it had this ticket before the server crashed
            self._submit(worker, self.state.job(ticket))

    def _ticket(self, worker: int, number: int) -> Ticket | None:
        """Return the ticket that a worker answers for; None if the answer came twice or too late."""
        ticket = self.server.holds(worker)
        if ticket is None or ticket.number != number or worker in self._idle:
            self.ignored += 1
            return None
        return ticket

    def _done(self, worker: int, event: Done) -> None:
        ticket = self._ticket(worker, event.number)
        if ticket is None:
            return
        self._mark_idle(worker)
        self._emit_deferred_warnings()  # a ticket has succeeded, so not all of them fail
        outcome = self.state.arrive(ticket, finite=event.finite, group=event.group, at=self.now)
        if not outcome.finite:
            self._note("not finite", worker, ticket, "counts with weight zero")
        self._arrived(ticket, outcome, event.loss)

    def _mark_idle(self, worker: int) -> None:
        """Mark a worker as idle after its answer, unless it is being killed."""
        self._job_started.pop(worker, None)
        if worker not in self._being_killed:
            self._idle.add(worker)

    def _arrived(self, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        self._failed_attempts.pop(ticket.number, None)
        for cancelled in outcome.cancelled:  # the worker is still computing: only a new process is free
            if self.kill(cancelled.worker):
                self._cancelled.add(cancelled.worker)
        self.evaluator.history.count(loss, outcome.delay)
        for callback in self.callbacks:
            callback.arrived(self, ticket, outcome, loss)
        for event in self.evaluator.evaluate_if_due(self.now):
            self._events.append(event)
        self._issue_tickets()

    def _issue_tickets(self) -> None:
        """Issue tickets to idle workers, as far as the policy allows."""
        if self._over() or self._waiting:
            return
        for worker in sorted(self._idle):  # sorted: the order must not depend on a set
            running = self.server.outstanding
            if not self.server.lost and not allowed(self.server.policy, running):
                if not running:  # nothing is left that could arrive and change the policy's mind
                    raise ValueError(STUCK.format(policy=self.server.policy))
                return
            # A lost ticket needs no permission: it still counts as in flight, and the policy let it start before.
            self.reissued += bool(self.server.lost)
            self._submit(worker, self.state.issue(worker, self.now))

    def _submit(self, worker: int, job: Job) -> None:
        self._idle.discard(worker)
        self._job_started[worker] = time.monotonic()
        self.engine.submit(self._seats.seat(worker), job)
