"""The quadratics on which fairness is measured."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["PROBLEMS"]

PROBLEMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "near": {"distance": 3.0},
        "far": {"distance": 10.0},
        "loud": {"distance": 3.0, "slow_noise": 5.0},
        "heavy-tailed": {"distance": 3.0, "slow_noise": 2.0, "tail": 1.5},
    }
)
"""Arguments of `TwoCentres`: slow gradients like the fast ones, larger by signal, larger by noise, heavy-tailed."""
