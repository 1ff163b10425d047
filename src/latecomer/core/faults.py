"""What went wrong in a run, when and where; a list of limited length, and counts of everything."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["KINDS", "Fault", "FaultLog"]

KINDS = ("died", "timed out", "raised", "given up", "not finite", "server restarted")
"""Kinds of faults: of a worker, of a job, of a ticket, of a contribution, of the server."""
_KEPT = 500  # of the first faults, and as many of the last: a record stays small
_LONGEST = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong in a run and did not end it.

    Args:
        kind: ``"died"`` (a worker), ``"timed out"`` (its job took longer than ``timeout``), ``"raised"`` (the task),
            ``"given up"`` (a ticket, after so many attempts), ``"not finite"`` (a contribution) or
            ``"server restarted"``.
        time: Seconds on the run's clock, None if there is none.
        arrival: Number of arrivals counted by then.
        worker: The worker, None for the server.
        ticket: Number of its ticket, None if it had none.
        reason: What is known of it.

    Examples:
        >>> import latecomer as lc
        >>> from latecomer.testing import KillAt
        >>> run = lc.fit(lc.problems.quadratic(), lr=0.1, workers=2, steps=40, callbacks=[KillAt((1, 20))])
        >>> run.faults[0].kind, run.faults[0].worker, run.faults[0].reason
        ('died', 1, 'killed by SIGKILL')
    """

    kind: str
    time: float | None
    arrival: int
    worker: int | None = None
    ticket: int | None = None
    reason: str = ""


class FaultLog:
    """Keeps the first and the last faults of a run, and counts all of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._first: list[Fault] = []
        self._last: deque[Fault] = deque(maxlen=_KEPT)

    def add(
        self, kind: str, time: float | None, arrival: int, worker: int | None = None, ticket: int | None = None,
        reason: str = "",
    ) -> Fault:  # fmt: skip
        """Add a fault and return it."""
        fault = Fault(kind, time, arrival, worker, ticket, " ".join(reason.split())[:_LONGEST])
        self.counts[kind] += 1
        (self._first if len(self._first) < _KEPT else self._last).append(fault)
        return fault

    def __iter__(self) -> Iterator[Fault]:
        yield from self._first
        yield from self._last

    def copy(self) -> FaultLog:
        """Return a copy."""
        log = FaultLog()
        log.counts, log._first, log._last = self.counts.copy(), list(self._first), self._last.copy()
        return log

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as JSON has it."""
        return {"counts": dict(self.counts), "list": [asdict(fault) for fault in self]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state dict."""
        faults = [Fault(**values) for values in state["list"]]
        self.counts = Counter({str(kind): int(count) for kind, count in state["counts"].items()})
        self._first, self._last = faults[:_KEPT], deque(faults[_KEPT:], maxlen=_KEPT)
