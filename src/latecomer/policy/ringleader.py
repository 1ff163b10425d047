"""Ringleader: rounds in which every worker makes one update, with a table of everybody's gradients."""

from __future__ import annotations

from .._util.checks import whole_number
from .base import Decision, Policy, Ticket

__all__ = ["Ringleader"]

_SETS = ("served", "present", "following")
"""Who has made its update in this round, who is in the table, and who in that of the next round.

Each is a set of workers as the digits of a number, one bit per worker: a server copies the state of a policy at every
arrival, and text is not copied.
"""


class Ringleader(Policy):
    """Rounds of one update per worker, each made when the worker arrives and everybody is in the table.

    At first contributions are held, until every worker has sent at least one. From then on each worker that arrives
    makes an update, once per round; what else it sends is held for the next round. Its rule,
    `latecomer.optim.Ringleader`, keeps the table.

    Args:
        workers: Number of workers. What those send that join later is dropped; one that leaves for good ends the
            rounds.

    Examples:
        >>> policy = Ringleader(workers=2)
        >>> jobs = [Ticket(i, worker, version=1, seen=0, sample=0) for i, worker in enumerate((0, 0, 1, 1, 0))]
        >>> [policy.receive(job, delay=0).action for job in jobs]
        ['hold', 'hold', 'flush', 'hold', 'flush']

    References:
        Maranjyan, Richtarik, Ringleader ASGD, 2025, arXiv 2509.22860 (formula and phases read in public code, with one
        difference: there a worker that does not make an update starts again at the newest parameters. The published
        formula has one delay per worker, as here).
    """

    name = "ringleader"
    _hold, _flush, _drop = Decision("hold"), Decision("flush"), Decision("drop")

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.workers = whole_number("workers", workers, least=1)

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Hold it, or flush if its worker's turn has come."""
        if ticket.worker >= self.workers:
            return self._drop
        bit, everybody = 1 << ticket.worker, (1 << self.workers) - 1
        served, present, following = (int(self.state.get(key, "0"), 16) for key in _SETS)
        decision = self._hold
        if served & bit:
            following |= bit
        else:
            present |= bit
            if present == everybody:
                decision, served = self._flush, served | bit
                if served == everybody:  # the round is over
                    served, present, following = 0, following, 0
        self.state.update(zip(_SETS, (f"{found:x}" for found in (served, present, following)), strict=True))
        return decision
