"""Going on after a crash of the server: what its journal says is done again, by whoever is up."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

from ..engines import Died, Done, Engine, Event, Failed, Job, Ready
from .evaluator import Evaluator
from .faults import StartupFailures
from .journal import ABSENT, Entry
from .run import JournaledRun, MisfitError

__all__ = ["JournalRecovery"]

_GLANCE = 0.5  # seconds without an event after which interrupts and hung workers are looked at


class JournalRecovery:
    """Does entries of a journal again, contributions by workers: their code may kill its process, ours has to go on.

    Who had computed a contribution does not matter, so seats are the engine's here, and nobody joins before the end.

    Args:
        state: The state of the run, as a checkpoint has it.
        engine: Who moves the bytes.
        evaluator: Keeps the rows of the run.
        startup_failures: Counts who dies before being ready.
        attempts: How often an entry may kill its worker, or raise.
        timeout: Seconds after which a job counts as hung, or None.
        interrupted: Ends it as soon as there is something in it.
        tried: How often tickets had come to nothing until then; kept up to date.
    """

    def __init__(
        self,
        state: JournaledRun,
        engine: Engine,
        evaluator: Evaluator,
        startup_failures: StartupFailures,
        *,
        attempts: int = 3,
        timeout: float | None = None,
        interrupted: Sequence[int] = (),
        tried: dict[int, int] | None = None,
    ) -> None:
        self.state, self.engine, self.evaluator, self.startup_failures = state, engine, evaluator, startup_failures
        self.attempts, self.timeout, self.interrupted = attempts, timeout, interrupted
        self.tried = {} if tried is None else tried
        self.deaths = self.failures = self.reissued = 0
        self.up: set[int] = set()

    def __call__(self, entries: Sequence[Entry]) -> int:
        """Do entries again and return how many: all, unless one does not fit."""
        for place, entry in enumerate(entries):
            again = bool(self.state.server.lost)
            try:
                counted = self.state.redo(entry, self._recomputed)
            except MisfitError as error:
                warnings.warn(f"The journal does not fit its checkpoint ({error}): going on before that", stacklevel=3)
                return place
            if entry.kind == b"I":
                self.reissued += again
            if entry.kind in (b"L", b"G") and entry.group != ABSENT:
                self.tried[entry.number] = self.tried.get(entry.number, 0) + 1
                self.failures, self.deaths = self.failures + bool(entry.group), self.deaths + (not entry.group)
            if counted is not None:
                self.tried.pop(entry.number, None)
                outcome, loss = counted
                self.evaluator.history.count(loss, outcome.delay)
                self.take(self.evaluator.note(entry.at))
        return len(entries)

    def _recomputed(self, job: Job) -> Done:
        """Have a contribution computed that had been counted before, by whoever is up."""
        reason = ""
        for _ in range(self.attempts):
            while not self.up:
                self._look()
            seat = min(self.up)
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
        if self.interrupted:  # nothing is lost: the journal still has it all
            raise KeyboardInterrupt
        found = self.engine.events(_GLANCE)
        self.take(found)
        return found

    def take(self, events: Sequence[Event]) -> None:
        """Note who is up and who is not."""
        for event in events:
            if event.seat >= self.evaluator.seat:
                self.evaluator.handle(event)
            elif isinstance(event, Ready):
                self.startup_failures.ready()
                self.up.add(event.seat)
            elif isinstance(event, Died):
                self.deaths += 1
                if event.seat not in self.up:
                    self.startup_failures.died(event)
                self.up.discard(event.seat)
                self.engine.restart(event.seat)
