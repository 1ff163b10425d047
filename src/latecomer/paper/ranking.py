"""Configurations ranked by their validation F1."""

from __future__ import annotations

from ..experiments.pieces import FinishedRuns
from ..experiments.ranking import Ranking, ranked
from ..experiments.spec import Sweep

__all__ = ["ranking"]


def ranking(sweep: Sweep, runs: FinishedRuns) -> Ranking | None:
    """Return each method's configurations by their mean validation F1, best first; None while runs are missing."""
    if sweep.problem_options.get("split") != "validation":
        raise ValueError(f"The sweep {sweep.name!r} is not on the validation split: nothing may be chosen on test data")
    return ranked(sweep.runs(), runs, lambda run: runs.record(run.key)["final"]["f1"] or 0.0)
