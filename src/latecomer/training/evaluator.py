"""Evaluates snapshots of the model in a separate process, and collects the history of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from .._util.warn import warn
from ..core.history import COLUMNS, History
from ..engines import Died, Engine, Evaluated, Event, Failed, Job, Ready, Slot
from .run import JournaledRun
from .startup import StartupFailures, advice

__all__ = ["WAIT_WARNING", "Evaluator"]

_SNAPSHOTS = 3  # memory for this many unevaluated snapshots
WAIT_WARNING = 30.0
"""Seconds of waiting for a worker after which a warning tells the user why nothing happens."""


class Evaluator:
    """Copies the parameters every so many arrivals; a separate worker evaluates the copies while training goes on.

    The server waits only if all snapshots are still unevaluated. So every row is evaluated at its own arrival, whatever
    an evaluation costs.

    Args:
        state: The state of the run.
        engine: The engine.
        seat: The evaluating worker's seat; the seats and slots before it are for training.
        every: Arrivals between rows.
        attempts: How often an evaluation may kill its worker.
    """

    def __init__(self, state: JournaledRun, engine: Engine, seat: int, every: int, attempts: int) -> None:
        self.state, self.engine, self.seat, self.every, self.attempts = state, engine, seat, every, attempts
        self.interrupted: Sequence[int] = ()
        wanted = getattr(state.problem, "evaluates", True)
        self.seats, self.slots = (1, _SNAPSHOTS) if wanted else (0, 0)
        self.history = History()
        self._slots: Sequence[Slot] = ()
        self._free: list[int] = []
        self._waiting: list[tuple[Job, dict[str, Any]]] = []  # the first is with the worker, if that is up
        self._up = self._busy = self._warned = False
        self._requested_at = math.inf
        self.on_row: Callable[[dict[str, Any]], None] = lambda row: None
        self._failed_attempts = 0
        self._startup_failures = StartupFailures(1, attempts)

    def use(self, slots: Sequence[Slot]) -> None:
        """Use these slots for snapshots."""
        self._slots, self._free, self._requested_at = slots, list(range(len(slots))), time.monotonic()

    def evaluate_if_due(self, at: float, last: bool = False) -> list[Event]:
        """Start a row if one is due; return the other events that came while waiting for a free snapshot."""
        arrivals = self.state.server.arrivals
        if not (arrivals % self.every == 0 or last):
            return []
        if any(row["arrival"] == arrivals for row in [*self.history.rows, *(row for _, row in self._waiting)]):
            return []
        other_events: list[Event] = []
        while self.seats and not self._free:
            other_events += self._wait()
        row = self.history.begin(self.state.optimizer.t, arrivals, at)
        if not self.seats:
            self._add(row)
            return []
        slot = self._queue(row)
        slot.points[0].copy_(self.state.flat.x.detach())
        if len(slot.statistics):
            self.state.averages.store(slot.statistics)
        self._next()
        return other_events

    def _queue(self, row: dict[str, Any]) -> Slot:
        """Queue a row for evaluation; the caller writes the snapshot into the returned slot."""
        index = self._free.pop()
        self._waiting.append((Job(int(row["arrival"]), self.seat + index, evaluate=True), row))
        return self._slots[index]

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, and the snapshots of those without metrics."""
        waiting = []
        for job, row in self._waiting:
            slot = self._slots[job.slot - self.seat]
            waiting.append((dict(row), slot.points[0].clone(), slot.statistics.clone()))
        return {"history": self.history.state_dict(), "waiting": waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state dict, and evaluate the rows without metrics."""
        self.history.load_state_dict(state["history"])
        for row, point, statistics in state["waiting"]:
            if not self.seats:  # the resumed run does not evaluate
                self._add(row)
                continue
            slot = self._queue(row)
            slot.points[0].copy_(point)
            slot.statistics.copy_(statistics)
        self._next()

    def finish(self, at: float) -> list[Event]:
        """Add the last row, wait for all evaluations, and return the other events that came meanwhile."""
        other_events = self.evaluate_if_due(at, last=True)
        while self._waiting:
            other_events += self._wait()
        return other_events

    def _wait(self) -> list[Event]:
        """Wait for events of the evaluating worker; return the others."""
        if self.interrupted:
            raise KeyboardInterrupt
        if not self._up and not self._warned and time.monotonic() - self._requested_at > WAIT_WARNING:
            self._warned = True
            warn(
                f"The run is waiting for an evaluation, and after {WAIT_WARNING:g} s its worker has not started. Is "
                "there a free core for one more process?",
            )
        other_events = []
        for event in self.engine.events(1.0):
            if event.seat == self.seat:
                self.handle(event)
            else:
                other_events.append(event)
        return other_events

    def _next(self) -> None:
        if self._up and not self._busy and self._waiting:
            self._busy = True
            self.engine.submit(self.seat, self._waiting[0][0])

    def handle(self, event: Event) -> None:
        """Handle an event of the evaluating worker."""
        if isinstance(event, Ready):
            self._up = True
            self._startup_failures.ready()
        elif isinstance(event, Evaluated) and self._waiting and event.number == self._waiting[0][0].number:
            self._complete(event.metrics)
        elif isinstance(event, Failed):
            if not self._has_metrics:
                where = f" ({event.where})" if event.where else ""
                raise ValueError(f"The evaluation of the task raised: {event.reason}{where}")
            warn(f"An evaluation raised: {event.reason}; its row has no metrics")
            self._complete({})
        elif isinstance(event, Died):
            was_up, was_busy, self._up, self._busy = self._up, self._busy, False, False
            failure = self._failure(event, was_up, was_busy)
            if failure:
                if not self._waiting or not self._has_metrics:
                    raise ValueError(failure)
                warn(f"{failure}; no metrics at arrival {self._waiting[0][1]['arrival']:,}")
                self._complete({})
            self.engine.restart(self.seat)
            self._requested_at = time.monotonic()
        self._next()

    def _failure(self, event: Died, was_up: bool, was_busy: bool) -> str:
        """Return why an evaluation is given up; an empty string if its worker is worth another try."""
        if not was_up:
            return self._startup_failures.verdict(event)
        self._failed_attempts += was_busy  # an idle worker did not die of an evaluation
        if self._failed_attempts < self.attempts:
            return ""
        return f"An evaluation killed its worker {self._failed_attempts} times ({event.reason}); {advice(event)}"

    @property
    def _has_metrics(self) -> bool:
        """Whether any evaluation has succeeded."""
        return any(row.keys() - set(COLUMNS) for row in self.history.rows)

    def _complete(self, metrics: dict[str, float]) -> None:
        job, row = self._waiting.pop(0)
        row.update(metrics)
        self._free.append(job.slot - self.seat)
        self._busy, self._failed_attempts = False, 0
        self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        self.history.add(row)
        self.on_row(row)
