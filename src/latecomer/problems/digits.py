"""scikit-learn's bundled digits: 1,797 images of 8x8, with one slow class. Needs no network."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..optim.checks import whole_number
from ..seeds import picks
from .base import Problem, scores
from .networks import cnn, mlp, seeded

__all__ = ["Digits"]

_TEST_SHARE = 5  # every fifth image


@lru_cache(maxsize=1)
def _load() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    data = load_digits()
    images = ((data.images - 4.88) / 6.02).astype(np.float32)[:, None]  # mean and deviation of the pixels
    return images, data.target.astype(np.int64)


class DigitImages(Problem):
    """The digits' images, which of them are slow, and batches of them; what is trained on them is a subclass's to say.

    Args:
        slow_class: Which digit is slow.
        batch_size: Images a batch.
    """

    groups = 2
    shares = (0.9, 0.1)

    def __init__(self, slow_class: int, batch_size: int) -> None:
        if whole_number("slow_class", slow_class) > 9:
            raise ValueError(f"Invalid slow_class value: {slow_class} (expected a digit)")
        self.slow_class, self.batch_size = slow_class, whole_number("batch_size", batch_size, least=1)
        images, labels = _load()
        test = np.arange(len(labels)) % _TEST_SHARE == 0
        self._images, self._labels = torch.from_numpy(images[~test]), torch.from_numpy(labels[~test])
        self._test_images, self._test_labels = torch.from_numpy(images[test]), labels[test]
        slow = labels[~test] == slow_class
        self._pools = (np.flatnonzero(~slow), np.flatnonzero(slow))

    def picked(self, sample: int, group: int) -> Tensor:
        """Return which training images a batch consists of."""
        pool = self._pools[group]
        return torch.from_numpy(pool[picks(sample, self.batch_size, len(pool))])

    def test_scores(self, guesses: NDArray[np.int64]) -> dict[str, float]:
        """Return accuracy and F1 of guesses for the test images."""
        return scores(self._test_labels, guesses, 10, {self.slow_class})


class Digits(DigitImages):
    """Classify 8x8 digits; samples of one class are slow.

    A batch is all slow or all fast, as in the paper: on MNIST all nines, or none.

    Args:
        network: ``"cnn"`` or ``"mlp"``.
        cubic: Cube the logits, as the paper does.
        slow_class: Which digit is slow.
        batch_size: Images a batch.

    Examples:
        >>> problem = Digits()
        >>> images, labels = problem.batch(sample=1, group=1)
        >>> tuple(images.shape), sorted(set(labels.tolist()))
        ((16, 1, 8, 8), [9])
    """

    name = "digits"

    def __init__(self, network: str = "cnn", cubic: bool = True, slow_class: int = 9, batch_size: int = 16) -> None:
        super().__init__(slow_class, batch_size)
        if network not in ("cnn", "mlp"):
            raise ValueError(f"Invalid network value: {network!r} (expected 'cnn' or 'mlp')")
        if not isinstance(cubic, bool):
            raise TypeError(f"Invalid cubic value: {cubic!r} (expected True or False)")
        self.network, self.cubic = network, cubic

    def __repr__(self) -> str:
        return (
            f"Digits(network={self.network!r}, cubic={self.cubic}, slow_class={self.slow_class}, "
            f"batch_size={self.batch_size})"
        )

    def model(self, seed: int) -> nn.Module:
        """Return a fresh network."""
        if self.network == "mlp":
            return seeded(lambda: mlp(cubic=self.cubic), seed)
        return seeded(lambda: cnn(image=8, channels=(8, 16), kernel=3, padding=1, hidden=32, cubic=self.cubic), seed)

    def batch(self, sample: int, group: int) -> tuple[Tensor, Tensor]:
        """Return images and labels of one batch."""
        picked = self.picked(sample, group)
        return self._images[picked], self._labels[picked]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy."""
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return test loss, accuracy and F1: mean, slow, fast and per class."""
        logits = model(self._test_images)
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(self._test_labels))
        guesses = logits.argmax(1).numpy()
        return {"loss": float(loss), **self.test_scores(guesses)}
