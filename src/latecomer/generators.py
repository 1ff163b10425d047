"""Random numbers of a ticket's job: fixed by its sample, whoever computes it, and without a trace for anybody else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["other_generators", "seeded"]


@contextmanager
def other_generators(sample: int) -> Iterator[None]:
    """Seed Python's and numpy's own generators, and put them back afterwards.

    Examples:
        >>> with other_generators(7):
        ...     first = random.random()
        >>> with other_generators(7):
        ...     first == random.random()
        True
    """
    before = random.getstate(), np.random.get_state()
    random.seed(sample)
    np.random.seed(sample % 2**32)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


@contextmanager
def seeded(sample: int) -> Iterator[None]:
    """Seed torch's generator too, and put all of them back afterwards.

    Examples:
        >>> with seeded(7):
        ...     first = torch.rand(1)
        >>> with seeded(7):
        ...     torch.equal(first, torch.rand(1))
        True
    """
    before = torch.get_rng_state()
    try:
        with other_generators(sample):
            torch.default_generator.manual_seed(sample >> 1)
            yield
    finally:
        torch.set_rng_state(before)
