"""A method of one's own in a file, as a user would write it; tests copy it into a folder of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import latecomer as lc


class Halved(lc.optim.AsyncOptimizer):
    """Halve what is late.

    ``x -= lr·g·2^(-d/half)``

    Args:
        params: Parameters.
        lr: Learning rate.
        half: Delay at which a gradient counts half.
    """

    def __init__(self, params: Any, lr: float, half: float = 4.0) -> None:
        super().__init__(params, {"half": half}, lr=lr)

    def _update(self, group: Any, params: Any, grads: Any, arrival: Any) -> None:
        if not arrival.zero:
            for p, g in zip(params, grads, strict=True):
                p.sub_(g, alpha=group["lr"] * 0.5 ** (arrival.delay / group["half"]))


class Fresh(lc.policy.Policy):
    """Cancels jobs that are older than ``oldest`` updates."""

    name = "fresh"

    def __init__(self, oldest: int = 3) -> None:
        super().__init__()
        self.oldest = oldest

    def receive(self, ticket: Any, delay: int) -> Any:
        return lc.policy.Decision("apply")

    def cancel(self, in_flight: Sequence[Any], version: int) -> list[Any]:
        return [ticket for ticket in in_flight if version - ticket.version > self.oldest]


def influence(delay: int, half: float = 4.0) -> float:
    """2^(-delay/half)."""
    return float(0.5 ** (delay / half))


lc.optim.register("halved", Halved, influence=influence, source="here")
lc.optim.register("fresh-halved", Halved, policy=Fresh)
