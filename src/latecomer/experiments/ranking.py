"""Configurations ranked by their scores, and grids of the best ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .pieces import FinishedRuns
from .spec import Grid, RunSpec, Sweep

__all__ = ["Ranking", "all_there", "configured", "ranked"]

Ranking = dict[str, list[tuple[float, dict[str, Any]]]]
"""Each method's configurations with their mean score, best first."""


def all_there(sweep: Sweep, runs: FinishedRuns) -> bool:
    """Whether every run of a sweep was made."""
    return all(run.key in runs for run in sweep.runs())


def ranked(specs: Iterable[RunSpec], runs: FinishedRuns, score: Callable[[RunSpec], float]) -> Ranking | None:
    """Return each method's configurations by their mean score over seeds, highest first; None while runs are missing.

    Args:
        specs: The runs.
        runs: Where they are.
        score: The score of a run that is there.
    """
    found: dict[str, dict[str, tuple[list[float], dict[str, Any]]]] = {}
    for run in specs:
        if run.key not in runs:
            return None
        scores, _ = found.setdefault(run.method, {}).setdefault(
            repr(sorted(run.options.items())), ([], dict(run.options))
        )
        scores.append(score(run))
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
