"""Reference implementations of the optimizers: they keep the whole history and evaluate the paper's sums from scratch.

Slow on purpose, and the oracle of the tests. Each works on one float64 tensor. Its hyper-parameters are entries of
`options` that may be changed between steps. Nothing here shares code with the optimizers.
"""

from __future__ import annotations

from .base import Received, Twin
from .clipped import (
    BalancedAdamWTwin,
    BalancedCatchUpTwin,
    BalancedMomentumTwin,
    ClippedCatchUpTwin,
    ClippedTwin,
    LatenessClippedTwin,
)
from .oracles import anytime_gd, anytime_storm, storm, synchronous_momentum
from .paper import (
    AnytimeTwin,
    AsyncSGDTwin,
    CatchUpAdamWTwin,
    CatchUpTwin,
    DelayAdaptiveTwin,
    DelayFilteredTwin,
    MomentumTwin,
    Mu2Twin,
    OrderedMomentumTwin,
    OrderedMu2Twin,
)

__all__ = [
    "TWINS",
    "AnytimeTwin",
    "AsyncSGDTwin",
    "BalancedAdamWTwin",
    "BalancedCatchUpTwin",
    "BalancedMomentumTwin",
    "CatchUpAdamWTwin",
    "CatchUpTwin",
    "ClippedCatchUpTwin",
    "ClippedTwin",
    "DelayAdaptiveTwin",
    "DelayFilteredTwin",
    "LatenessClippedTwin",
    "MomentumTwin",
    "Mu2Twin",
    "OrderedMomentumTwin",
    "OrderedMu2Twin",
    "Received",
    "Twin",
    "anytime_gd",
    "anytime_storm",
    "storm",
    "synchronous_momentum",
]

TWINS: dict[str, type[Twin]] = {
    "async-sgd": AsyncSGDTwin,
    "delay-adaptive": DelayAdaptiveTwin,
    "delay-filtered": DelayFilteredTwin,
    "momentum": MomentumTwin,
    "mu2": Mu2Twin,
    "ordered-momentum": OrderedMomentumTwin,
    "catch-up": CatchUpTwin,
    "ordered-mu2": OrderedMu2Twin,
    "ordered-mu2-anytime": AnytimeTwin,
    "catch-up-adamw": CatchUpAdamWTwin,
    "clipped-catch-up": ClippedCatchUpTwin,
    "balanced-catch-up": BalancedCatchUpTwin,
    "balanced-momentum": BalancedMomentumTwin,
    "balanced-adamw": BalancedAdamWTwin,
}
"""The reference of every method in `latecomer.optim.METHODS`."""
