"""The paper's MNIST problem as we read it: a small convolutional network with a cubic on its logits, and slow nines."""

from __future__ import annotations

import os

from torch import nn

from .. import data
from .._util.checks import POSITIVE
from .images import Images, held_out, some_of
from .networks import cnn, seeded_module

__all__ = ["Mnist"]


class Mnist(Images):
    """MNIST with the paper's kind of network, cubed logits and no weight decay; nines are slow.

    Not in the paper, but our reading (decision 13 of docs/paper-map.md): convolutions of 20 and 50 channels with 5x5
    kernels, a hidden layer of 50, pixels normalised by 0.1307 and 0.3081. `latecomer data get mnist` downloads the
    data.

    Args:
        width: Factor of the channels: 0.4 gives a network of 8 and 20.
        cubic: Cube the logits.
        slow_class: The slow digit.
        batch_size: Images per batch.
        split: What `evaluate` uses: ``"test"``, or ``"validation"``, the last 5,000 training images, which are never
            trained on.
        data_dir: Folder of the data, if not the default of `latecomer data get`.
        evaluated: How many images of the split `evaluate` uses, evenly spaced; all by default.

    Examples:
        >>> Mnist.__name__
        'Mnist'
    """

    name = "mnist"

    def __init__(
        self,
        width: float = 1.0,
        cubic: bool = True,
        slow_class: int = 9,
        batch_size: int = 16,
        split: str = "test",
        data_dir: str | os.PathLike[str] | None = None,
        evaluated: int | None = None,
    ) -> None:
        if not isinstance(cubic, bool):
            raise TypeError(f"Invalid cubic value: {cubic!r} (expected True or False)")
        self.width, self.cubic, self.split = POSITIVE.check("width", width), cubic, split
        arrays = data.load("mnist", None if data_dir is None else str(data_dir))
        arrays = {name: array[:, None] if name.endswith("images") else array for name, array in arrays.items()}
        train, held = held_out(arrays, split, 5000)
        self.evaluated = evaluated
        super().__init__(train, some_of(held, evaluated), (slow_class,), batch_size, mean=(0.1307,), std=(0.3081,))

    def __repr__(self) -> str:
        return (
            f"Mnist(width={self.width:g}, cubic={self.cubic}, slow_class={self.slow_classes[0]}, "
            f"batch_size={self.batch_size}, split={self.split!r}"
            + (")" if self.evaluated is None else f", evaluated={self.evaluated})")
        )

    def model(self, seed: int) -> nn.Module:
        """Return a new network."""
        channels = (max(1, round(20 * self.width)), max(1, round(50 * self.width)))
        return seeded_module(lambda: cnn(channels=channels, cubic=self.cubic), seed)
