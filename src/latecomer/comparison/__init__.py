"""Methods compared on one clock: the same tuning budget, the same durations per ticket, time to a target."""

from ..trace.work import WorkShares, work_shares
from .compare import compare
from .plan import Comparison, planned
from .results import Results
from .statistics import Reached, median, performance_profile, reached, time_ratios

__all__ = [
    "Comparison",
    "Reached",
    "Results",
    "WorkShares",
    "compare",
    "median",
    "performance_profile",
    "planned",
    "reached",
    "time_ratios",
    "work_shares",
]
