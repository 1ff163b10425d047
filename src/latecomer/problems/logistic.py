"""Softmax regression on the digits: convex and smooth, with constants and a minimum that can be computed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..optim.checks import POSITIVE
from .digits import digit_images
from .images import Images
from .networks import seeded

__all__ = ["Logistic"]


class Logistic(Images):
    """Cross-entropy of a linear model on scikit-learn's digits, over the ball of a given radius around zero.

    The objective is the mean over the training images with the classes' own shares: a batch is slow with probability
    0.1, and the fast and the slow images are equally likely within their groups.

    Args:
        slow_class: The class whose images are slow.
        batch_size: Images a batch.
        radius: Radius of the ball that methods with a projection stay in.

    Examples:
        >>> problem = Logistic(radius=4.0)
        >>> problem.diameter, 0 < problem.minimum < 0.5
        (8.0, True)
    """

    name = "logistic"

    def __init__(self, slow_class: int = 9, batch_size: int = 16, radius: float = 4.0) -> None:
        super().__init__(*digit_images(), (slow_class,), batch_size)
        self.radius = POSITIVE.check("radius", radius)
        images = self._images.flatten(1).double()
        self._features = torch.cat([images, torch.ones(len(images), 1, dtype=torch.float64)], dim=1)
        weight = np.zeros(len(images))
        for share, pool in zip(self.shares, self._pools, strict=True):
            weight[pool] = share / len(pool)
        self._weights = torch.from_numpy(weight)

    def __repr__(self) -> str:
        return f"Logistic(slow_class={self.slow_classes[0]}, batch_size={self.batch_size}, radius={self.radius:g})"

    @property
    def diameter(self) -> float:
        """D."""
        return 2.0 * self.radius

    @cached_property
    def L(self) -> float:  # noqa: N802
        """Smoothness: the Hessian of softmax is at most a half, times the features' second moment."""
        moment = (self._features * self._weights[:, None]).T @ self._features
        return 0.5 * float(torch.linalg.eigvalsh(moment)[-1])

    def model(self, seed: int) -> nn.Module:
        """Return the linear model at zero; the seed changes nothing."""
        return seeded(_Linear, seed)

    def batch(self, sample: int, group: int) -> tuple[Tensor, Tensor]:
        """Return features and labels of one batch."""
        picked = self.picked(sample, group)
        return self._features[picked], self._labels[picked]

    def gradient(self, x: Tensor, batch: Any, out: Tensor) -> bool:
        """Write the gradient of the mean cross-entropy of a batch."""
        features, labels = batch
        _write_gradient(x, features, labels, torch.full((len(labels),), 1 / len(labels), dtype=x.dtype), out)
        return True

    def expected_gradient(self, x: Tensor, out: Tensor) -> bool:
        """Write the gradient over all training images."""
        _write_gradient(x, self._features, self._labels, self._weights, out)
        return True

    def objective(self, x: Tensor) -> float:
        """Return the loss over all training images."""
        scores = self._features @ x.detach().view(10, -1).T
        losses = nn.functional.cross_entropy(scores, self._labels, reduction="none")
        return float(self._weights @ losses)

    @cached_property
    def minimiser(self) -> Tensor:
        """Where the objective is smallest in the ball, by accelerated projected gradient steps."""
        x = torch.zeros(10 * self._features.shape[1], dtype=torch.float64)
        y, momentum, g = x.clone(), 1.0, torch.empty_like(x)
        for _ in range(20_000):
            self.expected_gradient(y, g)
            after = y - g / self.L
            after *= min(1.0, self.radius / float(after.norm()))
            step = after - x
            if float(step.norm()) < 1e-10:
                break
            if float(torch.dot(y - after, step)) > 0:  # overshot: start the acceleration again
                momentum = 1.0
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            y, x, momentum = after + (momentum - 1) / following * step, after, following
        return x

    @cached_property
    def minimum(self) -> float:
        """The smallest value of the objective in the ball."""
        return self.objective(self.minimiser)

    @cached_property
    def gradient_at_minimum(self) -> float:
        """Norm of the gradient at the minimiser: the G of Theorem 2; not zero if the ball is tight."""
        g = torch.empty_like(self.minimiser)
        self.expected_gradient(self.minimiser, g)
        return float(g.norm())

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        features, labels = batch
        return nn.functional.cross_entropy(features @ model.weight.T, labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the objective, its excess over the minimum in the ball, and test scores."""
        weight: Tensor = model.weight  # type: ignore[assignment]
        value = self.objective(weight.flatten())
        images = self._test_images.flatten(1).double()
        guesses = (images @ weight[:, :-1].T + weight[:, -1]).argmax(1).numpy()
        return {"loss": value, "excess": value - self.minimum, **self.test_scores(guesses)}


class _Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(10, 65, dtype=torch.float64))


def _write_gradient(x: Tensor, features: Tensor, labels: Tensor, weights: Tensor, out: Tensor) -> None:
    p = torch.softmax(features @ x.detach().view(10, -1).T, dim=1)
    p[torch.arange(len(labels)), labels] -= 1.0
    torch.mm((p * weights[:, None]).T, features, out=out.view(10, -1))
