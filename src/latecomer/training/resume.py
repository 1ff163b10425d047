"""Recovery after a crash of the server: the journal's entries are repeated on the last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .._util.warn import warn
from ..core.faults import FaultLog
from ..engines import Died, Done, Engine, Event, Failed, Job, Ready
from .evaluator import Evaluator
from .journal import ABSENT, COUNTED, Entry
from .run import JournaledRun, JournalMismatchError
from .startup import StartupFailures

__all__ = ["POLL_SECONDS", "JournalRecovery"]

POLL_SECONDS = 0.5  # longest wait for an event, so that interrupts and timeouts are noticed


class JournalRecovery:
    """Repeats journal entries; workers compute the contributions again, so that user code cannot kill the server.

    Which worker computes a contribution does not matter, so this uses the engine's seats, and no worker joins yet.

    Args:
        state: The state of the run, at the checkpoint.
        engine: The engine.
        evaluator: Keeps the history of the run.
        startup_failures: Counts workers that die before they are ready.
        attempts: How often an entry may fail.
        timeout: Seconds after which a job counts as hung, or None.
        interrupted: Ends the recovery as soon as it has an entry.
        failed_attempts: Number of failed attempts per ticket; updated in place.
        faults: The faults of the run; those of the journal are added.
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
        failed_attempts: dict[int, int] | None = None,
        faults: FaultLog | None = None,
    ) -> None:
        self.state, self.engine, self.evaluator, self.startup_failures = state, engine, evaluator, startup_failures
        self.attempts, self.timeout, self.interrupted = attempts, timeout, interrupted
        self.failed_attempts = {} if failed_attempts is None else failed_attempts
        self.faults = FaultLog() if faults is None else faults
        self.deaths = self.failures = self.reissued = 0
        self.up: dict[int, Ready] = {}

    def __call__(self, entries: Sequence[Entry]) -> int:
        """Repeat entries and return how many: all of them, unless one does not match the state."""
        for index, entry in enumerate(entries):
            again = bool(self.state.server.lost)
            try:
                counted = self.state.redo(entry, self._recomputed)
            except JournalMismatchError as error:
                self._warn_of_mismatch(error, entries[index:])
                return index
            if entry.kind == b"I":
                self.reissued += again
            if entry.kind in (b"L", b"G") and entry.group != ABSENT:
                self.failed_attempts[entry.number] = self.failed_attempts.get(entry.number, 0) + 1
                self.failures, self.deaths = self.failures + bool(entry.group), self.deaths + (not entry.group)
                kind = "given up" if entry.kind == b"G" else "raised" if entry.group else "died"
                arrivals, reason = self.state.server.arrivals, "before the server stopped"
                self.faults.add(kind, entry.at, arrivals, entry.worker, entry.number, reason)
            if counted is not None:
                self.failed_attempts.pop(entry.number, None)
                outcome, loss = counted
                self.evaluator.history.count(loss, outcome.delay)
                self.handle(self.evaluator.evaluate_if_due(entry.at))
        return len(entries)

    def _warn_of_mismatch(self, error: JournalMismatchError, rest: Sequence[Entry]) -> None:
        arrivals = self.state.server.arrivals
        lost = sum(entry.kind in COUNTED for entry in rest)
        kept = "" if self.state.journal is None else self.state.journal.keep_copy()
        warn(
            f"The journal does not match its checkpoint ({error}): its last {len(rest)} entries cannot be repeated, so "
            f"the run resumes at arrival {arrivals:,} instead of {arrivals + lost:,}{kept}",
        )

    def _recomputed(self, job: Job) -> Done:
        """Compute a counted contribution again, on any worker that is up."""
        reason = ""
        for _ in range(self.attempts):
            while not self.up:
                self._poll()
            seat = min(self.up)
            self.engine.submit(seat, job)
            started = time.monotonic()
            answer: Event | None = None
            while answer is None:
                found = self._poll()
                answer = next((e for e in found if e.seat == seat and isinstance(e, (Done, Failed, Died))), None)
                if answer is None and self.timeout is not None and time.monotonic() - started > self.timeout:
                    self.engine.kill(seat)
            if isinstance(answer, Done):
                return answer
            reason = answer.reason if isinstance(answer, (Failed, Died)) else ""
        raise ValueError(
            f"Ticket {job.number} was counted before the server stopped, and now fails {self.attempts} times, last: "
            f"{reason}; nothing is lost, the same call tries again"
        )

    def _poll(self) -> list[Event]:
        if self.interrupted:  # nothing is lost: the journal is unchanged
            raise KeyboardInterrupt
        found = self.engine.events(POLL_SECONDS)
        self.handle(found)
        return found

    def handle(self, events: Sequence[Event]) -> None:
        """Record which workers are up."""
        for event in events:
            if event.seat >= self.evaluator.seat:
                self.evaluator.handle(event)
            elif isinstance(event, Ready):
                self.startup_failures.ready()
                self.up[event.seat] = event
            elif isinstance(event, Died):
                self.deaths += 1
                if event.seat not in self.up:
                    self.startup_failures.died(event)
                self.up.pop(event.seat, None)
                self.engine.restart(event.seat)
