"""The stages of the plan, in their order: each is made of sweeps that follow from what is there already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..experiments.pieces import FinishedRuns
from ..experiments.spec import Sweep
from .finetuning import fine_tuning
from .plan import choosing, chosen, figure_sweep, looks
from .readings import reading_sweeps
from .weights import Weights

__all__ = ["STAGES", "stage_sweeps"]

STAGES = ("choose", "judge", "curves", "figure", "cifar10", "readings")


def stage_sweeps(stage: str, runs: FinishedRuns, weights: Sequence[Weights] = ()) -> Iterator[Sweep]:
    """Yield the sweeps of a stage; each follows from what is there when it is asked for.

    Args:
        stage: One of `STAGES`.
        runs: Where runs are.
        weights: What there is to fine-tune from, for the stage ``"cifar10"``.
    """
    if stage not in STAGES:
        raise ValueError(f"Unknown stage {stage!r} (expected one of {', '.join(STAGES)})")
    if stage == "choose":
        yield from choosing(runs)
        return
    if stage == "cifar10":
        yield from fine_tuning(runs, weights)
        return
    choice = chosen(runs)
    if choice is None:
        raise ValueError(f"The stage {stage!r} needs the choice: run the stage 'choose' to its end first")
    if stage == "figure":
        yield figure_sweep(choice)
    elif stage == "readings":
        yield from reading_sweeps(runs, choice).values()
    else:
        yield from looks(stage, runs, choice)
