"""Runs all workers in this process, one job at a time, for debugging."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from .._util.memory import check_memory
from ..core.gradient import one_thread
from ..core.rng import kept_generators
from .base import Died, Engine, Event, Job, Slot, WorkerSpec
from .memory import own_slot
from .worker import Worker

__all__ = ["InlineEngine"]


class InlineEngine(Engine):
    """Computes jobs in this process, in the order they were submitted: deterministic.

    Debuggers work, and nothing has to be pickled. No two jobs run at the same time, so the workers take turns.

    Examples:
        >>> import latecomer as lc
        >>> result = lc.fit(lc.problems.quadratic(), method="momentum", lr=0.1, workers=3, engine="inline", steps=50)
        >>> int(result.trace.delay[-1])
        2
    """

    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        """Create the slots and the workers."""
        each = (2 * spec.points + 1) * spec.size * spec.dtype.itemsize  # its slot, and its model
        check_memory(seats * each, f"{seats:,} workers in this process", "use fewer workers")
        self._spec = replace(spec, prefetch=0)  # there is one process, which computes and draws in turns
        self._slots = [own_slot(spec, index) for index in range(slots)]
        self._workers: dict[int, Worker] = {}
        self._waiting: deque[tuple[int, Job]] = deque()
        self._events: deque[Event] = deque()
        for seat in range(seats):
            self.restart(seat)
        return self._slots

    def submit(self, seat: int, job: Job) -> None:
        """Append a job to the queue."""
        if seat in self._workers:
            self._waiting.append((seat, job))

    def events(self, timeout: float | None = None) -> list[Event]:
        """Return new events; if there are none, compute the next job."""
        if not self._events and self._waiting:
            seat, job = self._waiting.popleft()
            with one_thread(self._spec.threads), kept_generators():
                self._events.append(self._workers[seat](job))
        events = list(self._events)
        self._events.clear()
        return events

    def kill(self, seat: int) -> None:
        """Drop a worker and its job."""
        if self._workers.pop(seat, None) is not None:
            self._waiting = deque(pair for pair in self._waiting if pair[0] != seat)
            self._events = deque(event for event in self._events if event.seat != seat)
            self._events.append(Died(seat, "killed"))

    def restart(self, seat: int) -> None:
        """Create a new worker."""
        self._workers[seat] = Worker(self._spec, self._slots, seat)
        self._events.append(self._workers[seat].ready)

    def close(self) -> None:
        """Drop workers and slots."""
        self._workers, self._slots = {}, []
