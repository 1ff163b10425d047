"""One root seed, many named streams: drawing from one stream never changes another."""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["part_seed", "picks", "sample_seeds", "stream", "uniforms"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stream(seed: int, name: str, *index: int) -> np.random.Generator:
    """Return the generator of the stream ``name`` under ``seed``; further numbers select a sub-stream."""
    return np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(name.encode()), *index]))


def sample_seeds(seed: int, tickets: int, first: int = 0) -> NDArray[np.uint64]:
    """Return the sample seeds of tickets ``first`` to ``first + tickets - 1``; only seed and ticket decide them."""
    start = np.random.SeedSequence([seed, zlib.crc32(b"samples")]).generate_state(1, np.uint64)
    return _mixed(start + (np.arange(first, first + tickets, dtype=np.uint64) + np.uint64(1)) * _GOLDEN)


def part_seed(sample: int, index: int) -> int:
    """Return the seed of a part of a ticket's sample; the first part has the sample's own."""
    return sample if index == 0 else int(stream(sample, "part", index).integers(2**64, dtype=np.uint64))


def picks(sample: int, size: int, below: int) -> NDArray[np.int64]:
    """Return ``size`` indices below ``below``, drawn with replacement by a ticket's sample seed."""
    return (_mixed(np.array([sample], dtype=np.uint64) + _steps(size)) % np.uint64(below)).astype(np.int64)


@lru_cache(maxsize=16)
def _steps(size: int) -> NDArray[np.uint64]:
    return np.arange(1, size + 1, dtype=np.uint64) * _GOLDEN


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64: a counter scrambled into 64 well-mixed bits."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def uniforms(seeds: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Turn 64-bit seeds into numbers in [0, 1)."""
    return (seeds >> np.uint64(11)).astype(np.float64) * 2.0**-53
