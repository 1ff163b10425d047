"""The history of a run: means of what arrived, and metrics from a process that evaluates on the server's schedule."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ..core.history import COLUMNS, History
from ..engines import Died, Engine, Evaluated, Event, Failed, Job, Ready, Slot
from .run import JournaledRun

__all__ = ["WAIT_WARNING", "Evaluator"]

_SNAPSHOTS = 3
WAIT_WARNING = 30.0
"""Seconds without the workers that are needed after which somebody should know why nothing happens."""
IMPORTABLE = (
    "everything a task uses must be importable, and a script that calls fit needs `if __name__ == '__main__':` around "
    "the call"
)
"""Why workers may not come up."""


class Evaluator:
    """Takes a snapshot every so many arrivals and has it evaluated by a worker of its own, while training goes on.

    Only when all snapshots are waiting does the server wait for one to be done, so the schedule is kept whatever an
    evaluation costs.

    Args:
        state: The state of the run.
        engine: Who moves the bytes.
        seat: The evaluating worker's seat; those before it, and as many slots, are for training.
        every: Arrivals between rows.
        attempts: How often an evaluation may fail.
    """

    def __init__(self, state: JournaledRun, engine: Engine, seat: int, every: int, attempts: int) -> None:
        self.state, self.engine, self.seat, self.every, self.attempts = state, engine, seat, every, attempts
        self.interrupted: Sequence[int] = ()
        wanted = getattr(state.problem, "evaluates", True)
        self.seats, self.slots = (1, _SNAPSHOTS) if wanted else (0, 0)
        self.history = History()
        self._slots: Sequence[Slot] = ()
        self._free: list[int] = []
        self._waiting: list[tuple[Job, dict[str, Any]]] = []  # the first is with the worker if it is up
        self._up = self._busy = self._said = False
        self._asked = math.inf
        self.on_row: Callable[[dict[str, Any]], None] = lambda row: None
        self._tried = 0

    def use(self, slots: Sequence[Slot]) -> None:
        """Take over the slots for snapshots."""
        self._slots, self._free, self._asked = slots, list(range(len(slots))), time.monotonic()

    def note(self, at: float, last: bool = False) -> list[Event]:
        """Begin a row if it is time for one; return what else happened if the server had to wait for a snapshot."""
        arrivals = self.state.server.arrivals
        if not (arrivals % self.every == 0 or last):
            return []
        if any(row["arrival"] == arrivals for row in [*self.history.rows, *(row for _, row in self._waiting)]):
            return []
        aside: list[Event] = []
        while self.seats and not self._free:
            aside += self._wait()
        row = self.history.begin(self.state.optimizer.t, arrivals, at)
        if not self.seats:
            self._add(row)
            return []
        slot = self._queue(row)
        slot.points[0].copy_(self.state.flat.x.detach())
        if len(slot.statistics):
            self.state.averages.store(slot.statistics)
        self._next()
        return aside

    def _queue(self, row: dict[str, Any]) -> Slot:
        """Put a row in line for metrics; the caller fills the slot with what is to be evaluated."""
        index = self._free.pop()
        self._waiting.append((Job(int(row["arrival"]), self.seat + index, evaluate=True), row))
        return self._slots[index]

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, and what those that still wait for their metrics are to be evaluated at."""
        waiting = []
        for job, row in self._waiting:
            slot = self._slots[job.slot - self.seat]
            waiting.append((dict(row), slot.points[0].clone(), slot.statistics.clone()))
        return {"history": self.history.state_dict(), "waiting": waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, and evaluate what had not been."""
        self.history.load_state_dict(state["history"])
        for row, point, statistics in state["waiting"]:
            if not self.seats:  # nobody evaluates any more
                self._add(row)
                continue
            slot = self._queue(row)
            slot.points[0].copy_(point)
            slot.statistics.copy_(statistics)
        self._next()

    def finish(self, at: float) -> list[Event]:
        """Add the last row and wait until all are evaluated."""
        aside = self.note(at, last=True)
        while self._waiting:
            aside += self._wait()
        return aside

    def _wait(self) -> list[Event]:
        """Wait for an evaluation; return the events of others."""
        if self.interrupted:
            raise KeyboardInterrupt
        if not self._up and not self._said and time.monotonic() - self._asked > WAIT_WARNING:
            self._said = True
            warnings.warn(
                f"The run waits for an evaluation, and after {WAIT_WARNING:g} s nobody is there to make it: is there "
                "room for one more process?",
                stacklevel=2,
            )
        aside = []
        for event in self.engine.events(1.0):
            if event.seat == self.seat:
                self.handle(event)
            else:
                aside.append(event)
        return aside

    def _next(self) -> None:
        if self._up and not self._busy and self._waiting:
            self._busy = True
            self.engine.submit(self.seat, self._waiting[0][0])

    def handle(self, event: Event) -> None:
        """Take an event of the evaluating worker."""
        if isinstance(event, Ready):
            self._up = True
        elif isinstance(event, Evaluated) and self._waiting and event.number == self._waiting[0][0].number:
            self._complete(event.metrics)
        elif isinstance(event, Failed):
            if not self._worked:
                where = f" ({event.where})" if event.where else ""
                raise ValueError(f"The task's evaluation raises: {event.reason}{where}")
            warnings.warn(f"An evaluation raised: {event.reason}; its row has no metrics", stacklevel=2)
            self._complete({})
        elif isinstance(event, Died):
            was_up, was_busy, self._up, self._busy = self._up, self._busy, False, False
            self._tried += was_busy or not was_up  # who was idle has not died of an evaluation
            hopeless = not self.history.rows and not was_up and not event.reason.startswith("killed")
            if hopeless or self._tried >= self.attempts:
                if not self._waiting or not self._worked:
                    raise ValueError(f"The evaluating worker dies again and again ({event.reason}); {IMPORTABLE}")
                warnings.warn(f"An evaluation killed its worker {self._tried} times; no metrics", stacklevel=2)
                self._complete({})
            self.engine.restart(self.seat)
            self._asked = time.monotonic()
        self._next()

    @property
    def _worked(self) -> bool:
        """Whether any evaluation has come back."""
        return any(row.keys() - set(COLUMNS) for row in self.history.rows)

    def _complete(self, metrics: dict[str, float]) -> None:
        job, row = self._waiting.pop(0)
        row.update(metrics)
        self._free.append(job.slot - self.seat)
        self._busy, self._tried = False, 0
        self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        self.history.add(row)
        self.on_row(row)
