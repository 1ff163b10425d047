"""The schedule of a recorded run."""

from __future__ import annotations

import os

from ..policy import PolicyLike, as_policy
from ..trace import Trace
from .base import DelayModel

__all__ = ["Recorded"]


class Recorded(DelayModel):
    """The schedule of a recorded trace, unchanged.

    Args:
        trace: A trace or the path of one.

    Examples:
        >>> import latecomer as lc
        >>> recorded = lc.delays.Uniform(workers=3).trace(steps=50, seed=1)
        >>> Recorded(recorded).trace(steps=20) == recorded.head(20)
        True
    """

    def __init__(self, trace: Trace | str | os.PathLike[str]) -> None:
        self.recorded = trace if isinstance(trace, Trace) else Trace.load(trace)
        self.workers = self.recorded.header.workers

    def trace(self, steps: int | None = None, seed: int | None = None, policy: PolicyLike | None = None) -> Trace:
        """Return the first ``steps`` arrivals, all by default; only the recorded seed and policy are accepted."""
        own = self.recorded.header.seed
        if seed not in (None, own):
            raise ValueError(f"Invalid seed value: {seed} (the recorded schedule has seed {own})")
        made = self.recorded.header.policy
        if policy is not None and as_policy(policy, self.workers).name != made:
            raise ValueError(f"Invalid policy: {policy!r} (the recorded schedule was made with policy {made!r})")
        return self.recorded if steps is None else self.recorded.head(steps)
