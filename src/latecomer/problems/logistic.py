"""Softmax regression on digits or MNIST: convex and smooth, with computable constants and minimum."""

from __future__ import annotations

import math
import os
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._util.checks import POSITIVE, whole_number
from ..data import load
from .digits import digit_images
from .images import Images, Labelled
from .networks import seeded_module

__all__ = ["Logistic"]


class Logistic(Images):
    """Cross-entropy of a linear model on images of digits, over the ball of a given radius around zero.

    The objective is the mean over the training images, with a weight of 0.1 for the slow class; within the fast and the
    slow group all images have the same weight.

    Args:
        slow_class: The class whose images are slow.
        batch_size: Images per batch.
        radius: Radius of the ball that methods with a projection stay in; None for no ball. Without one, no minimum is
            computed.
        data: ``"digits"``, part of the package, or ``"mnist"``, which `latecomer data get mnist` downloads.
        images: Number of MNIST training images to use; the minimum is computed over all of them.
        data_dir: Folder of MNIST, if not the default of `latecomer data get`.

    Examples:
        >>> problem = Logistic(radius=4.0)
        >>> problem.diameter, 0 < problem.minimum < 0.5
        (8.0, True)
    """

    name = "logistic"

    def __init__(
        self,
        slow_class: int = 9,
        batch_size: int = 16,
        radius: float | None = 4.0,
        data: str = "digits",
        images: int = 2000,
        data_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.data, self.images = data, whole_number("images", images, least=100, most=60_000)
        if data == "digits":
            super().__init__(*digit_images(), (slow_class,), batch_size)
        elif data == "mnist":
            super().__init__(*_mnist(self.images, data_dir), (slow_class,), batch_size, mean=(0.1307,), std=(0.3081,))
        else:
            raise ValueError(f"Invalid data value: {data!r} (expected 'digits' or 'mnist')")
        self.radius = math.inf if radius is None else POSITIVE.check("radius", radius)
        self._features = _features(self.normalised(self._images))
        weight = np.zeros(len(self._features))
        for share, pool in zip(self.shares, self._pools, strict=True):
            weight[pool] = share / len(pool)
        self._weights = torch.from_numpy(weight)

    def __repr__(self) -> str:
        where = f", data='mnist', images={self.images}" if self.data == "mnist" else ""
        return (
            f"Logistic(slow_class={self.slow_classes[0]}, batch_size={self.batch_size}, radius={self.radius:g}{where})"
        )

    @property
    def diameter(self) -> float:
        """Diameter D of the ball."""
        return 2.0 * self.radius

    @cached_property
    def L(self) -> float:  # noqa: N802
        """Smoothness: the Hessian of softmax is at most a half, times the second moment of the features."""
        moment = (self._features * self._weights[:, None]).T @ self._features
        return 0.5 * float(torch.linalg.eigvalsh(moment)[-1])

    def model(self, seed: int) -> nn.Module:
        """Return the linear model at zero; the seed has no effect."""
        return seeded_module(lambda: _Linear(self._features.shape[1]), seed)

    def batch(self, sample: int, group: int) -> tuple[Tensor, Tensor]:
        """Return features and labels of one batch."""
        picked = self.picked(sample, group)
        return self._features[picked], self._labels[picked]

    def gradient(self, x: Tensor, batch: Any, out: Tensor) -> bool:
        """Write the gradient of the mean cross-entropy of a batch."""
        features, labels = batch
        weights = torch.full((len(labels),), 1 / len(labels), dtype=x.dtype, device=x.device)
        _write_gradient(x, features, labels, weights, out)
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
        """The minimiser of the objective in the ball, by accelerated projected gradient descent.

        It stops when no point of the ball can be lower by more than 1e-7, by the linear lower bound.
        """
        if math.isinf(self.radius):
            raise ValueError("Logistic(radius=None) has no ball: give it a radius to compute the minimum in it")
        x = torch.zeros(10 * self._features.shape[1], dtype=torch.float64)
        y, momentum, g = x.clone(), 1.0, torch.empty_like(x)
        for step_number in range(20_000):
            self.expected_gradient(y, g)
            after = y - g / self.L
            after *= min(1.0, self.radius / float(after.norm()))
            step = after - x
            if float(torch.dot(y - after, step)) > 0:  # overshot: start the acceleration again
                momentum = 1.0
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            y, x, momentum = after + (momentum - 1) / following * step, after, following
            if step_number % 10 == 9 and self._gap(x) <= 1e-7:
                break
        return x

    def _gap(self, x: Tensor) -> float:
        """Return an upper bound on the excess of the objective over its minimum in the ball; it is convex."""
        g = torch.empty_like(x)
        self.expected_gradient(x, g)
        return float(torch.dot(g, x) + self.radius * g.norm())

    @cached_property
    def minimum(self) -> float:
        """The smallest value of the objective in the ball."""
        return self.objective(self.minimiser)

    @cached_property
    def gradient_at_minimum(self) -> float:
        """Norm of the gradient at the minimiser: the G of Theorem 2; not zero if the minimiser is on the boundary."""
        g = torch.empty_like(self.minimiser)
        self.expected_gradient(self.minimiser, g)
        return float(g.norm())

    @cached_property
    def _test_features(self) -> Tensor:
        return _features(self.normalised(self._test_images))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        features, labels = batch
        return nn.functional.cross_entropy(features @ model.weight.T, labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the objective, test scores, and where there is a ball the excess over the minimum in it."""
        weight: Tensor = model.weight.cpu()  # type: ignore[assignment]
        value = self.objective(weight.flatten())
        predictions = (self._test_features @ weight.T).argmax(1).numpy()
        excess = {} if math.isinf(self.radius) else {"excess": value - self.minimum}
        return {"loss": value, **excess, **self.test_scores(predictions)}


class _Linear(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(10, features, dtype=torch.float64))


def _features(images: Tensor) -> Tensor:
    """Return pixels, and a one for the bias."""
    flat = images.flatten(1).double()
    return torch.cat([flat, torch.ones(len(flat), 1, dtype=torch.float64)], dim=1)


def _mnist(images: int, data_dir: str | os.PathLike[str] | None) -> tuple[Labelled, Labelled]:
    arrays = load("mnist", None if data_dir is None else str(data_dir))
    train = arrays["train_images"][:images, None], arrays["train_labels"][:images]
    return train, (arrays["test_images"][:, None], arrays["test_labels"])


def _write_gradient(x: Tensor, features: Tensor, labels: Tensor, weights: Tensor, out: Tensor) -> None:
    p = torch.softmax(features @ x.detach().view(10, -1).T, dim=1)
    p[torch.arange(len(labels), device=x.device), labels] -= 1.0
    torch.mm((p * weights[:, None]).T, features, out=out.view(10, -1))
