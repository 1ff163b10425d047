"""The library's own methods, one line each, with the influence that each declares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..policy import (
    AsyncMiniBatch,
    FedBuff,
    Rennala,
    Ringmaster,
    RingmasterStop,
    Synchronous,
)
from ..policy import (
    Ringleader as RingleaderRounds,
)
from ..policy.rounds import flat_buffer
from .adamw import CatchUpAdamW, OrderedAdamW
from .anytime import AnytimeSGD
from .clipped import BalancedAdamW, BalancedCatchUp, BalancedMomentum, ClippedCatchUp
from .dana import DanaZero
from .fadas import FADAS
from .lmo import NormalisedMomentum
from .method import Method
from .momentum import Momentum, OrderedMomentum
from .mu2 import Mu2SGD, OrderedMu2SGD
from .mu2_anytime import OrderedMu2Anytime
from .ormo import DelayAdaptiveOrMo, OrMo
from .rate_free import RateFree
from .ringleader import Ringleader
from .sgd import AsyncSGD, DelayAdaptiveSGD, DelayFilteredSGD
from .stale_point import DCASGD, PickySGD
from .staleness import ASAP, ClippedSGD, StalenessAwareSGD

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


def _divided(delay: int, **_: Any) -> float:
    """1 / max(1, delay)."""
    return 1.0 / max(1, delay)


def _bounded(delay: int, *, lr: float, L: float, workers: int, **_: Any) -> float:
    """1 if delay <= 2·workers, else min(1, 1/(4·L·delay·lr))."""
    return 1.0 if delay <= 2 * workers else min(1.0, 1.0 / (4.0 * L * delay * lr))


def _below(delay: int, *, workers: int, R: float | None = None, **_: Any) -> float:
    """1 if delay < R, else 0."""
    return float(delay < (workers if R is None else R))


def _fresh(delay: int, **_: Any) -> float:
    """1 without delay, else 0."""
    return float(delay == 0)


def _rooted(delay: int, *, flat: bool = False, **_: Any) -> float:
    """(1 + delay)^-1/2, or 1 with flat=True."""
    return 1.0 if flat else float((1.0 + delay) ** -0.5)


_SHAPED = frozenset({"ringmaster-lmo"})
"""Methods whose rule depends on the shapes of parameters."""

LIBRARY: dict[str, Method] = {
    method.name: replace(method, flat=method.name not in _SHAPED)
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
        Method("rate-free", RateFree, source="ours, on schedule-free AdamW"),
        # The field's other methods; docs/rivals.md has their rules, and how sure we are of them.
        Method("ormo", OrMo, _full, "Shi 2024, arXiv 2407.19234; our reading"),
        Method("ormo-da", DelayAdaptiveOrMo, _bounded, "Shi 2024, arXiv 2407.19234; our reading"),
        Method(
            "ringmaster", AsyncSGD, _below, "Maranjyan 2025, arXiv 2501.16168; read in public code", policy=Ringmaster
        ),
        Method(
            "ringmaster-stop",
            AsyncSGD,
            _below,
            "Maranjyan 2025, arXiv 2501.16168; read in public code",
            policy=RingmasterStop,
        ),
        Method(
            "ringleader",
            Ringleader,
            None,
            "Maranjyan 2025, arXiv 2509.22860; read in public code",
            policy=RingleaderRounds,
        ),
        Method("rennala", AsyncSGD, _fresh, "Tyurin 2023, arXiv 2305.12387; read in public code", policy=Rennala),
        Method("sync-minibatch", AsyncSGD, _full, "textbook", policy=Synchronous),
        Method("async-minibatch", Momentum, _fresh, "Attia 2024, arXiv 2408.07503; our reading", policy=AsyncMiniBatch),
        Method("picky", PickySGD, None, "Cohen 2021, arXiv 2106.11879; our reading"),
        Method("staleness-aware", StalenessAwareSGD, _divided, "Zhang 2015, arXiv 1511.05950; read in public code"),
        Method("dc-asgd", DCASGD, None, "Zheng 2017, arXiv 1609.08326; read in public code"),
        Method("dana-zero", DanaZero, _full, "Hakimi 2019, arXiv 1907.11612; read in public code"),
        Method("asap", ASAP, None, "Backstrom 2022, ICML; read in public code"),
        Method("fedbuff", AsyncSGD, _rooted, "Nguyen 2021, arXiv 2106.06639; read in public code", policy=FedBuff),
        Method("fadas", FADAS, None, "Wang 2024, arXiv 2407.18365; read in secondary sources", policy=flat_buffer),
        Method("anytime-sgd", AnytimeSGD, _full, "Aviv 2021, ICML; our reading"),
        Method("clipped", ClippedSGD, _clipped, "Erickson 2026, arXiv 2606.13287; read in public code"),
        Method(
            "ringmaster-lmo",
            NormalisedMomentum,
            None,
            "Sadiev 2026, arXiv 2605.18174; read in public code",
            policy=Ringmaster,
        ),
        Method("ordered-adamw", OrderedAdamW, None, "ours, on AdamW"),
    )
}
"""The library's own methods, by name."""
