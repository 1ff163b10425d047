"""The search for a method that is both stable and fair: candidates, measures, sweeps, the front."""

from studies.stable_and_fair.board import board, front_of, over_rates
from studies.stable_and_fair.candidates import CANDIDATES, RECOMMENDED, Candidate
from studies.stable_and_fair.fairness import PROBLEMS
from studies.stable_and_fair.hard import HARD, Setting, hard_plan, hard_table
from studies.stable_and_fair.measured import Watch, run_measured, slow_over_fast
from studies.stable_and_fair.pareto import Score, front
from studies.stable_and_fair.plans import METRICS, SIZES, Metric, Size, plan, size_of
from studies.stable_and_fair.real import Sleepy, real
from studies.stable_and_fair.stability import Stability, candidate, stability

__all__ = [
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
    "Sleepy",
    "Stability",
    "Watch",
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
