"""Policies that collect contributions for one update."""

from __future__ import annotations

from .base import Decision, Policy, Ticket

__all__ = ["Synchronous"]


class Synchronous(Policy):
    """Synchronous data-parallel training: one update with the mean of ``workers`` contributions at one iterate.

    Args:
        workers: Number of contributions per update.

    Examples:
        >>> policy = Synchronous(2)
        >>> [policy.receive(Ticket(i, worker=i, version=1, seen=0, sample=0), delay=0).action for i in range(2)]
        ['hold', 'flush']
        >>> policy.may_start(in_flight=1), policy.may_start(in_flight=2)
        (True, False)
    """

    name = "synchronous"
    _hold, _flush = Decision("hold"), Decision("flush")

    def __init__(self, workers: int) -> None:
        super().__init__()
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            raise ValueError(f"Invalid workers value: {workers!r} (expected a whole number, at least 1)")
        self.workers = workers

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Hold it, or flush if it is the last one of its round."""
        held = (int(self.state.get("held", 0)) + 1) % self.workers
        self.state["held"] = held
        return self._hold if held else self._flush

    def may_start(self, in_flight: int) -> bool:
        """Return whether this round needs more contributions."""
        return int(self.state.get("held", 0)) + in_flight < self.workers
