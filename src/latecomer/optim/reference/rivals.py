"""References of the field's other methods: every update is made again from the first, as the publication writes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .base import Twin, projected, weighted_mean
from .paper import AsyncSGDTwin, CatchUpAdamWTwin, OrderedMomentumTwin

__all__ = [
    "ASAPTwin",
    "AnytimeSGDTwin",
    "ClippedSGDTwin",
    "DCASGDTwin",
    "DanaZeroTwin",
    "FADASTwin",
    "NormalisedMomentumTwin",
    "OrMoDATwin",
    "OrMoTwin",
    "OrderedAdamWTwin",
    "PickyTwin",
    "RingleaderTwin",
    "StalenessAwareTwin",
    "async_minibatch",
    "fedbuff",
    "rennala",
    "ringleader",
    "ringmaster",
    "ringmaster_stop",
    "synchronous",
]


class StalenessAwareTwin(AsyncSGDTwin):
    """``x -= lr/max(1, d)·g``."""

    def rate(self, s: int) -> float:
        return super().rate(s) / max(1, self.at(s).delay)

    def decayed(self, s: int, t: int) -> float:
        return math.prod(1.0 - self.rate(r) * float(self.at(r).options["weight_decay"]) for r in range(s + 1, t + 1))


class ASAPTwin(AsyncSGDTwin):
    """``x -= lr·(1 + A·(1 - 2F(d)))·g``, F counted from scratch."""

    def rate(self, s: int) -> float:
        delays = [a.delay for a in self.arrivals[:s]]
        share = sum(d <= self.at(s).delay for d in delays) / len(delays)
        return super().rate(s) * (1.0 + float(self.at(s).options.get("A", 0.5)) * (1.0 - 2.0 * share))


class ClippedSGDTwin(AsyncSGDTwin):
    """``x -= lr·g·min(1, c/‖g‖)``."""

    def rate(self, s: int) -> float:
        length = float(self.at(s).g.norm())
        return super().rate(s) * (min(1.0, self.at(s).options["clip_at"] / length) if length else 1.0)


class _Shrinking(Twin):
    """Twins that go through all arrivals again; each begins with the decay."""

    def again(self) -> Tensor:
        """Return the newest iterate."""
        raise TypeError(f"{type(self).__name__} has no rule")

    def next_iterate(self) -> Tensor:
        return self.again()

    def shrunk(self, x: Tensor, s: int) -> Tensor:
        """Return x after the decay of arrival ``s``."""
        return (1.0 - self.rate(s) * float(self.at(s).options["weight_decay"])) * x


class PickyTwin(_Shrinking):
    """``x -= lr·g`` if ``‖x_t - x_{t-d}‖ <= radius``."""

    def again(self) -> Tensor:
        t, x = len(self.arrivals), self.iterates[-1]
        a = self.at(t)
        near = float((x - self.iterates[a.version - 1]).norm()) <= a.options["radius"]
        return self.shrunk(x, t) - (self.rate(t) * a.g if near else 0.0)


class DCASGDTwin(_Shrinking):
    """``g + lam·g⊙g⊙(x_t - x_{t-d})``, with a constant or an adaptive lam."""

    def again(self) -> Tensor:
        t, x = len(self.arrivals), self.iterates[-1]
        a = self.at(t)
        if a.zero:
            return self.shrunk(x, t)
        lam: Any = float(a.options.get("lam", 0.04))
        if a.options.get("adaptive"):
            counted = [b for b in self.arrivals if not b.zero]
            m = float(a.options.get("mean_decay", 0.95))
            weights = [(1 - m) * m ** (len(counted) - 1 - i) for i in range(len(counted))]
            v = sum((w * b.g**2 for w, b in zip(weights, counted, strict=True)), start=torch.zeros_like(x))
            lam = lam / torch.sqrt(v + 1e-7)
        corrected: Tensor = a.g + lam * a.g * a.g * (x - self.iterates[a.version - 1])
        return self.shrunk(x, t) - self.rate(t) * corrected


class OrMoTwin(_Shrinking):
    """The publication's two lines per arrival, with buckets ``ceil((k-1)/M)``."""

    def step_rate(self, s: int) -> float:
        """Return the learning rate of a gradient."""
        return self.rate(s)

    def workers(self) -> int:
        """Return M."""
        return int(self.options.get("workers") or 1)

    def again(self) -> Tensor:
        x, u = self.iterates[0], torch.zeros_like(self.iterates[0])
        bucket = [math.ceil((k - 1) / self.workers()) for k in range(len(self.arrivals) + 2)]
        for a in self.arrivals:
            keep = 1.0 - self.beta(a.t)
            x = self.shrunk(x, a.t)
            if a.t > 1 and bucket[a.t] > bucket[a.t - 1]:
                x, u = x - keep * u, keep * u
            e = bucket[a.t] - bucket[a.version]
            u = u + keep**e * self.step_rate(a.t) * a.g
            x = x - sum(keep**j for j in range(e + 1)) * self.step_rate(a.t) * a.g
        return x


