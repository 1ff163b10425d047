"""Bounds, parameter choices, estimates of constants, diagnostics along a run, and what does not hold."""

from .convex import Convex, convex, independent_convex, prior_convex
from .influence import influence, influence_by_group
from .nonconvex import (
    CatchUp,
    NonConvex,
    catch_up,
    delay_adaptive_lr,
    independent_nonconvex,
    nonconvex,
    prior_nonconvex,
    repaired_nonconvex,
)
from .workers import Subset, fastest, largest_useful_workers, steps_needed

__all__ = [
    "CatchUp",
    "Convex",
    "NonConvex",
    "Subset",
    "catch_up",
    "convex",
    "delay_adaptive_lr",
    "fastest",
    "independent_convex",
    "independent_nonconvex",
    "influence",
    "influence_by_group",
    "largest_useful_workers",
    "nonconvex",
    "prior_convex",
    "prior_nonconvex",
    "repaired_nonconvex",
    "steps_needed",
]
