"""The search for a method that is both stable and fair: candidates, measures, sweeps, the front."""

from .board import board, front_of
from .candidates import CANDIDATES, CONTROLS, SHORTLIST, Candidate
from .fairness import PROBLEMS, Fairness, counter_example_ratio, measure
from .hard import HARD, LEADERS, Setting, hard_plan, hard_table
from .measured import Watch, applied_influence, run_measured, slow_over_fast
from .pareto import Score, front
from .plans import SIZES, Size, plan, size_of
from .real import Sleepy, real
from .stability import Stability, candidate, stability

__all__ = [
    "CANDIDATES",
    "CONTROLS",
    "HARD",
    "LEADERS",
    "PROBLEMS",
    "SHORTLIST",
    "SIZES",
    "Candidate",
    "Fairness",
    "Score",
    "Setting",
    "Size",
    "Sleepy",
    "Stability",
    "Watch",
    "applied_influence",
    "board",
    "candidate",
    "counter_example_ratio",
    "front",
    "front_of",
    "hard_plan",
    "hard_table",
    "measure",
    "plan",
    "real",
    "run_measured",
    "size_of",
    "slow_over_fast",
    "stability",
]
