"""Bounds, parameter choices, estimates of constants, diagnostics of a run, and a counter-example."""

from .._util.intervals import Interval
from .advice import Advice, advise
from .counter_example import CounterExample
from .diagnostics import Gradients, diagnose
from .estimates import Constants, estimate
from .influence import influence, influence_by_group, influence_by_worker
from .theorem1 import (
    CatchUp,
    NonConvex,
    catch_up,
    delay_adaptive_lr,
    independent_nonconvex,
    nonconvex,
    prior_nonconvex,
    repaired_nonconvex,
)
from .theorem2 import Convex, convex, independent_convex, prior_convex
from .workers import Subset, fastest, largest_useful_workers, steps_needed

__all__ = [
    "Advice",
    "CatchUp",
    "Constants",
    "Convex",
    "CounterExample",
    "Gradients",
    "Interval",
    "NonConvex",
    "Subset",
    "advise",
    "catch_up",
    "convex",
    "delay_adaptive_lr",
    "diagnose",
    "estimate",
    "fastest",
    "independent_convex",
    "independent_nonconvex",
    "influence",
    "influence_by_group",
    "influence_by_worker",
    "largest_useful_workers",
    "nonconvex",
    "prior_convex",
    "prior_nonconvex",
    "repaired_nonconvex",
    "steps_needed",
]
