"""References of the paper's methods, and of ours on top of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .base import Twin, projected, weighted_mean

__all__ = [
    "AnytimeTwin",
    "AsyncSGDTwin",
    "CatchUpAdamWTwin",
    "CatchUpTwin",
    "DelayAdaptiveTwin",
    "DelayFilteredTwin",
    "MomentumTwin",
    "Mu2Twin",
    "OrderedMomentumTwin",
    "OrderedMu2Twin",
]


class AsyncSGDTwin(Twin):
    """Eq. (4)."""

    def displacement(self, s: int) -> Tensor:
        return self.rate(s) * self.at(s).g


class DelayAdaptiveTwin(AsyncSGDTwin):
    """Eq. (3), or its short form ``lr·min(1, M/d)``."""

    def rate(self, s: int) -> float:
        o, d = self.at(s).options, self.at(s).delay
        if o.get("L") is None:
            return float(o["lr"] * (1.0 if d == 0 else min(1.0, o["workers"] / d)))
        by_delay = math.inf if d == 0 else 1 / (o["L"] * d)
        by_noise = math.inf if o["sigma"] == 0 else math.sqrt(o["delta"] / (o["L"] * o["sigma"] ** 2 * o["steps"]))
        return float(o["lr"] * min(by_delay, 1 / (o["L"] * o["workers"]), by_noise))


class DelayFilteredTwin(AsyncSGDTwin):
    """``x -= lr·g`` where ``d <= threshold``."""

    def rate(self, s: int) -> float:
        return super().rate(s) if self.at(s).delay <= self.at(s).options["threshold"] else 0.0


class MomentumTwin(Twin):
    """Eq. (6) unrolled: ``m_t = sum(beta_s · prod(1 - beta_m, m = s+1..t) · g_s, s = 1..t)`` by arrival."""

    def m(self, t: int) -> Tensor:
        """Return the momentum after arrival ``t``."""
        terms = (self.beta(s) * self.product(s, t) * self.at(s).g for s in range(1, t + 1))
        return sum(terms, start=torch.zeros_like(self.iterates[0]))

    def displacement(self, s: int) -> Tensor:
        return self.rate(s) * self.m(s)


class OrderedMomentumTwin(MomentumTwin):
    """Algorithm 1 unrolled: ``m_t = sum(beta_k · prod(1 - beta_m, m = k+1..t) · g_k)`` over the arrived versions k."""

    def counts(self, s: int) -> bool:
        """Whether arrival ``s`` counts: version 1 counts once."""
        return self.at(s).version > 1 or s == 1

    def m(self, t: int) -> Tensor:
        counted = [self.at(s) for s in range(1, t + 1) if self.counts(s)]
        terms = (self.beta(a.version) * self.product(a.version, t) * a.g for a in counted)
        return sum(terms, start=torch.zeros_like(self.iterates[0]))


class CatchUpTwin(OrderedMomentumTwin):
    """Algorithm 1, and at each arrival the displacement its gradient missed."""

    def displacement(self, s: int) -> Tensor:
        a, moved = self.at(s), super().displacement(s)
        if not self.counts(s):
            return moved
        missed = sum(self.rate(r) * self.beta(a.version) * self.product(a.version, r) for r in range(a.version, s))
        return moved + missed * a.g


class Mu2Twin(Twin):
    """Eq. (14) unrolled; ``x_{t+1} = sum of gamma·prod(1 - gamma)·w`` over all ``w``."""

    def weight(self, s: int, t: int) -> float:
        """Return the weight at ``t`` of what arrived at ``s``."""
        return self.product(s, t)

    def d(self, t: int) -> Tensor:
        """Return the STORM estimate after arrival ``t``."""
        total = torch.zeros_like(self.iterates[0])
        for s in range(1, t + 1):
            a = self.at(s)
            total += self.weight(s, t) * (a.g - (1.0 - self.beta(a.version)) * a.g_prev)
        return total

    def displacement(self, s: int) -> Tensor:
        return self.rate(s) * self.d(s)

    def next_iterate(self) -> Tensor:
        t = len(self.arrivals)
        gammas = [float(a.options["gamma"]) for a in self.arrivals]
        x = math.prod(1.0 - gamma for gamma in gammas) * self.iterates[0]
        for s in range(1, t + 1):
            x = x + gammas[s - 1] * math.prod(1.0 - gamma for gamma in gammas[s:]) * self.descended(s)
        return x


class OrderedMu2Twin(Mu2Twin):
    """Eq. (12) unrolled: the weight belongs to the version."""

    def weight(self, s: int, t: int) -> float:
        return self.product(self.at(s).version, t)


class AnytimeTwin(Twin):
    """Algorithm 2: ``q_t`` is the sum of all increments that have arrived and ``x_t`` the a-weighted mean of the w."""

    def __init__(self, x1: Tensor, **options: Any) -> None:
        super().__init__(x1, **options)
        self.w = [self.iterates[0]]

    def a(self, t: int) -> float:
        """Return the importance weight ``a_t``."""
        weights = self.options.get("weights")
        return 0.0 if t == 0 else float(t if weights is None else weights(t))

    def next_iterate(self) -> Tensor:
        t = len(self.arrivals)
        q = torch.zeros_like(self.iterates[0])
        for r in self.arrivals:
            q += self.a(r.version) * r.g - self.a(r.version - 1) * r.g_prev
        shrunk = (1.0 - self.rate(t) * self.a(t) * self.at(t).options["weight_decay"]) * self.w[-1]
        self.w.append(projected(self.options.get("projection"), shrunk - self.rate(t) * q))
        return weighted_mean(self.w, [self.a(s) for s in range(1, t + 2)])


class CatchUpAdamWTwin(OrderedMomentumTwin):
    """AdamW on the sums of Algorithm 1; a late gradient's missed displacement is added at its arrival."""

    def squares(self, t: int) -> tuple[Tensor, float]:
        """Return the ordered sum of squared gradients after arrival ``t``, and the weight present in it."""
        betas = [float(a.options["beta2"]) for a in self.arrivals]
        total, present = torch.zeros_like(self.iterates[0]), 0.0
        for s in (s for s in range(1, t + 1) if self.counts(s) and not self.at(s).zero):
            k = self.at(s).version
            weight = betas[k - 1] * math.prod(1.0 - b for b in betas[k:t])
            total, present = total + weight * self.at(s).g ** 2, present + weight
        return total, present

    def full_weight(self, t: int) -> float:
        """Return the weight of m if nothing were late."""
        return 1.0 - self.product(0, t)

    def displacement(self, s: int) -> Tensor:
        v, present = self.squares(s)
        if not present:
            return torch.zeros_like(v)
        moved = super().displacement(s) / self.full_weight(s)
        if self.counts(s):
            k = self.at(s).version
            steps = (self.rate(r) / self.full_weight(r) * self.beta(k) * self.product(k, r) for r in range(k, s))
            moved = moved + sum(steps) * self.at(s).g
        return moved / ((v / present).sqrt() + float(self.at(s).options.get("eps", 1e-8)))
