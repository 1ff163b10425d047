"""Ringmaster: contributions that are too old are dropped, or their jobs cancelled."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._util.checks import whole_number
from .base import Decision, Policy, Ticket, late

__all__ = ["Ringmaster", "RingmasterStop"]


class Ringmaster(Policy):
    """Drops a contribution whose delay is R or more; the others are applied as they come.

    A dropped contribution is not an update, and its worker starts again from the newest parameters. With R infinite
    this is `Async`, and with ``R=1`` it is `Rennala` with ``S=1``. The publication takes
    ``R = max(1, ceil(sigma²/eps))`` for a gradient noise of variance sigma² and a target eps of the squared gradient
    norm.

    Args:
        workers: Number of workers.
        R: Delay from which a contribution is dropped, at least 1, or infinity; by default the number of workers.

    Examples:
        >>> policy = Ringmaster(workers=4, R=2)
        >>> ticket = Ticket(0, worker=0, version=1, seen=0, sample=0)
        >>> [policy.receive(ticket, delay).action for delay in range(3)]
        ['apply', 'apply', 'drop']

    References:
        Maranjyan, Tyurin, Richtarik, Ringmaster ASGD, 2025, arXiv 2501.16168, Algorithm 4 (read in public code).
    """

    name = "ringmaster"
    _apply, _drop = Decision("apply"), Decision("drop")

    def __init__(self, workers: int, R: float | None = None) -> None:
        super().__init__()
        self.R = whole_number("workers", workers, least=1) if R is None else _threshold(R)

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Apply it, or drop it if its delay is R or more."""
        return self._apply if delay < self.R else self._drop


class RingmasterStop(Ringmaster):
    """Ringmaster with stops: a job whose delay reaches R is cancelled, and its worker starts again at once.

    With R far below the number of workers, an update cancels about ``workers/R`` jobs on average. Each is one more
    ticket that is issued and recorded, and never computed.

    Args:
        workers: Number of workers.
        R: Delay at which a job is cancelled, at least 1, or infinity; by default the number of workers.

    Examples:
        >>> policy = RingmasterStop(workers=4, R=2)
        >>> jobs = [Ticket(i, worker=i, version=1 + i, seen=0, sample=0) for i in range(3)]
        >>> [ticket.number for ticket in policy.cancel(jobs, version=4)]
        [0, 1]

    References:
        Maranjyan, Tyurin, Richtarik, Ringmaster ASGD, 2025, arXiv 2501.16168, Algorithm 5 (read in public code).
    """

    name = "ringmaster-stop"

    def cancel(self, in_flight: Sequence[Ticket], version: int) -> Sequence[Ticket]:
        """Return the jobs whose delay is R or more."""
        return late(in_flight, version, self.R)


def _threshold(R: float) -> float:
    """Return R if it is a whole number of at least 1, or infinity."""
    return math.inf if isinstance(R, float) and math.inf == R else whole_number("R", R, least=1)
