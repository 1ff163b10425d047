"""Configurations ranked by their validation scores, and sweeps of the best ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..experiments.pieces import FinishedRuns
from ..experiments.spec import Grid, Sweep

__all__ = ["Ranking", "all_there", "configured", "ranking"]

Ranking = dict[str, list[tuple[float, dict[str, Any]]]]
"""Each method's configurations with their mean F1, best first."""


def all_there(sweep: Sweep, runs: FinishedRuns) -> bool:
    """Whether every run of a sweep was made."""
    return all(run.key in runs for run in sweep.runs())


def ranking(sweep: Sweep, runs: FinishedRuns) -> Ranking | None:
    """Return each method's configurations by their mean validation F1, best first; None while runs are missing."""
    if sweep.problem_options.get("split") != "validation":
        raise ValueError(f"The sweep {sweep.name!r} is not on the validation split: nothing may be chosen on test data")
    found: dict[str, dict[str, tuple[list[float], dict[str, Any]]]] = {}
    for run in sweep.runs():
        if run.key not in runs:
            return None
        scores, _ = found.setdefault(run.method, {}).setdefault(
            repr(sorted(run.options.items())), ([], dict(run.options))
        )
        scores.append(runs.record(run.key)["final"]["f1"] or 0.0)
    return {
        method: sorted(((float(np.mean(scores)), options) for scores, options in configurations.values()),
                       key=lambda scored: -scored[0])
        for method, configurations in found.items()
    }  # fmt: skip


def configured(configurations: Mapping[str, list[dict[str, Any]]]) -> list[Grid]:
    """Return grids of exactly these configurations."""
    return [
        Grid(method, {name: [value] for name, value in options.items()})
        for method, several in configurations.items()
        for options in several
    ]
