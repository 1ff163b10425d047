"""One run of a comparison: stored with idle time, thrown-away work and the loss of every group."""

from __future__ import annotations

import math
from typing import Any

import torch

from .._util.revision import commit
from ..core.result import Run
from ..experiments.spec import RunSpec
from ..experiments.sweep import FinishedRun, problem_of, run_one
from ..trace.work import work_shares

__all__ = ["run_compared"]


def run_compared(spec: dict[str, Any], folder: str) -> FinishedRun:
    """Make a run and put it into the store, with where the workers' time went and how every group came off."""
    return run_one(spec, folder, extra_outcome=_extra)


def _extra(run: RunSpec, result: Run) -> dict[str, Any]:
    idle, wasted = (None, None)
    if len(result.trace):
        _, idle, wasted = work_shares(result.trace)
    problem = problem_of(run)
    model = problem.model(run.seed)
    model.load_state_dict(dict(result.state))
    model.eval()
    with torch.no_grad():
        losses = [value if math.isfinite(value) else None for value in problem.losses_by_group(model)]
    return {
        "idle": idle,
        "wasted": wasted,
        "losses": losses,
        "delay": float(result.trace.delay.mean()) if len(result.trace) else None,
        "commit": commit(),
        "torch": torch.__version__,
    }
