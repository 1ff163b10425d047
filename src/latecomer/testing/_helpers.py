"""What the rules of `check_method` share: parameters, delays of an order, the global random generators."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["SHAPES", "HalfwayError", "delays_of", "distance", "generators", "parameters", "seed_all"]

SHAPES = ((4, 3), (5,))


class HalfwayError(Exception):
    """Ends a run that is to be resumed."""


def parameters() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator)) for shape in SHAPES]


def delays_of(order: Sequence[int]) -> list[int]:
    since = dict.fromkeys(order, 0)
    delays = []
    for t, worker in enumerate(order):
        delays.append(t - since[worker])
        since[worker] = t + 1
    return delays


def distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    largest = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    return f"parameters up to {largest:.3g} away"


class generators:  # noqa: N801 - used as a function
    """Restores the global random generators."""

    def __enter__(self) -> None:
        self._before = torch.get_rng_state(), random.getstate(), np.random.get_state()

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self._before[0])
        random.setstate(self._before[1])
        np.random.set_state(self._before[2])


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
