"""What a server tells an optimizer about a contribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Arrival"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a server knows about a contribution that it passes to an optimizer.

    Args:
        t: Index of the arrival, from 1; the optimizer checks it against its own count.
        version: Index of the iterate the contribution was computed at; the delay is ``t - version``.
        worker: The worker that sent it.
        workers: Current number of workers, the paper's M.
        point: The parameters it was computed at, for rules that use the stale point; in this machine's memory, which
            may be another device than the parameters'.
        zero: Counts as an arrival with weight zero; its values are never read.
        oldest: The oldest version still in flight; schedules of older versions can be dropped.
        largest_delay: Of a mean that a policy has collected, the largest delay of its terms: the mean itself has no
            delay.

    Examples:
        >>> Arrival(t=5, version=3).delay
        2
    """

    t: int
    version: int
    worker: int | None = None
    workers: int | None = None
    point: Sequence[Tensor] | None = None
    zero: bool = False
    oldest: int | None = None
    largest_delay: int | None = None

    @property
    def delay(self) -> int:
        """Number of updates between the iterate it was computed at and its arrival."""
        return self.t - self.version
