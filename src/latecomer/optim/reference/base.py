"""What all reference implementations share: the history, and the sums over it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Received", "Twin", "projected", "weighted_mean"]


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


def projected(projection: Any, w: Tensor) -> Tensor:
    """Return the projection of w; without one, w itself."""
    if projection is None:
        return w
    moved = [w.clone()]
    result = projection(moved)
    return moved[0] if result is None else result[0]


def weighted_mean(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the mean of tensors with these weights."""
    total = sum((weight * t for weight, t in zip(weights, tensors, strict=True)), start=torch.zeros_like(tensors[0]))
    return total / sum(weights)
