"""Theorem 1 as published and as proved here, the theorem for catch-up, and earlier rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .._util.checks import AT_LEAST_ZERO, POSITIVE, whole_number

__all__ = [
    "CatchUp",
    "NonConvex",
    "catch_up",
    "delay_adaptive_lr",
    "independent_nonconvex",
    "nonconvex",
    "prior_nonconvex",
    "repaired_nonconvex",
]


@dataclass(frozen=True)
class NonConvex:
    """Parameters of Algorithm 1 for smooth objectives, and bounds on the mean squared gradient.

    Attributes:
        beta: Momentum parameter.
        lr: Learning rate, ``beta / (sqrt(8) L)``.
        bound: The published bound, ``640 L delta (M-1)/T + 16 sigma sqrt(5 L delta)/sqrt(T)``. If delays do not depend
            on the data it holds up to the constant of the noise; if they do it fails (`docs/theory.md`). Only for the
            theorem's own beta; NaN for another.
        repaired: A proved bound for delays that depend on the data in any way.
        selection: Its part from the noise of the gradients in flight.
        first: Its part from the first gradient.
    """

    L: float
    delta: float
    sigma: float
    workers: int
    steps: int
    sup_noise: float | None
    beta: float
    bound: float

    @property
    def lr(self) -> float:
        """Learning rate that belongs to beta."""
        return self.beta / (math.sqrt(8.0) * self.L)

    @property
    def selection(self) -> float:
        """16 times the largest mean square of the noise in flight: by its variance, or by its largest norm."""
        m, beta = self.workers - 1, self.beta
        by_variance = m * beta * self.sigma**2
        by_largest = math.inf if self.sup_noise is None else (m * beta * self.sup_noise) ** 2
        return 16.0 * min(by_variance, by_largest)

    @property
    def first(self) -> float:
        """Cost of version 1, which M workers compute and of which the first arrival counts: a selected sample too."""
        return 8.0 * _first_noise(self.workers, self.sigma, self.sup_noise) / self.steps

    @property
    def repaired(self) -> float:
        """``40 L delta/(beta T) + 8 beta sigma² + first + selection``."""
        ideal = 40.0 * self.L * self.delta / (self.beta * self.steps) + 8.0 * self.beta * self.sigma**2
        return ideal + self.first + self.selection


def nonconvex(
    *, L: float, delta: float, sigma: float, workers: int, steps: int, sup_noise: float | None = None
) -> NonConvex:
    """Return Theorem 1 for these constants, as published and as proved.

    Args:
        L: Smoothness.
        delta: Gap of the start, ``f(x_1) - f*``.
        sigma: Bound on the standard deviation of a gradient's noise.
        workers: M.
        steps: T.
        sup_noise: Bound on the norm of a gradient's noise, for a tighter repaired bound.

    Examples:
        >>> promised = nonconvex(L=1, delta=1, sigma=1, workers=7, steps=10_000)
        >>> round(promised.beta, 5), round(promised.lr, 6), round(promised.bound, 3), round(promised.repaired, 3)
        (0.01042, 0.003683, 0.742, 1.473)
    """
    L, delta, sigma, workers, steps, sup_noise = _checked_constants(L, delta, sigma, workers, steps, sup_noise)
    m = workers - 1
    by_workers = 1.0 / (16.0 * m) if m else math.inf
    by_noise = math.sqrt(5.0 * L * delta) / (sigma * math.sqrt(steps)) if sigma else math.inf
    beta = min(1.0, by_workers, by_noise)
    bound = 640.0 * L * delta * m / steps + 16.0 * sigma * math.sqrt(5.0 * L * delta) / math.sqrt(steps)
    if beta == 1.0:  # the published formula assumes beta = 1/(16(M-1))
        bound += 40.0 * L * delta / steps
    return NonConvex(L, delta, sigma, workers, steps, sup_noise, beta, bound)


def repaired_nonconvex(
    *, L: float, delta: float, sigma: float, workers: int, steps: int, sup_noise: float | None = None
) -> NonConvex:
    """Return the parameters of Algorithm 1 that make the repaired bound smallest.

    Examples:
        >>> tuned = repaired_nonconvex(L=1, delta=1, sigma=1, workers=7, steps=10_000)
        >>> round(tuned.beta, 5), round(tuned.repaired, 3)
        (0.0062, 1.296)
    """
    L, delta, sigma, workers, steps, sup_noise = _checked_constants(L, delta, sigma, workers, steps, sup_noise)
    m = workers - 1
    largest = min(1.0, 1.0 / (16.0 * m)) if m else 1.0

    def at(beta: float) -> NonConvex:
        return NonConvex(L, delta, sigma, workers, steps, sup_noise, beta, math.nan)

    # By the variance: a/beta + b beta. By the largest norm: a/beta + c beta + d beta², convex.
    a = 40.0 * L * delta / steps
    candidates = [largest]
    if sigma:
        candidates.append(min(largest, math.sqrt(a / (8.0 * (1 + 2 * m))) / sigma))
    if sup_noise is not None:
        candidates.append(_smallest(a, 8.0 * sigma**2, 16.0 * (m * sup_noise) ** 2, largest))
    return min((at(beta) for beta in candidates), key=lambda choice: choice.repaired)


@dataclass(frozen=True)
class CatchUp:
    """The theorem for catch-up: any beta from ``sqrt(12) L lr`` to 1, and a bound on the mean squared gradient.

    It assumes that every stochastic gradient is bounded by G; the earlier rate, Eq. (1), bounds the full gradient.

    Attributes:
        lr: Learning rate that makes the bound smallest.
        beta: The smallest beta the theorem allows with it; larger ones are allowed up to 1, which is async SGD.
        bound: ``8 delta/(lr T) + 6 L lr sigma² + 12 (L lr (M-1) G)²`` and a term of order 1/T for the first gradient.
    """

    L: float
    delta: float
    sigma: float
    workers: int
    steps: int
    sup_gradient: float
    lr: float

    @property
    def beta(self) -> float:
        """The smallest beta that goes with lr."""
        return math.sqrt(12.0) * self.L * self.lr

    @property
    def bound(self) -> float:
        """The bound proved in docs/theory.md, for delays that depend on the data in any way."""
        in_flight = self.L * self.lr * (self.workers - 1) * self.sup_gradient
        first = 9.0 * _first_noise(self.workers, self.sigma, 2.0 * self.sup_gradient) / self.steps
        ideal = 8.0 * self.delta / (self.lr * self.steps) + 6.0 * self.L * self.lr * self.sigma**2
        return ideal + 12.0 * in_flight**2 + first


def catch_up(
    *,
    L: float,
    delta: float,
    sigma: float,
    workers: int,
    steps: int,
    sup_gradient: float,
    lr: float | None = None,
) -> CatchUp:
    """Return the theorem for ``catch_up=True``, at its best learning rate or at a given one.

    Args:
        L: Smoothness.
        delta: Gap of the start.
        sigma: Bound on the standard deviation of a gradient's noise.
        workers: M.
        steps: T.
        sup_gradient: Bound on the norm of a stochastic gradient.
        lr: Learning rate, at most ``1 / (sqrt(12) L)``.

    Examples:
        >>> promised = catch_up(L=1, delta=1, sigma=1, workers=7, steps=10_000, sup_gradient=2)
        >>> round(promised.lr, 5), round(promised.beta, 4), round(promised.bound, 3)
        (0.00561, 0.0194, 0.237)
    """
    L, delta, sigma, workers, steps, _ = _checked_constants(L, delta, sigma, workers, steps, None)
    sup_gradient = AT_LEAST_ZERO.check("sup_gradient", sup_gradient)
    largest = 1.0 / (math.sqrt(12.0) * L)
    if lr is None:
        a, c, d = 8.0 * delta / steps, 6.0 * L * sigma**2, 12.0 * (L * (workers - 1) * sup_gradient) ** 2
        lr = _smallest(a, c, d, largest)
    elif not 0 < POSITIVE.check("lr", lr) <= largest:
        raise ValueError(f"Invalid lr value: {lr:g} (expected lr <= 1/(sqrt(12) L) = {largest:g})")
    return CatchUp(L, delta, sigma, workers, steps, sup_gradient, lr)


def prior_nonconvex(*, L: float, delta: float, sigma: float, G: float, workers: int, steps: int) -> float:
    """Return Eq. (1), the earlier rate for data-dependent delays and a bounded full gradient, with constants 1.

    Examples:
        >>> round(prior_nonconvex(L=1, delta=1, sigma=1, G=1, workers=7, steps=10_000), 4)
        0.0186
    """
    L, delta, sigma, workers, steps, _ = _checked_constants(L, delta, sigma, workers, steps, None)
    extra = math.pow(AT_LEAST_ZERO.check("G", G) * L * delta * workers / steps, 2 / 3)
    return independent_nonconvex(L=L, delta=delta, sigma=sigma, workers=workers, steps=steps) + extra


def independent_nonconvex(*, L: float, delta: float, sigma: float, workers: int, steps: int) -> float:
    """Return the rate for delays that do not depend on the data, with constants 1: the O-form of Theorem 1.

    Examples:
        >>> round(independent_nonconvex(L=1, delta=1, sigma=1, workers=7, steps=10_000), 4)
        0.0107
    """
    L, delta, sigma, workers, steps, _ = _checked_constants(L, delta, sigma, workers, steps, None)
    return L * delta * workers / steps + sigma * math.sqrt(L * delta) / math.sqrt(steps)


def delay_adaptive_lr(*, L: float, delta: float, sigma: float, workers: int, steps: int, delay: int) -> float:
    """Return Eq. (3), the learning rate of a gradient of this delay, with constants 1.

    Examples:
        >>> delay_adaptive_lr(L=1, delta=1, sigma=1, workers=7, steps=10_000, delay=50)
        0.01
    """
    L, delta, sigma, workers, steps, _ = _checked_constants(L, delta, sigma, workers, steps, None)
    delay = whole_number("delay", delay)
    by_delay = 1.0 / (L * delay) if delay else math.inf
    by_noise = math.sqrt(delta / (L * steps)) / sigma if sigma else math.inf
    return min(by_delay, 1.0 / (L * workers), by_noise)


def _smallest(a: float, c: float, d: float, largest: float) -> float:
    """Return the minimiser of ``a/x + c·x + d·x²`` up to ``largest``, by bisecting its slope."""
    low, high = 0.0, largest
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if -a + c * middle**2 + 2 * d * middle**3 < 0 else (low, middle)
    return high


def _first_noise(workers: int, sigma: float, sup_noise: float | None) -> float:
    """Bound the mean squared noise of the first of M gradients to arrive; with one worker nothing is selected."""
    if workers == 1:
        return 0.0
    return min(workers * sigma**2, math.inf if sup_noise is None else sup_noise**2)


def _checked_constants(
    L: float, delta: float, sigma: float, workers: int, steps: int, sup_noise: float | None
) -> tuple[float, float, float, int, int, float | None]:
    L, delta = POSITIVE.check("L", L), POSITIVE.check("delta", delta)
    if not 1e-200 < L * delta < 1e200:
        raise ValueError(
            f"Invalid L and delta values: their product {L * delta:g} is out of range (expected 1e-200 to 1e200)"
        )
    return (
        L,
        delta,
        AT_LEAST_ZERO.check("sigma", sigma),
        whole_number("workers", workers, least=1),
        whole_number("steps", steps, least=1),
        None if sup_noise is None else AT_LEAST_ZERO.check("sup_noise", sup_noise),
    )
