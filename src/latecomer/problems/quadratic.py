"""Quadratics with known constants: the two-centre problem, and the counter-example's one-dimensional one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._util.checks import AT_LEAST_ZERO, POSITIVE, whole_number
from .base import Problem

__all__ = ["Quadratic"]


class _Point(nn.Module):
    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start)


class Quadratic(Problem):
    """``f(x; z) = sum_j c_j (x_j - centre_z)² / 2 + noise·x``: each group of samples has its own centre.

    With shares q of the groups the optimum is the mean of the centres, L is the largest curvature, and the gap of the
    start is known, so bounds can be compared with measurements.

    Args:
        dimensions: Number of coordinates.
        curvature: Smallest and largest curvature; those between are spaced evenly.
        centres: Centre of each group, fastest first.
        shares: Share of each group, for the optimum in `evaluate`.
        start: Initial value of every coordinate.
        noise: Standard deviation of Gaussian noise on every coordinate of a gradient.

    Examples:
        >>> problem = Quadratic(centres=(0.0, 3.0), shares=(0.9, 0.1))
        >>> problem.L, round(problem.optimum, 3)
        (1.0, 0.3)
    """

    name = "quadratic"

    def __init__(
        self,
        dimensions: int = 10,
        curvature: tuple[float, float] = (0.1, 1.0),
        centres: Sequence[float] = (0.0, 3.0),
        shares: Sequence[float] = (0.9, 0.1),
        start: float = 5.0,
        noise: float = 1.0,
    ) -> None:
        whole_number("dimensions", dimensions, least=1)
        low, high = (POSITIVE.check("curvature", c) for c in curvature)
        if len(centres) != len(shares):
            raise ValueError(f"Got {len(centres)} centres for {len(shares)} shares")
        self.curvature = torch.linspace(low, high, dimensions, dtype=torch.float64)
        self.centres, self.shares = tuple(map(float, centres)), tuple(map(float, shares))
        self.groups = len(self.centres)
        self.start, self.noise = float(start), AT_LEAST_ZERO.check("noise", noise)

    def __repr__(self) -> str:
        low, high = float(self.curvature[0]), float(self.curvature[-1])
        return (
            f"Quadratic(dimensions={len(self.curvature)}, curvature=({low:g}, {high:g}), centres={self.centres}, "
            f"shares={self.shares}, start={self.start:g}, noise={self.noise:g})"
        )

    @property
    def L(self) -> float:  # noqa: N802
        """Smoothness: the largest curvature."""
        return float(self.curvature.max())

    @property
    def optimum(self) -> float:
        """Every coordinate of the minimiser."""
        return sum(share * centre for share, centre in zip(self.shares, self.centres, strict=True)) / sum(self.shares)

    def excess(self, x: Tensor) -> float:
        """Return ``f(x)`` above its minimum."""
        return float((self._curvature_at(x) * (x.detach() - self.optimum) ** 2).sum() / 2)

    def squared_gradient(self, x: Tensor) -> float:
        """Return the squared norm of the gradient at ``x``."""
        gradient = self._curvature_at(x) * (x.detach() - self.optimum)
        return float(gradient @ gradient)

    def _curvature_at(self, x: Tensor) -> Tensor:
        return self.curvature if x.is_cpu else self.curvature.to(x.device)

    @property
    def delta(self) -> float:
        """Gap of the start: ``f(x_1)`` above the minimum."""
        return self.excess(torch.full_like(self.curvature, self.start))

    def model(self, seed: int) -> nn.Module:
        """Return the starting point; the seed has no effect."""
        return _Point(torch.full_like(self.curvature, self.start))

    def batch(self, sample: int, group: int) -> tuple[float, Tensor | None]:
        """Return the centre and the noise of one sample."""
        noise = None
        if self.noise:
            drawn = np.random.Generator(np.random.PCG64(sample)).standard_normal(len(self.curvature))
            noise = torch.from_numpy(drawn).mul_(self.noise)
        return self.centres[group], noise

    def gradient(self, x: Tensor, batch: Any, out: Tensor) -> bool:
        """Write ``c·(x - centre) + noise``."""
        centre, noise = batch
        torch.sub(x, centre, out=out).mul_(self._curvature_at(x))
        if noise is not None:
            out.add_(noise)
        return True

    def expected_gradient(self, x: Tensor, out: Tensor) -> bool:
        """Write ``c·(x - optimum)``."""
        torch.sub(x, self.optimum, out=out).mul_(self._curvature_at(x))
        return True

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of one sample."""
        centre, noise = batch
        x: Tensor = model.x  # type: ignore[assignment]
        value: Tensor = (self._curvature_at(x) * (x - centre) ** 2).sum() / 2
        return value if noise is None else value + torch.dot(noise, x)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the excess loss and the squared gradient norm."""
        x: Tensor = model.x  # type: ignore[assignment]
        return {"loss": self.excess(x), "squared_gradient": self.squared_gradient(x)}

    def losses_by_group(self, model: nn.Module) -> tuple[float, ...]:
        """Return how far the loss of each group is above that at its own centre."""
        x: Tensor = model.x  # type: ignore[assignment]
        curvature = self._curvature_at(x)
        return tuple(float((curvature * (x.detach() - centre) ** 2).sum() / 2) for centre in self.centres)
