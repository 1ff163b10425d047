"""Useful numbers of workers: by each bound, and in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .._util.checks import AT_LEAST_ZERO, POSITIVE, Range, whole_number
from .theorem1 import nonconvex

__all__ = ["Subset", "fastest", "largest_useful_workers", "steps_needed"]


def largest_useful_workers(
    *,
    L: float,
    delta: float,
    sigma: float,
    steps: int,
    G: float | None = None,
    sup_noise: float | None = None,
    D: float | None = None,
) -> dict[str, float]:
    """Return for each bound the largest M whose extra terms stay below the noise term of one worker.

    Args:
        L: Smoothness.
        delta: Gap of the start.
        sigma: Standard deviation of a gradient's noise.
        steps: T.
        G: Bound on the gradient, for the earlier rate; without it that one is left out.
        sup_noise: Bound on the norm of the noise, for the repaired theorem; without it that one is left out.
        D: Diameter of the set, for the convex bounds; without it they are left out.

    Examples:
        >>> {name: round(m) for name, m in
        ...  largest_useful_workers(L=1, delta=1, sigma=1, steps=10**8, G=1, sup_noise=1).items()}
        {'data-independent': 10000, 'Theorem 1': 560, 'Theorem 1, repaired': 68, 'earlier rate (Eq. 1)': 100}
    """
    one = nonconvex(L=L, delta=delta, sigma=sigma, workers=1, steps=steps, sup_noise=sup_noise)
    gap, T, s = one.L * one.delta, one.steps, one.sigma
    found = {
        "data-independent": max(1.0, s * math.sqrt(T / gap)),
        "Theorem 1": 1.0 + s * math.sqrt(5.0 * T) / (40.0 * math.sqrt(gap)),
    }
    if sup_noise is not None:
        by_selection = s**1.5 * T**0.25 / ((5.0 * gap) ** 0.25 * sup_noise) if sup_noise else math.inf
        found["Theorem 1, repaired"] = min(found["Theorem 1"], 1.0 + by_selection)
    if G is not None:
        G = AT_LEAST_ZERO.check("G", G)
        by_gradient = s**1.5 * T**0.25 / (gap**0.25 * G) if G else math.inf
        found["earlier rate (Eq. 1)"] = max(1.0, min(by_gradient, s * math.sqrt(T / gap)))
    if D is not None:
        reach = POSITIVE.check("D", D) * one.L
        found["Theorem 2"] = 1.0 + s * math.sqrt(T) / (3.0 * reach)
        if sup_noise is not None:
            found["Theorem 2, repaired"] = 1.0 + s * math.sqrt(T) / (3.0 * reach + sup_noise)
        found["earlier rate, convex (Eq. 2)"] = 1.0  # its leading term grows with M
        found["data-independent, convex"] = max(1.0, s * math.sqrt(T) / reach)
    return found


def steps_needed(*, L: float, delta: float, sigma: float, workers: int, epsilon: float) -> int:
    """Return the number of updates after which the bound of Theorem 1 is ``epsilon``, a mean squared gradient.

    Examples:
        >>> steps_needed(L=1, delta=1, sigma=1, workers=7, epsilon=0.1)
        197328
    """
    Range(1e-100).check("epsilon", epsilon)
    one = nonconvex(L=L, delta=delta, sigma=sigma, workers=workers, steps=1)
    a, b = (
        640.0 * one.L * one.delta * max(one.workers - 1, 1 / 16),
        16.0 * one.sigma * math.sqrt(5.0 * one.L * one.delta),
    )
    root = (b + math.sqrt(b * b + 4.0 * epsilon * a)) / (2.0 * epsilon)  # a/T + b/sqrt(T) = epsilon
    return max(1, math.ceil(root * root))


@dataclass(frozen=True)
class Subset:
    """How many of the fastest workers to use.

    Attributes:
        workers: The number of workers.
        steps: Number of updates with them.
        seconds: Duration of these updates.
        table: ``(workers, steps, seconds)`` for every number of workers.
        optimal: A lower bound on the time of any method up to a constant, here 1, for durations that depend on the
            worker.
    """

    workers: int
    steps: int
    seconds: float
    table: tuple[tuple[int, int, float], ...]
    optimal: float


def fastest(durations: Sequence[float], *, L: float, delta: float, sigma: float, epsilon: float) -> Subset:
    """Return how many of the fastest workers reach a mean squared gradient of ``epsilon`` first, by Theorem 1.

    For durations that depend only on the worker. One more worker adds arrivals and delays; a slow one costs more
    updates than it adds.

    Args:
        durations: Seconds per gradient for each worker, in any order.
        L: Smoothness.
        delta: Gap of the start.
        sigma: Standard deviation of a gradient's noise.
        epsilon: The goal.

    Examples:
        >>> fastest([1.0] * 8 + [1000.0] * 8, L=1, delta=1, sigma=1, epsilon=0.1).workers
        8
    """
    times = sorted(POSITIVE.check("duration", duration) for duration in durations)
    whole_number("number of durations", len(times), least=1)
    rows, rate, best_possible = [], 0.0, math.inf
    for m, duration in enumerate(times, start=1):
        rate += 1.0 / duration
        steps = steps_needed(L=L, delta=delta, sigma=sigma, workers=m, epsilon=epsilon)
        rows.append((m, steps, steps / rate))
        work = L * delta / epsilon + sigma**2 * L * delta / (m * epsilon**2)
        best_possible = min(best_possible, work / (rate / m))
    workers, steps, seconds = min(rows, key=lambda row: row[2])
    return Subset(workers, steps, seconds, tuple(rows), best_possible)
