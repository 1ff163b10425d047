"""Textbook twins of the experimental methods, built as those of `latecomer.optim.reference`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .reference import AsyncSGDTwin, CatchUpTwin, MomentumTwin, OrderedMomentumTwin, Received, Twin

__all__ = [
    "CANDIDATES",
    "AdamWTwin",
    "CatchUpDebtTwin",
    "ClippedAsyncSGDTwin",
    "ClippedCatchUpTwin",
    "ClippedMomentumTwin",
    "ClippedOrderedFilledTwin",
    "ClippedOrderedMomentumTwin",
    "ClippedTwin",
    "OrderedFilledTwin",
]


class ClippedTwin(Twin):
    """Clips what arrives before the rule beside it: goes through all gradients so far, one after the other.

    The gradients are one flat vector; ``sizes`` says where to cut it for a scale per tensor.

    Examples:
        >>> twin = ClippedAsyncSGDTwin(torch.zeros(1), lr=1.0, clip=2.0, clip_rate=0.5, clip_scale="all", feedback=0.0)
        >>> [twin.step(torch.tensor([g])).item() for g in (1.0, 10.0, 3.0)]
        [-1.0, -3.0, -6.0]
    """

    def __init__(self, x1: Tensor, **options: Any) -> None:
        defaults = {"clip": 2.0, "clip_rate": 0.01, "clip_scale": "all", "clip_norm": None, "feedback": 0.0}
        super().__init__(x1, **{**defaults, **options})
        self.raw: list[Received] = []

    def step(self, g: Tensor, *, delay: int = 0, previous: Tensor | None = None, zero: bool = False) -> Tensor:
        """Clip, and let the rule receive it."""
        t = len(self.arrivals) + 1
        if not zero and (t == 1 or t > delay + 1 or not isinstance(self, OrderedMomentumTwin)):
            self.raw.append(Received(t, t - delay, g.detach().double(), g, dict(self.options)))
            g = self.clipped()
        return super().step(g, delay=delay, previous=previous, zero=zero)

    def clipped(self) -> Tensor:
        """Return what is left of the newest gradient."""
        scales: dict[tuple[str, int], float] = {}
        u = e = torch.zeros_like(self.iterates[0])
        for r in self.raw:
            o, by_tensor = r.options, r.options["clip_scale"] == "tensor"
            place = ("delay", len(f"{r.delay:b}") if r.delay else 0) if o["clip_scale"] == "delay" else ("all", 0)
            usual = self.usual(self.raw.index(r)) if o["clip_scale"] == "lateness" else 1.0
            sizes = o["sizes"] if by_tensor and o.get("sizes") else [r.g.numel()]
            u = r.g + o["feedback"] * e
            parts = []
            for i, (g_i, u_i) in enumerate(zip(r.g.split(sizes), u.split(sizes), strict=True)):  # type: ignore[no-untyped-call]
                key = ("tensor", i) if by_tensor else place
                norm, s = float(g_i.norm()) / usual, scales.get(key, 0.0)
                most = o["clip_norm"] or (o["clip"] * s * usual if s else math.inf)
                if o["clip_scale"] == "lateness" and not any(q.delay for q in self.raw[: self.raw.index(r) + 1]):
                    most = math.inf
                scales[key] = norm if not s else (1 - o["clip_rate"]) * s + o["clip_rate"] * min(norm, o["clip"] * s)
                parts.append(u_i * min(1.0, most / float(u_i.norm())) if u_i.any() else u_i)
            e, u = u - torch.cat(parts), torch.cat(parts)
        return u

    def usual(self, index: int) -> float:
        """Return how large gradients as late as this one were before it, over all gradients; all are one worker's."""
        ratios: dict[int, float] = {}
        visits: dict[int, int] = {}
        z = mean = 0.0
        for i, r in enumerate(self.raw[: index + 1]):
            rate, wait, norm = 0.01, r.delay + 1, float(r.g.norm())
            late = wait / mean if i else 1.0
            mean += max(rate, 1 / (i + 1)) * (wait - mean)
            place = next((k for k in range(7) if late < 2 ** (k / 2)), 6)
            ratio = ratios.get(place, 1.0)
            if i == index:
                return ratio
            if z:
                visits[place] = visits.get(place, 0) + 1
                share = max(rate, 1 / (visits[place] + 1))
                ratios[place] = (1 - share) * ratio + share * min(norm / z, 4 * ratio)
            z = norm if not z else (1 - rate) * z + rate * min(norm, 4 * ratio * z)
        return 1.0


class ClippedAsyncSGDTwin(ClippedTwin, AsyncSGDTwin):
    """Eq. (4) on clipped gradients."""


class ClippedMomentumTwin(ClippedTwin, MomentumTwin):
    """Eq. (6) on clipped gradients."""


class ClippedOrderedMomentumTwin(ClippedTwin, OrderedMomentumTwin):
    """Algorithm 1 on clipped gradients."""


class ClippedCatchUpTwin(ClippedTwin, CatchUpTwin):
    """Algorithm 1 with catch-up on clipped gradients."""


def missed(twin: Twin, s: int) -> float:
    """Return the weight that arrival ``s`` missed, ``sum(beta_k · prod(1 - beta_m, m = k+1..r), r = k..s-1)``."""
    k = twin.at(s).version
    return sum(twin.beta(k) * twin.product(k, r) for r in range(k, s))


