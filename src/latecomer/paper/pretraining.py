"""Features from another task: a ResNet-18 that is pre-trained on CIFAR-10's images, without their labels.

The paper fine-tunes from ImageNet. Where those weights are not at hand, this is the declared stand-in: the same regime,
features of another task and a new last layer. The test images and the validation images are never trained on.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .. import data
from .._util.checks import whole_number
from ..core.result import Run
from ..delays import Constant
from ..problems.base import Problem
from ..problems.images import held_out
from ..problems.networks import seeded_module
from ..problems.resnet import ResNet18
from ..simulation import simulate

__all__ = ["STAND_INS", "TASKS", "Contrast", "Pretext", "Rotations", "Task", "pretrain"]

Task = Literal["rotations", "contrast"]
"""What a stand-in predicts."""

_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_EVALUATED = 512  # held-out images that show how far the training is
_EVALUATIONS = 100


class Pretext(Problem):
    """A task that needs images and no labels; its network is that of `Cifar10`, with another last layer.

    Args:
        width: Factor of the channels.
        batch_size: Images per batch.
        data_dir: Folder of the data, if not the default of `latecomer data get`.
    """

    outputs: int
    lr: float

    def __init__(
        self, width: float = 0.25, batch_size: int = 128, data_dir: str | os.PathLike[str] | None = None
    ) -> None:
        arrays = data.load("cifar10", None if data_dir is None else str(data_dir))
        (train, _), (held, _) = held_out(arrays, "validation", 5000)
        self.width, self.batch_size = float(width), whole_number("batch_size", batch_size, least=2)
        self._images, self._held = (torch.from_numpy(np.array(part)) for part in (train, held[:_EVALUATED]))
        self._mean, self._std = (torch.tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _STD))

    def model(self, seed: int) -> nn.Module:
        """Return a new network."""
        network: nn.Module = seeded_module(lambda: ResNet18(width=self.width, num_classes=self.outputs), seed)
        return network

    def batch(self, sample: int, group: int) -> Any:
        """Return the task's version of random training images."""
        draws = torch.Generator().manual_seed(sample % 2**63)
        picked = torch.randint(len(self._images), (self.batch_size,), generator=draws)
        return self.posed(self._images[picked], draws)

    @abstractmethod
    def posed(self, images: Tensor, draws: torch.Generator) -> Any:
        """Return the question that the task makes of images, and its answer."""

    def normalised(self, images: Tensor) -> Tensor:
        """Return pixels as the network's input."""
        return images.to(torch.float32).div_(255.0).sub_(self._mean).div_(self._std)


