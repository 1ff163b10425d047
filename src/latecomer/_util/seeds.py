"""One root seed, many named streams: who draws from one never changes what another gives."""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["picks", "sample_seeds", "stream", "uniforms"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stream(seed: int, name: str, *index: int) -> np.random.Generator:
    """Return the generator of the stream ``name`` under ``seed``; numbers after it number sub-streams.

    Examples:
        >>> bool(stream(0, "arrivals").integers(100) == stream(0, "arrivals").integers(100))
        True
        >>> bool(stream(0, "arrivals").integers(2**60) == stream(0, "durations").integers(2**60))
        False
    """
    return np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(name.encode()), *index]))


def sample_seeds(seed: int, tickets: int, first: int = 0) -> NDArray[np.uint64]:
    """Return the sample seed of the tickets ``first`` to ``first + tickets - 1``: the ticket alone decides it.

    Examples:
        >>> bool((sample_seeds(0, 10)[3:] == sample_seeds(0, 7, first=3)).all())
        True
    """
    start = np.random.SeedSequence([seed, zlib.crc32(b"samples")]).generate_state(1, np.uint64)
    return _mixed(start + (np.arange(first, first + tickets, dtype=np.uint64) + np.uint64(1)) * _GOLDEN)


def picks(sample: int, size: int, below: int) -> NDArray[np.int64]:
    """Return which ``size`` of ``below`` things a ticket draws, with replacement, by its sample seed.

    Examples:
        >>> picks(sample=7, size=4, below=100).tolist() == picks(sample=7, size=4, below=100).tolist()
        True
        >>> bool(np.bincount(picks(sample=7, size=80_000, below=8), minlength=8).min() > 9_600)
        True
    """
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
    """Turn 64-bit seeds into numbers in [0, 1): the draw that belongs to each ticket.

    Examples:
        >>> u = uniforms(sample_seeds(0, 1000))
        >>> bool(0 <= u.min() and u.max() < 1)
        True
    """
    return (seeds >> np.uint64(11)).astype(np.float64) * 2.0**-53
