"""What asynchrony would bring on a task of one's own, predicted from a few timed jobs."""

from .plan import Plan, plan
from .predict import Network, Prediction, predict_policy, predict_rounds
from .timing import JobTimes, recorded_times, time_jobs

__all__ = [
    "JobTimes",
    "Network",
    "Plan",
    "Prediction",
    "plan",
    "predict_policy",
    "predict_rounds",
    "recorded_times",
    "time_jobs",
]
