"""`rate-free` without a setting, against every method at its best of seven learning rates."""

from __future__ import annotations

from .judging import judged, verdict_of
from .plan import PROBLEMS, Goal, Setting, plan

__all__ = ["PROBLEMS", "Goal", "Setting", "judged", "plan", "verdict_of"]
