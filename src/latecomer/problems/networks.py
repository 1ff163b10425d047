"""Small image networks, with the paper's cubic on the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

__all__ = ["Cubic", "cnn", "mlp"]

T = TypeVar("T")


class Cubic(nn.Module):
    """Cubes its input: gradients are unbounded, so the objective is not Lipschitz."""

    def forward(self, logits: Tensor) -> Tensor:
        """Return the cube."""
        return logits * logits * logits


def cnn(
    image: int = 28,
    channels: tuple[int, int] = (20, 50),
    kernel: int = 5,
    padding: int = 0,
    hidden: int = 50,
    classes: int = 10,
    cubic: bool = True,
) -> nn.Sequential:
    """Return the kind of network that the paper uses on MNIST: two convolutions, two linear layers, cubed logits.

    The numbers of channels and the hidden size are not in the paper (decision 13 of docs/paper-map.md).
    """
    side = ((image + 2 * padding - kernel + 1) // 2 + 2 * padding - kernel + 1) // 2
    layers: list[nn.Module] = [
        nn.Conv2d(1, channels[0], kernel, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels[0], channels[1], kernel, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels[1] * side * side, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    ]
    # Channels last: 1.2 to 1.5 times the gradients per second of the default layout on one core.
    network = nn.Sequential(*layers, *([Cubic()] if cubic else []))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def mlp(inputs: int = 64, hidden: int = 32, classes: int = 10, cubic: bool = True) -> nn.Sequential:
    """Return a network with one hidden layer."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers, *([Cubic()] if cubic else []))


def seeded_module(build: Callable[[], T], seed: int) -> T:
    """Build a network with this seed; torch's global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()
