"""The two-centre quadratic with a slow group whose gradients are larger, noisier, or heavy-tailed."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from .quadratic import Quadratic

__all__ = ["TwoCentres"]


class TwoCentres(Quadratic):
    """The two-centre quadratic with a slow group whose gradients may also be noisier, or have heavier tails.

    Args:
        distance: How far the slow group's centre is from the fast one's; their gradients grow with it.
        slow_noise: Standard deviation of the slow group's noise, in units of the fast one's.
        tail: None for Gaussian noise, or degrees of freedom of a Student distribution for the slow group, scaled to
            quartiles like those of ``slow_noise``: the lower, the heavier; at 2 and below the variance is infinite.
        slow_share: Share of the slow group, for the optimum.

    Examples:
        >>> problem = TwoCentres(distance=10.0, slow_noise=5.0, tail=2.0)
        >>> round(problem.optimum, 3)
        1.0
        >>> fast, slow = (problem.batch(sample=7, group=group)[1] for group in (0, 1))
        >>> bool(fast.abs().max() < slow.abs().max())
        True
    """

    name = "two-centres"

    def __init__(
        self, distance: float = 3.0, slow_noise: float = 1.0, tail: float | None = None, slow_share: float = 0.1
    ) -> None:
        super().__init__(centres=(0.0, distance), shares=(1.0 - slow_share, slow_share))
        self.slow_noise, self.tail = slow_noise, tail

    def __repr__(self) -> str:
        return f"TwoCentres({self.centres}, {self.shares}, slow_noise={self.slow_noise:g}, tail={self.tail})"

    def batch(self, sample: int, group: int) -> tuple[float, Tensor | None]:
        """Return the centre and the noise of one sample."""
        centre, noise = super().batch(sample, group)
        if group and noise is not None:
            if self.tail is not None:
                # Numerator and denominator of a Student variable; the stream is another one than the Gaussian's.
                chi = np.random.Generator(np.random.PCG64(sample + 1)).chisquare(self.tail)
                noise.div_(math.sqrt(chi / self.tail))  # one denominator for all coordinates: spherical
            noise.mul_(self.slow_noise)
        return centre, noise