class Rotations(Pretext):
    """Which of four rotations was an image turned by? Images are shifted by up to four pixels and flipped first."""

    name, outputs, lr = "rotations", 4, 0.5

    def posed(self, images: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return turned images, and by how many quarters."""
        quarters = torch.randint(4, (len(images),), generator=draws)
        return self.normalised(_turned(_shifted(images, draws), quarters)), quarters

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy."""
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return loss and accuracy on held-out images, each turned by one of the four rotations."""
        quarters = torch.arange(len(self._held)) % 4
        logits = model(self.normalised(_turned(self._held, quarters)))
        right = (logits.argmax(1) == quarters).to(torch.float64)
        return {"loss": float(nn.functional.cross_entropy(logits, quarters)), "accuracy": float(right.mean())}


class Contrast(Pretext):
    """Which of many images is another view of this one? Views differ in crop, flip and colours."""

    name, outputs, lr, temperature = "contrast", 64, 0.5, 0.2

    def posed(self, images: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return two views of every image."""
        return self._view(images, draws), self._view(images, draws)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy of finding the other view among all others."""
        scores = self._similarities(model, *batch)
        n = len(batch[0])
        others = torch.arange(2 * n).roll(n)
        return nn.functional.cross_entropy(scores.fill_diagonal_(-torch.inf), others)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss on two views of held-out images, and how often the other view is the most similar one."""
        draws = torch.Generator().manual_seed(0)
        scores = self._similarities(model, *self.posed(self._held, draws)).fill_diagonal_(-torch.inf)
        others = torch.arange(len(scores)).roll(len(scores) // 2)
        right = (scores.argmax(1) == others).to(torch.float64)
        return {"loss": float(nn.functional.cross_entropy(scores, others)), "accuracy": float(right.mean())}

    def _similarities(self, model: nn.Module, first: Tensor, second: Tensor) -> Tensor:
        features = nn.functional.normalize(model(torch.cat([first, second])))
        return features @ features.T / self.temperature

    def _view(self, images: Tensor, draws: torch.Generator) -> Tensor:
        n = len(images)
        uniform = torch.rand((n, 8), generator=draws)
        size = 0.5 + 0.5 * uniform[:, 0]  # half to all of the side
        flip = torch.where(uniform[:, 1] < 0.5, -1.0, 1.0)
        corner = (1.0 - size)[:, None] * (2.0 * uniform[:, 2:4] - 1.0)
        theta = torch.zeros(n, 2, 3)
        theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = size * flip, size, corner
        grid = nn.functional.affine_grid(theta, [n, 3, 32, 32], align_corners=False)
        x = nn.functional.grid_sample(images.to(torch.float32), grid, padding_mode="reflection", align_corners=False)
        grey = x.mean(1, keepdim=True)
        colour = torch.where(uniform[:, 4] < 0.2, 0.0, 0.4 + 1.2 * uniform[:, 5]).view(n, 1, 1, 1)
        x = grey + colour * (x - grey)
        middle = x.mean((1, 2, 3), keepdim=True)
        contrast, brightness = ((0.6 + 0.8 * uniform[:, k]).view(n, 1, 1, 1) for k in (6, 7))
        return self.normalised((brightness * (middle + contrast * (x - middle))).clamp_(0.0, 255.0))


TASKS: dict[str, type[Rotations] | type[Contrast]] = {"rotations": Rotations, "contrast": Contrast}
"""Pre-training tasks by name."""
STAND_INS: dict[Task, int] = {"rotations": 64_000, "contrast": 60_000}
"""What stands in for ImageNet, in the order in which it is tried: task and updates (about 0.9 and 1.8 CPU-hours)."""


def _shifted(images: Tensor, draws: torch.Generator, by: int = 4) -> Tensor:
    """Shift each image by up to so many pixels in both directions, and flip half of them."""
    n, channels, side, _ = images.shape
    padded = nn.functional.pad(images, (by, by, by, by))
    start = torch.randint(2 * by + 1, (n, 2), generator=draws)
    rows, columns = (start[:, k, None] + torch.arange(side) for k in (0, 1))
    flip = torch.rand(n, generator=draws) < 0.5
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    each, channel = torch.arange(n)[:, None, None, None], torch.arange(channels)[None, :, None, None]
    return padded[each, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _turned(images: Tensor, quarters: Tensor) -> Tensor:
    turned = images.clone()
    for quarter in (1, 2, 3):
        turned[quarters == quarter] = torch.rot90(images[quarters == quarter], quarter, (2, 3))
    return turned


def pretrain(
    task: Problem,
    steps: int,
    seed: int = 0,
    lr: float = 0.5,
    checkpoint: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Train on a task with momentum, without delays, and with a learning rate that falls to zero along a cosine.

    Args:
        task: The task.
        steps: Number of updates.
        seed: Initialises the network and draws the images.
        lr: Learning rate at the start.
        checkpoint: A folder; if it has a checkpoint of this run, the run goes on from it with identical bits.
        progress: Is called with updates so far and updates in all.
    """
    return simulate(
        task,
        "momentum",
        Constant(workers=1).trace(steps, seed),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
        seed=seed,
        evaluate_every=max(1, -(-steps // _EVALUATIONS)),
        checkpoint=checkpoint,
        progress=progress or False,
        lr=lr,
        beta=0.1,
    )
