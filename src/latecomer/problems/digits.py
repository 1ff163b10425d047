"""Digits that come with the package: 1,797 images of 8x8, with one slow class. Needs no network.

``digits.npz`` is the test set of *Optical Recognition of Handwritten Digits*, E. Alpaydin and C. Kaynak, 1998, UCI
Machine Learning Repository, https://doi.org/10.24432/C50P49, licensed under CC BY 4.0, by way of scikit-learn's copy
(`benchmarks/bundle_digits.py`).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from .images import Images, Labelled
from .networks import cnn, mlp, seeded_module

__all__ = ["Digits"]

_TEST_SHARE = 5  # every fifth image


@lru_cache(maxsize=1)
def _load() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with np.load(Path(__file__).with_name("digits.npz")) as data:
        pixels, labels = data["images"].astype(np.float64), data["labels"].astype(np.int64)
    return ((pixels - 4.88) / 6.02).astype(np.float32)[:, None], labels  # mean and deviation of the pixels


def digit_images(split: str = "test") -> tuple[Labelled, Labelled]:
    """Return images and labels to train and to evaluate on.

    Examples:
        >>> [len(labels) for _, labels in digit_images()]
        [1437, 360]
        >>> [len(labels) for _, labels in digit_images("validation")]
        [1077, 360]
    """
    if split not in ("test", "validation"):
        raise ValueError(f"Invalid split value: {split!r} (expected 'test' or 'validation')")
    images, labels = _load()
    test, validation = (np.arange(len(labels)) % _TEST_SHARE == place for place in (0, 1))
    if split == "validation":
        kept = ~(test | validation)
        return (images[kept], labels[kept]), (images[validation], labels[validation])
    return (images[~test], labels[~test]), (images[test], labels[test])


class Digits(Images):
    """Classify 8x8 digits; samples of one class are slow.

    A batch is all slow or all fast, as in the paper: on MNIST all nines, or none.

    Args:
        network: ``"cnn"`` or ``"mlp"``.
        cubic: Cube the logits, as the paper does.
        slow_class: Which digit is slow.
        batch_size: Images per batch.
        split: What `evaluate` uses: ``"test"``, or ``"validation"``, a fourth of the other images, which are then not
            trained on.

    Examples:
        >>> problem = Digits()
        >>> images, labels = problem.batch(sample=1, group=1)
        >>> tuple(images.shape), sorted(set(labels.tolist()))
        ((16, 1, 8, 8), [9])
    """

    name = "digits"

    def __init__(
        self,
        network: str = "cnn",
        cubic: bool = True,
        slow_class: int = 9,
        batch_size: int = 16,
        split: str = "test",
    ) -> None:
        super().__init__(*digit_images(split), (slow_class,), batch_size)
        if network not in ("cnn", "mlp"):
            raise ValueError(f"Invalid network value: {network!r} (expected 'cnn' or 'mlp')")
        if not isinstance(cubic, bool):
            raise TypeError(f"Invalid cubic value: {cubic!r} (expected True or False)")
        self.network, self.cubic, self.split = network, cubic, split

    def __repr__(self) -> str:
        return (
            f"Digits(network={self.network!r}, cubic={self.cubic}, slow_class={self.slow_classes[0]}, "
            f"batch_size={self.batch_size}" + (")" if self.split == "test" else f", split={self.split!r})")
        )

    def model(self, seed: int) -> nn.Module:
        """Return a fresh network."""
        if self.network == "mlp":
            return seeded_module(lambda: mlp(cubic=self.cubic), seed)
        return seeded_module(
            lambda: cnn(image=8, channels=(8, 16), kernel=3, padding=1, hidden=32, cubic=self.cubic), seed
        )
