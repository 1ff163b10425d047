"""The library's own methods, one line each, with the influence that each declares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .adamw import CatchUpAdamW
from .clipped import BalancedAdamW, BalancedCatchUp, BalancedMomentum, ClippedCatchUp
from .method import Method
from .momentum import Momentum, OrderedMomentum
from .mu2 import Mu2SGD, OrderedMu2SGD
from .mu2_anytime import OrderedMu2Anytime
from .sgd import AsyncSGD, DelayAdaptiveSGD, DelayFilteredSGD

__all__ = ["LIBRARY"]


def _full(delay: int, **_: Any) -> float:
    """1 at any delay."""
    return 1.0


def _clipped(delay: int, **_: Any) -> float:
    """1 at any delay, times the clipping factor."""
    return 1.0


def _shrunk(delay: int, *, workers: int, **_: Any) -> float:
    """min(1, workers / delay)."""
    return min(1.0, workers / delay) if delay else 1.0


def _filtered(delay: int, *, threshold: float, **_: Any) -> float:
    """1 if delay <= threshold, else 0."""
    return float(delay <= threshold)


def _ordered(delay: int, *, beta: float, **_: Any) -> float:
    """(1 - beta)^delay."""
    return float((1.0 - beta) ** delay)


LIBRARY: dict[str, Method] = {
    method.name: replace(method, flat=True)
    for method in (
        Method("async-sgd", AsyncSGD, _full, "Eq. (4)"),
        Method("delay-adaptive", DelayAdaptiveSGD, _shrunk, "Eq. (3)"),
        Method("delay-filtered", DelayFilteredSGD, _filtered, "Section 6"),
        Method("momentum", Momentum, _full, "Eq. (6)"),
        Method("mu2", Mu2SGD, _full, "Eq. (14)"),
        Method("ordered-momentum", OrderedMomentum, _ordered, "Algorithm 1"),
        Method("catch-up", OrderedMomentum, _full, "ours, on Algorithm 1", {"catch_up": True}),
        Method("ordered-mu2", OrderedMu2SGD, _ordered, "Eq. (12), (14)"),
        Method("ordered-mu2-anytime", OrderedMu2Anytime, _full, "Algorithm 2"),
        Method("catch-up-adamw", CatchUpAdamW, _full, "ours, on AdamW"),
        Method("clipped-catch-up", ClippedCatchUp, _clipped, "ours"),
        Method("balanced-catch-up", BalancedCatchUp, _clipped, "ours"),
        Method("balanced-momentum", BalancedMomentum, _clipped, "ours"),
        Method("balanced-adamw", BalancedAdamW, _clipped, "ours, on AdamW"),
    )
}