class CatchUpDebtTwin(OrderedMomentumTwin):
    """Algorithm 1, and at each update the instalments of all late gradients so far."""

    def displacement(self, s: int) -> Tensor:
        total = super().displacement(s)
        rho = [float(a.options["rho"]) for a in self.arrivals]
        for r in range(1, s + 1):
            if self.counts(r):
                k = self.at(r).version
                owed = sum(self.rate(q) * self.beta(k) * self.product(k, q) for q in range(k, r))
                total = total + rho[s - 1] * math.prod(1.0 - share for share in rho[r:s]) * owed * self.at(r).g
        return total


class OrderedFilledTwin(OrderedMomentumTwin):
    """Algorithm 1 with the weighted mean of late gradients in every place that is in flight."""

    def h(self, t: int) -> Tensor:
        """Return the mean of the gradients up to ``t``, each weighted by what it missed and by its age."""
        total, weights = torch.zeros_like(self.iterates[0]), 0.0
        for s in range(1, t + 1):
            if self.counts(s) and self.at(s).delay and not self.at(s).zero:
                age = math.prod(1.0 - float(a.options["fill_rate"]) for a in self.arrivals[s:t])
                weight = float(self.at(s).options["fill_rate"]) * age * missed(self, s)
                total, weights = total + weight * self.at(s).g, weights + weight
        return total / weights if weights else total

    def phi(self, t: int) -> float:
        """Return the weight of the versions up to ``t`` that have not arrived."""
        flying = set(range(1, t + 1)) - {self.at(s).version for s in range(1, t + 1)}
        return sum(self.beta(k) * self.product(k, t) for k in flying)

    def displacement(self, s: int) -> Tensor:
        return super().displacement(s) + self.rate(s) * self.phi(s) * self.h(s)


class ClippedOrderedFilledTwin(ClippedTwin, OrderedFilledTwin):
    """The same on clipped gradients."""


class AdamWTwin(OrderedMomentumTwin):
    """AdamW on the sums of Algorithm 1; with catch-up, what was missed is added at the arrival."""

    def weight(self, s: int, t: int, beta: str) -> float:
        """Return the ordered weight at ``t`` of arrival ``s``."""
        k = self.at(s).version
        betas = [float(a.options[beta]) for a in self.arrivals]
        return betas[k - 1] * math.prod(1.0 - b for b in betas[k:t])

    def moment(self, t: int, beta: str, power: int) -> tuple[Tensor, float]:
        """Return the ordered sum of powers of the gradients after arrival ``t``, and the weight present in it."""
        counted = [s for s in range(1, t + 1) if self.counts(s) and not self.at(s).zero]
        weights = [self.weight(s, t, beta) for s in counted]
        terms = (w * self.at(s).g ** power for w, s in zip(weights, counted, strict=True))
        return sum(terms, start=torch.zeros_like(self.iterates[0])), sum(weights)

    def whole(self, t: int) -> float:
        """Return the weight that m would have if nothing were late."""
        return 1.0 - self.product(0, t)

    def displacement(self, s: int) -> Tensor:
        a, catch_up = self.at(s), bool(self.at(s).options.get("catch_up", False))
        m, present = self.moment(s, "beta", 1)
        v, present2 = self.moment(s, "beta2", 2)
        divisor = self.whole(s) if catch_up else present
        if not (divisor and present2):
            return torch.zeros_like(m)
        moved = self.rate(s) * m / divisor
        if catch_up and self.counts(s):
            k = a.version
            steps = (self.rate(r) / self.whole(r) * self.beta(k) * self.product(k, r) for r in range(k, s))
            moved = moved + sum(steps) * a.g
        return moved / ((v / present2).sqrt() + float(a.options.get("eps", 1e-8)))


class AdamWCatchUpTwin(AdamWTwin):
    """AdamW with catch-up."""

    def __init__(self, x1: Tensor, **options: Any) -> None:
        super().__init__(x1, **{**options, "catch_up": True})


class FallingTwin(OrderedMomentumTwin):
    """Algorithm 1 with a beta that falls."""

    def step(self, g: Tensor, *, delay: int = 0, previous: Tensor | None = None, zero: bool = False) -> Tensor:
        """Set beta, and let Algorithm 1 receive it."""
        self.first = getattr(self, "first", self.options["beta"])
        t, power = len(self.arrivals) + 1, self.options.get("power", 0.5)
        self.options["beta"] = min(1.0, self.first * (self.options.get("since", 100) / t) ** power)
        return super().step(g, delay=delay, previous=previous, zero=zero)


CANDIDATES: dict[str, type[Twin]] = {
    "ordered-falling": FallingTwin,
    "clipped-async-sgd": ClippedAsyncSGDTwin,
    "clipped-momentum": ClippedMomentumTwin,
    "clipped-ordered-momentum": ClippedOrderedMomentumTwin,
    "clipped-catch-up": ClippedCatchUpTwin,
    "catch-up-debt": CatchUpDebtTwin,
    "ordered-filled": OrderedFilledTwin,
    "clipped-ordered-filled": ClippedOrderedFilledTwin,
    "ordered-adamw": AdamWTwin,
    "ordered-adamw-catch-up": AdamWCatchUpTwin,
}
"""The twin of every experimental method in `latecomer.optim.METHODS`."""