class OrMoDATwin(OrMoTwin):
    """OrMo with ``lr`` if ``d <= 2M``, else ``min(lr, 1/(4·L·d))``."""

    def step_rate(self, s: int) -> float:
        d = self.at(s).delay
        return self.rate(s) if d <= 2 * self.workers() else min(self.rate(s), 1 / (4 * self.at(s).options["L"] * d))


class DanaZeroTwin(_Shrinking):
    """The publication's theta and V: ``v_i = B·v_i + g; theta -= lr·v_i``, hand out ``theta - lr·B·V``.

    For constant lr and beta. Where they change, or weights decay, the form in the handed out parameters is the rule.
    """

    def __init__(self, x1: Tensor, **options: Any) -> None:
        super().__init__(x1, **options)
        self.workers: list[int] = []

    def step(self, g: Tensor, *, delay: int = 0, previous: Tensor | None = None, zero: bool = False) -> Tensor:
        """Receive a gradient of `worker`."""
        self.workers.append(self.worker)
        return super().step(g, delay=delay, previous=previous, zero=zero)

    def again(self) -> Tensor:
        settings = [(a.options["lr"], a.options["beta"], a.options["weight_decay"]) for a in self.arrivals]
        if len(set(settings)) == 1 and not settings[0][2]:
            return self._literal(*settings[0][:2])
        x, v = self.iterates[0], {worker: torch.zeros_like(self.iterates[0]) for worker in self.workers}
        for a, worker in zip(self.arrivals, self.workers, strict=True):
            x = self.shrunk(x, a.t)
            if not a.zero:
                v[worker] = (1 - self.beta(a.t)) * v[worker] + a.g
                x = x - self.rate(a.t) * (a.g + (1 - self.beta(a.t)) * v[worker])
        return x

    def _literal(self, lr: float, beta: float) -> Tensor:
        theta, v = self.iterates[0], {worker: torch.zeros_like(self.iterates[0]) for worker in self.workers}
        for a, worker in zip(self.arrivals, self.workers, strict=True):
            if not a.zero:
                v[worker] = (1 - beta) * v[worker] + a.g
                theta = theta - lr * v[worker]
        return theta - lr * (1 - beta) * sum(v.values(), start=torch.zeros_like(theta))


class FADASTwin(_Shrinking):
    """AMSGrad without correction; all moments as sums over the past."""

    def again(self) -> Tensor:
        x, largest = self.iterates[0], torch.zeros_like(self.iterates[0])
        for a in self.arrivals:
            m, v = torch.zeros_like(x), torch.zeros_like(x)
            beta2 = [float(b.options.get("beta2", 0.01)) for b in self.arrivals]
            for s in range(1, a.t + 1):
                m = m + self.beta(s) * self.product(s, a.t) * self.at(s).g
                v = v + beta2[s - 1] * math.prod(1.0 - b for b in beta2[s : a.t]) * self.at(s).g ** 2
            largest = torch.maximum(largest, v)
            threshold = a.options.get("threshold")
            late = threshold is not None and a.delay > threshold
            rate = min(self.rate(a.t), 1 / a.delay) if late else self.rate(a.t)
            x = self.shrunk(x, a.t) - rate * m / (largest.sqrt() + float(a.options.get("eps", 1e-8)))
        return x


