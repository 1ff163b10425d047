"""The reference of the rule without a learning rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import Twin, weighted_mean

__all__ = ["RateFreeTwin"]


class RateFreeTwin(Twin):
    """Schedule-free AdamW with an estimated step: every sum is evaluated over the whole history."""

    at_query = False
    """Whether gradients are computed at y, as workers do; else at x, as in a plain loop."""

    def __init__(self, x1: Tensor, **options: float) -> None:
        super().__init__(x1, **{"lr": 1.0, "beta": 0.2, "beta2": 0.001, "eps": 1e-8, **options})
        self.z = [self.iterates[0]]
        self.queries = [self.iterates[0]]
        self.distances: list[float] = []

    def counting(self, t: int) -> list[int]:
        """Return the arrivals up to ``t`` that have a gradient."""
        return [i for i in range(1, t + 1) if not self.at(i).zero]

    def weights(self, t: int, power: float) -> dict[int, float]:
        """Return the weight in a running mean, after arrival ``t``, of every arrival with a gradient."""
        keep = {i: (1.0 - float(self.at(i).options["beta2"])) ** power for i in self.counting(t)}
        return {i: (1.0 - keep[i]) * math.prod(keep[j] for j in keep if j > i) for i in keep}

    def point(self, version: int) -> Tensor:
        return (self.queries if self.at_query else self.iterates)[version - 1]

    def distance(self, t: int) -> float:
        """Return D after arrival ``t``, from the D before each arrival up to it."""
        x1, counting = self.iterates[0], self.counting(t)
        first = 1e-6 + 0.05 * float(x1.square().mean().sqrt())
        if not counting or self.at(t).zero:
            return self.distances[-1] if self.distances else 0.0
        before = {i: (self.distances[i - 2] if i > 1 else 0.0) or first for i in counting}
        weight = {i: w * before[i] for i, w in self.weights(t, 0.5).items()}
        top = sum(weight[i] * float(self.at(i).g @ (x1 - self.point(self.at(i).version))) for i in counting)
        s = sum((weight[i] * self.at(i).g for i in counting), start=torch.zeros_like(x1))
        squares = sum((weight[i] ** 2 * self.at(i).g ** 2 for i in counting), start=torch.zeros_like(x1))
        length = max(float(s.abs().sum()), float(squares.sqrt().sum()))
        return max(before[t], top / length) if length else before[t]

    def size(self, t: int) -> float:
        """Return the step of update ``t`` for a learning rate of 1."""
        D = self.distances[t - 1]
        if not D:
            return 0.0
        wait = sum(self.at(i).delay + 1 for i in range(1, t + 1)) / t
        now, scale = self.at(t), 1.0
        if not now.zero:
            relative = now.g**2 / (self.squares(t) + float(now.options["eps"]) ** 2)
            scale = min(1.0, 4.0 / float(relative.mean().sqrt()))
        return scale * 0.4 * D / math.sqrt(wait)

    def squares(self, t: int) -> Tensor:
        """Return the mean of squared gradients after arrival ``t``, by the weight present."""
        weights = self.weights(t, 1.0)
        return weighted_mean([self.at(i).g ** 2 for i in weights], list(weights.values()))

    def next_iterate(self) -> Tensor:
        t = len(self.arrivals)
        now, x1 = self.at(t), self.iterates[0]
        self.distances.append(self.distance(t))
        if not self.distances[-1]:
            self.z.append(x1)
            self.queries.append(x1)
            return x1
        z = self.z[-1]
        if not now.zero:
            step = self.rate(t) * self.size(t)
            z = (1.0 - step * float(now.options["weight_decay"])) * z
            z = z - step * now.g / (self.squares(t).sqrt() + float(now.options["eps"]))
        self.z.append(z)
        with_step = [i for i in range(1, t + 1) if self.size(i)]
        x = weighted_mean([self.z[i] for i in with_step], [i * self.size(i) ** 2 for i in with_step])
        beta = float(now.options["beta"])
        self.queries.append(x + beta * (z - x))
        return x
