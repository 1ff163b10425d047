"""References of the methods that clip: each norm and scale is found from all gradients so far."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from .base import Received, Twin
from .paper import CatchUpAdamWTwin, CatchUpTwin, MomentumTwin, OrderedMomentumTwin

__all__ = [
    "BalancedAdamWTwin",
    "BalancedCatchUpTwin",
    "BalancedMomentumTwin",
    "ClippedCatchUpTwin",
    "ClippedTwin",
    "LatenessClippedTwin",
]


class ClippedTwin(Twin):
    """Clips gradients before the rule; recomputes the scale from all gradients so far."""

    def __init__(self, x1: Tensor, **options: Any) -> None:
        super().__init__(x1, **{"clip": 1.5, "clip_rate": 0.01, "clip_at": None, **options})
        self.raw: list[Received] = []
        self.workers: list[int] = []

    def step(self, g: Tensor, *, delay: int = 0, previous: Tensor | None = None, zero: bool = False) -> Tensor:
        """Clip the gradient, then apply the rule."""
        t = len(self.arrivals) + 1
        if not zero and (t == 1 or t > delay + 1 or not isinstance(self, OrderedMomentumTwin)):
            self.workers.append(self.worker)
            self.raw.append(Received(t, t - delay, g.detach().double(), g, dict(self.options)))
            g = self.raw[-1].g * self.factor()
        return super().step(g, delay=delay, previous=previous, zero=zero)

    def factor(self) -> float:
        """Return the clip factor of the newest gradient."""
        left, s = 1.0, 0.0
        for i, r in enumerate(self.raw):
            usual, o = self.usual(i), r.options
            norm = float(r.g.norm()) / usual
            most = o["clip_at"] / usual if o["clip_at"] else o["clip"] * s if s and self.may_clip(i) else math.inf
            left = min(1.0, most / norm) if norm else 1.0
            if norm:
                s = norm if not s else (1 - o["clip_rate"]) * s + o["clip_rate"] * min(norm, o["clip"] * s)
        return left

    def usual(self, index: int) -> float:
        """Return the usual size by which the norm is divided."""
        return 1.0

    def may_clip(self, index: int) -> bool:
        """Return whether clipping has begun."""
        return True


class LatenessClippedTwin(ClippedTwin):
    """Divides norms by what is usual for their lateness; with several workers set `worker` before a step."""

    def may_clip(self, index: int) -> bool:
        return any(r.delay for r in self.raw[: index + 1])

    def usual(self, index: int) -> float:
        ratios: dict[int, float] = {}
        visits: dict[int, int] = {}
        waits: dict[int, tuple[int, float]] = {}
        z = 0.0
        for i, r in enumerate(self.raw[: index + 1]):
            rate, wait, norm = 0.01, r.delay + 1, float(r.g.norm())
            jobs, mean = waits.get(self.workers[i], (0, 0.0))
            late = wait / mean if jobs else 1.0
            waits[self.workers[i]] = jobs + 1, mean + max(rate, 1 / (jobs + 1)) * (wait - mean)
            lateness = next((k for k in range(7) if late < 2 ** (k / 2)), 6)
            ratio = ratios.get(lateness, 1.0)
            if i == index:
                return ratio
            if not norm:
                continue
            if z:
                visits[lateness] = visits.get(lateness, 0) + 1
                share = max(rate, 1 / (visits[lateness] + 1))
                ratios[lateness] = (1 - share) * ratio + share * min(norm / z, 4 * ratio)
            z = norm if not z else (1 - rate) * z + rate * min(norm, 4 * ratio * z)
        return 1.0


class ClippedCatchUpTwin(ClippedTwin, CatchUpTwin):
    """Algorithm 1 with catch-up on clipped gradients."""


class BalancedCatchUpTwin(LatenessClippedTwin, CatchUpTwin):
    """Algorithm 1 with catch-up on gradients clipped by lateness."""


class BalancedMomentumTwin(LatenessClippedTwin, MomentumTwin):
    """Eq. (6) on gradients clipped by lateness."""


class BalancedAdamWTwin(LatenessClippedTwin, CatchUpAdamWTwin):
    """AdamW with catch-up on gradients clipped by lateness."""
