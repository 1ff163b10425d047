"""The search for a method that is both stable and fair: candidates, measures, sweeps, the Pareto front."""

from .adamw import ADAMW, adamw_curves, adamw_plan, adamw_table
from .board import board, front_of, over_rates
from .candidates import CANDIDATES, RECOMMENDED, Candidate
from .fairness import PROBLEMS
from .hard import HARD, Setting, hard_plan, hard_table
from .measured import Watch, run_measured, slow_over_fast
from .pareto import Score, front
from .plans import METRICS, SIZES, Metric, Size, plan, size_of
from .real import SlowDigits, real
from .stability import Stability, candidate, stability

__all__ = [
    "ADAMW",
    "CANDIDATES",
    "HARD",
    "METRICS",
    "PROBLEMS",
    "RECOMMENDED",
    "SIZES",
    "Candidate",
    "Metric",
    "Score",
    "Setting",
    "Size",
    "SlowDigits",
    "Stability",
    "Watch",
    "adamw_curves",
    "adamw_plan",
    "adamw_table",
    "board",
    "candidate",
    "front",
    "front_of",
    "hard_plan",
    "hard_table",
    "over_rates",
    "plan",
    "real",
    "run_measured",
    "size_of",
    "slow_over_fast",
    "stability",
]
