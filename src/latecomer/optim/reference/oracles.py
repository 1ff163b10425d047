"""Oracles without delay, as the paper writes them: each calls grad(x, t) for the gradient of sample t at x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .base import projected, weighted_mean

__all__ = ["anytime_gd", "anytime_storm", "storm", "synchronous_momentum"]

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
        w.append(projected(projection, w[-1] - lr * direction(x, t)))
        x.append(weighted_mean(w, [a(s) for s in range(1, t + 2)]))
    return x
