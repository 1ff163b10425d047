"""The paper's CIFAR-10 problem: ResNet-18, fine-tuned from ImageNet, and slow classes 5 to 9."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from .. import data
from .._util.checks import POSITIVE, whole_number
from .images import Images, held_out, some_of
from .networks import seeded_module
from .resnet import ResNet18, fit_weights, read_weights

__all__ = ["Cifar10"]


class Cifar10(Images):
    """CIFAR-10 with a ResNet-18 pretrained on ImageNet, as in the paper; half of the classes are slow.

    Images stay at 32x32, are normalised by mean and standard deviation per channel, and are not augmented.
    `latecomer data get cifar10` downloads the data. Weights are never downloaded: see ``weights``.

    Args:
        width: Factor of the channels: 0.25 gives a network of 16 to 128. ImageNet weights need 1.
        weights: Initial weights: ``"imagenet"``, the file ``resnet18-f37072fd.pth`` in the cache of torch's hub; the
            path of a state dict; ``"sha256:..."``, a file that `latecomer.problems.resnet.keep_weights` has kept; or
            ``"none"`` to train from scratch. The last layer is always new, unless a file has one for ten classes.
        stem: ``"imagenet"``, or ``"small"``, which does not shrink the images before the first block: slower, and
            better from scratch. ImageNet weights do not match it.
        slow_classes: The slow classes.
        batch_size: Images per batch.
        split: What `evaluate` uses: ``"test"``, or ``"validation"``, the last 5,000 training images, which are never
            trained on.
        frozen_batch_norm: Normalise with the running averages of the initial weights, in training too, and leave them
            as they are. The scale and shift of BatchNorm are still trained.
        data_dir: Folder of the data, if not the default of `latecomer data get`.
        evaluated: How many images of the split `evaluate` uses, evenly spaced; all by default.

    Examples:
        >>> Cifar10(width=0.25)
        Traceback (most recent call last):
        ValueError: Invalid weights value: 'imagenet' with width 0.25 (expected 'none', a file, or width 1)
    """

    name = "cifar10"

    def __init__(
        self,
        width: float = 1.0,
        weights: str | os.PathLike[str] = "imagenet",
        stem: str = "imagenet",
        slow_classes: Iterable[int] = (5, 6, 7, 8, 9),
        batch_size: int = 16,
        split: str = "test",
        frozen_batch_norm: bool = False,
        data_dir: str | os.PathLike[str] | None = None,
        evaluated: int | None = None,
    ) -> None:
        _check_network(width, weights, stem, slow_classes, batch_size, split)
        if not isinstance(frozen_batch_norm, bool):
            raise TypeError(f"Invalid frozen_batch_norm value: {frozen_batch_norm!r} (expected True or False)")
        if frozen_batch_norm and weights == "none":
            raise ValueError("Invalid frozen_batch_norm value: True with weights 'none' (expected weights of a file)")
        self.width, self.stem, self.split = float(width), stem, split
        self.frozen_batch_norm = frozen_batch_norm
        self.weights, self._source, self._start = str(weights), str(weights), dict[str, Tensor]()
        if weights != "none":
            # Read once and kept: every model of this problem starts from the same bytes, even if the file changes.
            self._start, digest = read_weights(weights)
            if weights != "imagenet":
                self.weights = f"sha256:{digest}"  # identified by content, not by path
            self.model(0)  # raises if they do not match
        self.evaluated = evaluated
        train, held = held_out(data.load("cifar10", None if data_dir is None else str(data_dir)), split, 5000)
        mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
        super().__init__(train, some_of(held, evaluated), slow_classes, batch_size, mean=mean, std=std)

    def __repr__(self) -> str:
        return (
            f"Cifar10(width={self.width!r}, weights={self.weights!r}, stem={self.stem!r}, "
            f"slow_classes={self.slow_classes!r}, batch_size={self.batch_size}, split={self.split!r}"
            + (", frozen_batch_norm=True" if self.frozen_batch_norm else "")
            + (")" if self.evaluated is None else f", evaluated={self.evaluated})")
        )

    def model(self, seed: int) -> nn.Module:
        """Return a new network; with weights from a file the seed only draws its last layer."""
        model: nn.Module = seeded_module(
            lambda: ResNet18(width=self.width, num_classes=self.classes, stem=self.stem), seed
        )
        if self._start:
            fit_weights(model, self._start, self._source)
        if self.frozen_batch_norm:
            for part in model.modules():
                if isinstance(part, nn.BatchNorm2d):
                    part.eval()
        return model


def _check_network(width: Any, weights: Any, stem: Any, slow_classes: Any, batch_size: Any, split: Any) -> None:
    """Check the arguments before hundreds of megabytes are read."""
    POSITIVE.check("width", width)
    if stem not in ("imagenet", "small"):
        raise ValueError(f"Invalid stem value: {stem!r} (expected 'imagenet' or 'small')")
    if split not in ("test", "validation"):
        raise ValueError(f"Invalid split value: {split!r} (expected 'test' or 'validation')")
    if not isinstance(slow_classes, Iterable):
        raise TypeError(f"Invalid slow_classes value: {slow_classes!r} (expected some classes, such as (5, 6))")
    if whole_number("batch_size", batch_size, least=1) == 1 and stem == "imagenet":
        raise ValueError(
            "Invalid batch_size value: 1 (expected batch_size >= 2, or stem 'small': after stem 'imagenet' an image "
            "shrinks to one pixel, and BatchNorm needs two)"
        )
    if weights == "imagenet" and float(width) != 1.0:
        raise ValueError(
            f"Invalid weights value: 'imagenet' with width {float(width):g} (expected 'none', a file, or width 1)"
        )
    if weights == "imagenet" and stem == "small":
        raise ValueError("Invalid weights value: 'imagenet' with stem 'small' (expected 'none', or stem 'imagenet')")
