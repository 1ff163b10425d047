"""Measures of the search for a method that is both stable and fair."""

from .fairness import (
    PROBLEMS,
    Fairness,
    TwoCentres,
    applied_influence,
    counter_example_ratio,
    measure,
    slow_over_fast,
)
from .pareto import Score, front
from .stability import Stability, candidate, stability

__all__ = [
    "PROBLEMS",
    "Fairness",
    "Score",
    "Stability",
    "TwoCentres",
    "applied_influence",
    "candidate",
    "counter_example_ratio",
    "front",
    "measure",
    "slow_over_fast",
    "stability",
]
