"""Random numbers of a job: fixed by the ticket's sample, in whichever process, and isolated from the user's own."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from .devices import devices_restored, seed_device

__all__ = ["kept_generators", "other_generators", "seed_torch", "seeded", "seeded_order"]


@contextmanager
def other_generators(sample: int) -> Iterator[None]:
    """Seed Python's and numpy's global generators, and restore them afterwards."""
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
    """Seed the global generators of torch, Python and numpy, and restore them afterwards."""
    before = torch.get_rng_state()
    try:
        with other_generators(sample), devices_restored():
            seed_torch(sample)
            yield
    finally:
        torch.set_rng_state(before)


def seed_torch(sample: int) -> None:
    """Seed torch's generators: the CPU's, and those of the devices that workers of this process use."""
    torch.default_generator.manual_seed(sample >> 1)
    seed_device(sample >> 1)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore torch's generators afterwards, for jobs in the process of the user."""
    with torch.random.fork_rng(devices=[]), devices_restored():
        yield


def seeded_order(sampler: Iterable[Any], epoch: int, seed: int) -> list[Any]:
    """Return the order of a sampler with everything random seeded, also generators of samplers inside it."""
    _seed_inside(sampler, epoch, seed)
    with seeded(seed):
        return list(sampler)


def _seed_inside(sampler: Any, epoch: int, seed: int) -> None:
    if callable(getattr(sampler, "set_epoch", None)):
        sampler.set_epoch(epoch)
    for part in vars(sampler).values() if hasattr(sampler, "__dict__") else ():
        if isinstance(part, torch.Generator):
            part.manual_seed(seed >> 1)
        elif isinstance(part, np.random.Generator):
            part.bit_generator.state = type(part.bit_generator)(seed).state
        elif isinstance(part, np.random.RandomState):
            part.seed(seed % 2**32)
        elif isinstance(part, random.Random):
            part.seed(seed)
        elif isinstance(part, torch.utils.data.Sampler):
            _seed_inside(part, epoch, seed)
