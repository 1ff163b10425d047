"""Image classification with slow classes: what digits, MNIST and CIFAR-10 share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .._util.checks import whole_number
from .._util.seeds import picks
from .base import Problem, device_of, scores

__all__ = ["Images"]

Labelled = tuple[NDArray[Any], NDArray[np.int64]]
"""Images and their labels."""

_AT_ONCE = 250  # images per evaluated batch: with more the activations do not fit the cache


class Images(Problem):
    """Labelled images in memory; all images of a batch are slow, or all are fast.

    Subclasses define the model.

    Args:
        train: Images and labels to train on; uint8 images are normalised per batch.
        test: Images and labels to evaluate on.
        slow_classes: The classes whose images are slow.
        batch_size: Images per batch.
        mean: Mean of a pixel from 0 to 1 per channel, for uint8 images.
        std: Its standard deviation.

    Examples:
        >>> import latecomer as lc
        >>> issubclass(lc.problems.Digits, Images)
        True
    """

    groups = 2
    classes = 10

    def __init__(
        self,
        train: Labelled,
        test: Labelled,
        slow_classes: Iterable[int],
        batch_size: int,
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
    ) -> None:
        self.slow_classes = tuple(sorted({whole_number("slow_class", c, most=self.classes - 1) for c in slow_classes}))
        if not 0 < len(self.slow_classes) < self.classes:
            raise ValueError(f"Invalid slow_classes value: {list(self.slow_classes)} (expected some classes, not all)")
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        slow = len(self.slow_classes) / self.classes
        self.shares = (1.0 - slow, slow)
        shape = (1, len(mean), 1, 1)
        self._mean, self._std = (torch.tensor(values).view(shape) for values in (mean, std))
        self._images, self._labels = (torch.from_numpy(np.array(part)) for part in train)
        self._test_images, self._test_labels = torch.from_numpy(np.array(test[0])), np.array(test[1])
        is_slow = np.isin(train[1], self.slow_classes)
        self._pools = (np.flatnonzero(~is_slow), np.flatnonzero(is_slow))

    def picked(self, sample: int, group: int) -> Tensor:
        """Return the indices of a batch's training images."""
        pool = self._pools[group]
        return torch.from_numpy(pool[picks(sample, self.batch_size, len(pool))])

    def labels(self, sample: int, group: int) -> Tensor:
        """Return the labels of a batch, without its images."""
        return self._labels[self.picked(sample, group)]

    def normalised(self, images: Tensor) -> Tensor:
        """Return images as the network's input."""
        if images.dtype != torch.uint8:
            return images
        return images.to(torch.float32).div_(255.0).sub_(self._mean).div_(self._std)

    def batch(self, sample: int, group: int) -> tuple[Tensor, Tensor]:
        """Return images and labels of one batch."""
        picked = self.picked(sample, group)
        return self.normalised(self._images[picked]), self._labels[picked]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy."""
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return loss, accuracy and F1 on the evaluation images: mean, slow, fast and per class."""
        logits = self._logits(model)
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(self._test_labels))
        return {"loss": float(loss), **self.test_scores(logits.argmax(1).numpy())}

    def losses_by_group(self, model: nn.Module) -> tuple[float, ...]:
        """Return the cross-entropy on the evaluation images of fast and of slow classes."""
        logits, labels = self._logits(model), torch.from_numpy(self._test_labels)
        slow = torch.from_numpy(np.isin(self._test_labels, self.slow_classes))
        return tuple(float(nn.functional.cross_entropy(logits[part], labels[part])) for part in (~slow, slow))

    def _logits(self, model: nn.Module) -> Tensor:
        device = device_of(model)
        parts = (self.normalised(part).to(device) for part in torch.split(self._test_images, _AT_ONCE))
        return torch.cat([model(part.contiguous(memory_format=torch.channels_last)) for part in parts]).cpu()

    def test_scores(self, predictions: NDArray[np.int64]) -> dict[str, float]:
        """Return accuracy and F1 of predictions for the evaluation images."""
        return scores(self._test_labels, predictions, self.classes, set(self.slow_classes))


def some_of(evaluated: Labelled, count: int | None) -> Labelled:
    """Return evenly spaced images of an evaluation set, at most this many; all of them for None."""
    images, labels = evaluated
    if count is None or whole_number("evaluated", count, least=1) >= len(labels):
        return evaluated
    chosen = np.linspace(0, len(labels) - 1, count).astype(np.int64)
    return images[chosen], labels[chosen]


def held_out(arrays: dict[str, NDArray[Any]], split: str, validation: int) -> tuple[Labelled, Labelled]:
    """Split a dataset; the last ``validation`` training images are never trained on, so they can select models."""
    if split not in ("test", "validation"):
        raise ValueError(f"Invalid split value: {split!r} (expected 'test' or 'validation')")
    images, labels = arrays["train_images"], arrays["train_labels"]
    cut = len(labels) - whole_number("validation", validation, least=1, most=len(labels) - 1)
    kept = (images[:cut], labels[:cut])
    if split == "validation":
        return kept, (images[cut:], labels[cut:])
    return kept, (arrays["test_images"], arrays["test_labels"])
