"""Reference implementations of the optimizers: they keep the whole history and evaluate the paper's sums from scratch.

Slow on purpose, and the oracle of the tests. Each works on one float64 tensor. Its hyper-parameters are entries of
`options` that may be changed between steps. Nothing here shares code with the optimizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "TWINS",
    "AnytimeTwin",
    "AsyncSGDTwin",
    "BalancedAdamWTwin",
    "BalancedCatchUpTwin",
    "BalancedMomentumTwin",
    "CatchUpAdamWTwin",
    "CatchUpTwin",
    "ClippedCatchUpTwin",
    "ClippedTwin",
    "DelayAdaptiveTwin",
    "DelayFilteredTwin",
    "LatenessClippedTwin",
    "MomentumTwin",
    "Mu2Twin",
    "OrderedMomentumTwin",
    "OrderedMu2Twin",
    "Received",
    "Twin",
    "anytime_gd",
    "anytime_storm",
    "storm",
    "synchronous_momentum",
]


@dataclass(frozen=True)
class Received:
    """One arrival with its gradients and the hyper-parameters at that time."""

    t: int
    version: int
    g: Tensor
    g_prev: Tensor
    options: dict[str, Any]
    zero: bool = False

    @property
    def delay(self) -> int:
        return self.t - self.version


class Twin:
    """Base of the reference implementations.

    ``x_{t+1} = x_1 - sum(displacement(s), s = 1..t)``, where decoupled weight decay multiplies everything before an
    update by ``1 - rate·weight_decay``.
    """

    worker: int = 0
    """Worker of the next gradient, for rules that depend on it."""

    def __init__(self, x1: Tensor, **options: Any) -> None:
        self.options: dict[str, Any] = {"weight_decay": 0.0, **options}
        self.arrivals: list[Received] = []
        self.iterates = [x1.detach().double().clone()]

    def step(self, g: Tensor, *, delay: int = 0, previous: Tensor | None = None, zero: bool = False) -> Tensor:
        """Receive a gradient and return the next iterate."""
        t = len(self.arrivals) + 1
        g = torch.zeros_like(self.iterates[0]) if zero else g.detach().double()
        g_prev = g if previous is None or zero or t == delay + 1 else previous.detach().double()
        self.arrivals.append(Received(t, t - delay, g, g_prev, dict(self.options), zero))
        self.iterates.append(self.next_iterate())
        return self.iterates[-1]

    def at(self, s: int) -> Received:
        """Return arrival ``s``, counted from 1."""
        return self.arrivals[s - 1]

    def rate(self, s: int) -> float:
        """Return the learning rate of update ``s``."""
        return float(self.at(s).options["lr"])

    def beta(self, s: int) -> float:
        """Return beta_s."""
        return float(self.at(s).options["beta"])

    def product(self, k: int, t: int) -> float:
        """Return ``prod(1 - beta_m, m = k+1..t)``."""
        return math.prod(1.0 - self.beta(m) for m in range(k + 1, t + 1))

    def decayed(self, s: int, t: int) -> float:
        """Return what weight decay leaves at ``t`` of something added at ``s``."""
        return math.prod(1.0 - self.rate(r) * float(self.at(r).options["weight_decay"]) for r in range(s + 1, t + 1))

    def displacement(self, s: int) -> Tensor:
        """Return what update ``s`` subtracts from the parameters."""
        raise TypeError(f"{type(self).__name__} has no displacement: subclass Twin and define it")

    def descended(self, t: int) -> Tensor:
        """Return the sequence that descends, after ``t`` updates."""
        steps = (self.decayed(s, t) * self.displacement(s) for s in range(1, t + 1))
        return sum(steps, start=torch.zeros_like(self.iterates[0])).neg() + self.decayed(0, t) * self.iterates[0]

    def next_iterate(self) -> Tensor:
        """Evaluate the newest iterate from the history."""
        return self.descended(len(self.arrivals))


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
        self.w.append(_projected(self.options.get("projection"), shrunk - self.rate(t) * q))
        return _weighted_mean(self.w, [self.a(s) for s in range(1, t + 2)])


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


TWINS: dict[str, type[Twin]] = {
    "async-sgd": AsyncSGDTwin,
    "delay-adaptive": DelayAdaptiveTwin,
    "delay-filtered": DelayFilteredTwin,
    "momentum": MomentumTwin,
    "mu2": Mu2Twin,
    "ordered-momentum": OrderedMomentumTwin,
    "catch-up": CatchUpTwin,
    "ordered-mu2": OrderedMu2Twin,
    "ordered-mu2-anytime": AnytimeTwin,
    "catch-up-adamw": CatchUpAdamWTwin,
    "clipped-catch-up": ClippedCatchUpTwin,
    "balanced-catch-up": BalancedCatchUpTwin,
    "balanced-momentum": BalancedMomentumTwin,
    "balanced-adamw": BalancedAdamWTwin,
}
"""The reference of every method in `latecomer.optim.METHODS`."""


# ---- oracles without delay, as the paper writes them: each calls grad(x, t) for the gradient of sample t at x -------

Oracle = Callable[[Tensor, int], Tensor]


def synchronous_momentum(x1: Tensor, grad: Oracle, steps: int, *, lr: float, beta: float) -> list[Tensor]:
    """Eq. (5): momentum on one worker; returns ``x_1..x_{steps+1}``."""
    x, m = [x1], torch.zeros_like(x1)
    for t in range(1, steps + 1):
        m = beta * grad(x[-1], t) + (1 - beta) * m
        x.append(x[-1] - lr * m)
    return x


def storm(x1: Tensor, grad: Oracle, steps: int, *, lr: float, beta: float) -> list[Tensor]:
    """STORM as Section 5.2 writes it, with a separate correction term; starts at ``d_1 = beta·g_1``."""
    x, d = [x1, x1], torch.zeros_like(x1)  # x_0 = x_1
    for t in range(1, steps + 1):
        g, g_prev = grad(x[-1], t), grad(x[-2], t)
        d = (1 - beta) * d + beta * g + (1 - beta) * (g - g_prev)
        x.append(x[-1] - lr * d)
    return x[1:]


def anytime_gd(
    x1: Tensor, grad: Oracle, steps: int, *, lr: float, a: Callable[[int], float] = float, projection: Any = None
) -> list[Tensor]:
    """Anytime-GD (Section 5.3): ``w = P(w - lr·a_t·g_t)``, x the weighted mean of the w."""
    return _anytime(x1, lambda x, t: a(t) * grad(x[-1], t), steps, lr, a, projection)


def anytime_storm(
    x1: Tensor, grad: Oracle, steps: int, *, lr: float, a: Callable[[int], float] = float, projection: Any = None
) -> list[Tensor]:
    """Anytime-GD on the STORM estimate ``a_t·d_t = a_{t-1}·d_{t-1} + a_t·g_t - a_{t-1}·g'`` (Section 5.4)."""
    ad = [torch.zeros_like(x1)]

    def direction(x: list[Tensor], t: int) -> Tensor:
        before = a(t - 1) * grad(x[-2], t) if t > 1 else torch.zeros_like(x1)
        ad.append(ad[-1] + a(t) * grad(x[-1], t) - before)
        return ad[-1]

    return _anytime(x1, direction, steps, lr, a, projection)


def _anytime(
    x1: Tensor,
    direction: Callable[[list[Tensor], int], Tensor],
    steps: int,
    lr: float,
    a: Callable[[int], float],
    projection: Any,
) -> list[Tensor]:
    x, w = [x1], [x1]
    for t in range(1, steps + 1):
        w.append(_projected(projection, w[-1] - lr * direction(x, t)))
        x.append(_weighted_mean(w, [a(s) for s in range(1, t + 2)]))
    return x


def _projected(projection: Any, w: Tensor) -> Tensor:
    if projection is None:
        return w
    moved = [w.clone()]
    result = projection(moved)
    return moved[0] if result is None else result[0]


def _weighted_mean(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = sum((weight * t for weight, t in zip(weights, tensors, strict=True)), start=torch.zeros_like(tensors[0]))
    return total / sum(weights)