class AnytimeSGDTwin(Twin):
    """``w = P(w - lr·a_t·g)``, x the a-weighted mean of the w."""

    def __init__(self, x1: Tensor, **options: Any) -> None:
        super().__init__(x1, **options)
        self.w = [self.iterates[0]]

    def next_iterate(self) -> Tensor:
        t = len(self.arrivals)
        rate = self.rate(t) * t
        w = (1.0 - rate * self.at(t).options["weight_decay"]) * self.w[-1] - rate * self.at(t).g
        self.w.append(projected(self.options.get("projection"), w))
        return weighted_mean(self.w, [float(s) for s in range(1, t + 2)])


class NormalisedMomentumTwin(_Shrinking):
    """``m = (1-beta)m + beta·g; x -= lr·m/‖m‖``, with the Euclidean oracle."""

    def again(self) -> Tensor:
        x = self.iterates[0]
        for a in self.arrivals:
            m = sum(
                (self.beta(s) * self.product(s, a.t) * self.at(s).g for s in range(1, a.t + 1)),
                start=torch.zeros_like(x),
            )
            x = self.shrunk(x, a.t)
            if float(m.norm()):
                x = x - self.rate(a.t) * m / m.norm()
        return x


class OrderedAdamWTwin(CatchUpAdamWTwin):
    """AdamW on the sums of Algorithm 1, each divided by the weight present in it."""

    def displacement(self, s: int) -> Tensor:
        v, present = self.squares(s)
        weights = [
            self.beta(a.version) * self.product(a.version, s)
            for a in self.arrivals[:s]
            if self.counts(a.t) and not a.zero
        ]
        if not present or not sum(weights):
            return torch.zeros_like(v)
        moved = OrderedMomentumTwin.displacement(self, s) / sum(weights)
        return moved / ((v / present).sqrt() + float(self.at(s).options.get("eps", 1e-8)))


class RingleaderTwin(AsyncSGDTwin):
    """In a loop of one's own every gradient is an update of the only worker: SGD. `ringleader` has the rounds."""


# ---- policies, as the publications write them: gradients of one tensor, delays in updates ---------------------------

Gradients = Callable[[Tensor, int], Tensor]
"""Gradient of the n-th sample at a point."""


def _play(
    x1: Tensor, order: Sequence[int], grad: Gradients, receive: Callable[[int, Tensor, int, Tensor], Tensor]
) -> Tensor:
    """Let workers arrive in this order; each starts again from what ``receive`` makes of x."""
    x, version = x1.double(), 1
    point = dict.fromkeys(order, (x, 1))
    for n, worker in enumerate(order):
        at, since = point[worker]
        new = receive(worker, grad(at, n), version - since, x)
        version += new is not x
        x = new
        point[worker] = x, version
    return x


def ringmaster(x1: Tensor, order: Sequence[int], grad: Gradients, *, lr: float, R: float) -> Tensor:
    """Ringmaster without stops, Algorithm 4: a gradient counts if its delay is below R."""
    return _play(x1, order, grad, lambda worker, g, delay, x: x - lr * g if delay < R else x)


def ringmaster_stop(
    x1: Tensor, durations: Sequence[Sequence[float]], grad: Gradients, *, lr: float, R: float, updates: int, S: int = 1
) -> tuple[Tensor, float, int]:
    """Ringmaster with stops, Algorithm 5: calculations whose delay reaches R stop, and start again at the newest x.

    With ``R=1`` and updates of the mean of S gradients this is Rennala with stops.

    Jobs are numbered as they start, at one time by worker; the n-th sample is that of job n. Of two jobs that end at
    one time the older one arrives first.

    Args:
        x1: The first iterate.
        durations: How long the jobs of each worker take, one after the other, and again from the first.
        grad: Gradient of a sample at a point.
        lr: Learning rate.
        R: The threshold.
        updates: Number of updates.
        S: Number of gradients per update.

    Returns:
        The last iterate, the time of the last update, and how many calculations were stopped.
    """
    x, now, started, stopped = x1.double(), 0.0, 0, 0
    held: list[Tensor] = []
    begun = [0] * len(durations)  # jobs that each worker has started
    jobs: dict[int, tuple[float, int, Tensor, int]] = {}  # by worker: end, number, point, updates before it
    k = 0
    while k < updates:
        for worker, own in enumerate(durations):
            if worker not in jobs:
                jobs[worker] = now + own[begun[worker] % len(own)], started, x, k
                begun[worker], started = begun[worker] + 1, started + 1
        now, number, at, _ = jobs.pop(min(jobs, key=lambda worker: jobs[worker][:2]))
        held.append(grad(at, number))
        if len(held) < S:
            continue
        x, held, k = x - lr * sum(held) / S, [], k + 1
        for worker in [worker for worker, (*_, since) in jobs.items() if k - since >= R]:
            del jobs[worker]
            stopped += 1
    return x, now, stopped


