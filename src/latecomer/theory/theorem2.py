"""Theorem 2 as published and as proved here, and earlier rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .._util.checks import AT_LEAST_ZERO, POSITIVE, whole_number

__all__ = ["Convex", "convex", "independent_convex", "prior_convex"]


@dataclass(frozen=True)
class Convex:
    """Learning rates of Algorithm 2, and a bound on the excess loss of ``x_T``.

    Attributes:
        lr_max: ``1/(4 L T)``.
        lr_min: The learning rate at which the term in 1/lr equals the other terms.
    """

    L: float
    D: float
    sigma: float
    sigma_L: float  # noqa: N815
    G: float
    workers: int
    steps: int
    sup_noise: float | None = None
    sup_noise_L: float | None = None  # noqa: N815

    @property
    def lr_max(self) -> float:
        """The largest learning rate the theorem allows."""
        return 1.0 / (4.0 * self.L * self.steps)

    @property
    def lr_min(self) -> float:
        """The smallest learning rate that keeps the rate."""
        by_noise = 2.0 * (self.sigma / self.D + 2.0 * self.sigma_L) * math.sqrt(self.steps)
        rest = by_noise + 6.0 * self.L * (self.workers - 1) + 2.0 * self.G / self.D
        return 1.0 / (self.steps * max(4.0 * self.L, rest))

    def bound(self, lr: float) -> float:
        """Return the explicit form of the proof's last display, for a learning rate up to `lr_max`."""
        D, T, m = self.D, self.steps, self.workers - 1
        noise = 4.0 * D * (self.sigma + 2.0 * D * self.sigma_L) / math.sqrt(T)
        return self._common(lr) + noise + 12.0 * D**2 * self.L * m / T

    def repaired(self, lr: float) -> float:
        """Return the bound proved for delays that depend on the data in any way (docs/theory.md).

        With a bound on the norm of the noise the extra term is ``4 D (S + 2 D S_L)(M-1)/T``; without one it is a factor
        of ``1 + sqrt(M-1)`` on the noise.
        """
        D, T, m = self.D, self.steps, self.workers - 1
        noise = 4.0 * D * (self.sigma + 2.0 * D * self.sigma_L) * math.sqrt(T + m) / T
        selection = noise * math.sqrt(m)
        change = 0.0 if self.sigma_L == 0 else self.sup_noise_L
        if self.sup_noise is not None and change is not None:
            selection = min(selection, 4.0 * D * (self.sup_noise + 2.0 * D * change) * m / T)
        return self._common(lr) + noise + 12.0 * D**2 * self.L * m / T + selection

    def _common(self, lr: float) -> float:
        if not 0 < POSITIVE.check("lr", lr) <= self.lr_max * (1 + 1e-12):
            raise ValueError(f"Invalid lr value: {lr:g} (expected lr <= 1/(4 L T) = {self.lr_max:g})")
        return 2.0 * self.D**2 / (lr * self.steps**2) + 4.0 * self.D * self.G / self.steps


def convex(
    *,
    L: float,
    D: float,
    sigma: float,
    workers: int,
    steps: int,
    sigma_L: float = 0.0,
    G: float = 0.0,
    sup_noise: float | None = None,
    sup_noise_L: float | None = None,
) -> Convex:
    """Return Theorem 2 for these constants, as published and as proved.

    Args:
        L: Smoothness.
        D: Diameter of the set.
        sigma: Bound on the standard deviation of a gradient's noise.
        workers: M.
        steps: T.
        sigma_L: Lipschitz constant of the noise, in mean square.
        G: Norm of the gradient at the minimiser; zero if it is inside the set.
        sup_noise: Bound on the norm of the noise, for a tighter repaired bound.
        sup_noise_L: Lipschitz constant of the noise, for every sample; without it ``sup_noise`` is used only if
            ``sigma_L`` is zero.

    Examples:
        >>> promised = convex(L=1, D=2, sigma=1, workers=7, steps=10_000)
        >>> promised.lr_max, round(promised.lr_max / promised.lr_min, 1), round(promised.bound(promised.lr_max), 4)
        (2.5e-05, 34.0, 0.112)
    """
    return Convex(
        POSITIVE.check("L", L),
        POSITIVE.check("D", D),
        AT_LEAST_ZERO.check("sigma", sigma),
        AT_LEAST_ZERO.check("sigma_L", sigma_L),
        AT_LEAST_ZERO.check("G", G),
        whole_number("workers", workers, least=1),
        whole_number("steps", steps, least=1),
        None if sup_noise is None else AT_LEAST_ZERO.check("sup_noise", sup_noise),
        None if sup_noise_L is None else AT_LEAST_ZERO.check("sup_noise_L", sup_noise_L),
    )


def prior_convex(*, G: float, D: float, workers: int, steps: int) -> float:
    """Return Eq. (2), the earlier rate for data-dependent delays and bounded gradients, with constants 1.

    Examples:
        >>> round(prior_convex(G=1, D=2, workers=7, steps=10_000), 4)
        0.0529
    """
    workers, steps = whole_number("workers", workers, least=1), whole_number("steps", steps, least=1)
    return AT_LEAST_ZERO.check("G", G) * POSITIVE.check("D", D) * math.sqrt(workers / steps)


def independent_convex(*, L: float, D: float, sigma: float, workers: int, steps: int) -> float:
    """Return the rate for delays that do not depend on the data, with constants 1.

    Examples:
        >>> round(independent_convex(L=1, D=2, sigma=1, workers=7, steps=10_000), 4)
        0.0228
    """
    given = convex(L=L, D=D, sigma=sigma, workers=workers, steps=steps)
    return given.L * given.D**2 * given.workers / given.steps + given.sigma * given.D / math.sqrt(given.steps)
