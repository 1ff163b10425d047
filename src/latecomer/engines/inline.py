"""All workers in this process, one job after the other: for debugging, and for code that no process can import."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

import torch

from ..core.gradient import one_thread
from .base import Died, Engine, Event, Job, Ready, Slot, WorkerSpec
from .memory import own_slot
from .worker import Worker

__all__ = ["InlineEngine"]


class InlineEngine(Engine):
    """Computes a job when its event is asked for, in order of submission: deterministic, in one process.

    A lambda, a notebook's cell and a debugger work here. Nothing happens at the same time, so workers take turns.

    Examples:
        >>> import latecomer as lc
        >>> result = lc.fit(lc.problems.quadratic(), method="momentum", lr=0.1, workers=3, engine="inline", steps=50)
        >>> int(result.trace.delay[-1])
        2
    """

    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        """Make tensors and workers."""
        self._spec = spec
        self._slots = [own_slot(spec, index) for index in range(slots)]
        self._workers: dict[int, Worker] = {}
        self._waiting: deque[tuple[int, Job]] = deque()
        self._news: deque[Event] = deque()
        for seat in range(seats):
            self.restart(seat)
        return self._slots

    def submit(self, seat: int, job: Job) -> None:
        """Put a job at the end of the queue."""
        if seat in self._workers:
            self._waiting.append((seat, job))

    def events(self, timeout: float | None = None) -> list[Event]:
        """Return what is known; if that is nothing, do the next job."""
        if not self._news and self._waiting:
            seat, job = self._waiting.popleft()
            with one_thread(), torch.random.fork_rng(devices=[]):
                self._news.append(self._workers[seat](job))
        news = list(self._news)
        self._news.clear()
        return news

    def kill(self, seat: int) -> None:
        """Forget a worker and its job."""
        if self._workers.pop(seat, None) is not None:
            self._waiting = deque(pair for pair in self._waiting if pair[0] != seat)
            self._news = deque(event for event in self._news if event.seat != seat)
            self._news.append(Died(seat, "killed"))

    def restart(self, seat: int) -> None:
        """Make a new worker."""
        self._workers[seat] = Worker(self._spec, self._slots, seat)
        self._news.append(Ready(seat, os.getpid()))

    def close(self) -> None:
        """Let go of everything."""
        self._workers, self._slots = {}, []