def rennala(x1: Tensor, order: Sequence[int], grad: Gradients, *, lr: float, S: int) -> Tensor:
    """Rennala: the mean of S gradients of the newest iterate."""
    return async_minibatch(x1, order, grad, lr=lr, beta=1.0, B=S)


def async_minibatch(x1: Tensor, order: Sequence[int], grad: Gradients, *, lr: float, beta: float, B: int) -> Tensor:
    """Asynchronous mini-batches around momentum: a step with the mean of B gradients of the newest iterate."""
    batch: list[Tensor] = []
    m = torch.zeros_like(x1.double())

    def receive(worker: int, g: Tensor, delay: int, x: Tensor) -> Tensor:
        if delay == 0:
            batch.append(g)
        if len(batch) < B:
            return x
        m.mul_(1 - beta).add_(sum(batch, start=torch.zeros_like(x)) / B, alpha=beta)
        batch.clear()
        return x - lr * m

    return _play(x1, order, grad, receive)


def fedbuff(x1: Tensor, order: Sequence[int], grad: Gradients, *, lr: float, K: int, flat: bool = False) -> Tensor:
    """FedBuff: ``x -= lr·sum(s(d)·g)/K`` with every K-th arrival."""
    batch: list[Tensor] = []

    def receive(worker: int, g: Tensor, delay: int, x: Tensor) -> Tensor:
        batch.append(g if flat else g / math.sqrt(1 + delay))
        if len(batch) < K:
            return x
        mean = sum(batch, start=torch.zeros_like(x)) / K
        batch.clear()
        return x - lr * mean

    return _play(x1, order, grad, receive)


def synchronous(x1: Tensor, rounds: int, grad: Gradients, *, lr: float, workers: int) -> Tensor:
    """Mini-batch SGD: every update with the mean of M gradients."""
    x = x1.double()
    for r in range(rounds):
        x = x - lr * sum(grad(x, r * workers + i) for i in range(workers)) / workers
    return x


def ringleader(x1: Tensor, order: Sequence[int], grad: Gradients, *, lr: float, workers: int) -> tuple[Tensor, int]:
    """Ringleader in its two phases; returns the last iterate and the largest delay of a gradient in an update."""
    x, k, largest = x1.double(), 0, 0
    point: dict[int, tuple[Tensor, int]] = dict.fromkeys(range(workers), (x, 0))
    table: dict[int, list[tuple[Tensor, int]]] = {worker: [] for worker in range(workers)}
    following: dict[int, list[tuple[Tensor, int]]] = {worker: [] for worker in range(workers)}
    waiting = set(range(workers))  # those that have not made their update in this round
    for n, worker in enumerate(order):
        at, since = point[worker]
        g = grad(at, n)
        if worker not in waiting:
            following[worker].append((g, since))
            continue
        table[worker].append((g, since))
        if not all(table.values()):  # phase 1
            continue
        largest = max(largest, *(k - own for rows in table.values() for _, own in rows))
        means = [sum((row for row, _ in rows), start=torch.zeros_like(x)) / len(rows) for rows in table.values()]
        x, k = x - lr * sum(means, start=torch.zeros_like(x)) / workers, k + 1
        point[worker] = x, k
        waiting.discard(worker)
        if not waiting:
            table, following = following, {other: [] for other in range(workers)}
            waiting = set(range(workers))
    return x, largest
