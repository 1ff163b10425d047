"""The stages of the plan, in their order: each is made of sweeps that follow from what is there already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..experiments.pieces import FinishedRuns
from ..experiments.spec import Sweep
from .finetuning import NoWeightsError, fine_tuning
from .plan import all_looks, choosing, chosen, figure_sweep, looks
from .readings import reading_sweeps
from .scale import PLAN, STAGES, Scale
from .weights import Weights

__all__ = ["Progress", "progress", "stage_sweeps"]


def stage_sweeps(
    stage: str,
    runs: FinishedRuns,
    weights: Sequence[Weights] = (),
    scale: Scale = PLAN,
    most_looks: int | None = None,
) -> Iterator[Sweep]:
    """Yield the sweeps of a stage; each follows from what is there when it is asked for.

    Args:
        stage: One of `STAGES`.
        runs: Where runs are.
        weights: What there is to fine-tune from, for the stage ``"cifar10"``.
        scale: How large the plan is.
        most_looks: Only the first so many looks of the stages ``"judge"`` and ``"curves"``; all of them if None.
    """
    if stage not in STAGES:
        raise ValueError(f"Unknown stage {stage!r} (expected one of {', '.join(STAGES)})")
    if stage == "choose":
        yield from choosing(runs, scale)
        return
    if stage == "cifar10":
        yield from fine_tuning(runs, weights, scale)
        return
    choice = chosen(runs, scale)
    if choice is None:
        raise ValueError(f"The stage {stage!r} needs the choice: run the stage 'choose' to its end first")
    if stage == "figure":
        yield figure_sweep(choice)
    elif stage == "readings":
        yield from reading_sweeps(runs, choice).values()
    else:
        yield from looks(stage, runs, choice, scale, most_looks)


class Progress(NamedTuple):
    """How far a stage is: the runs of its sweeps that are known, how many are there, and why no more are known."""

    stage: str
    planned: int
    there: int
    waits: str

    @property
    def done(self) -> bool:
        """Whether all of its runs are known and there."""
        return not self.waits and self.there == self.planned


def progress(runs: FinishedRuns, weights: Sequence[Weights] = (), scale: Scale = PLAN) -> list[Progress]:
    """Return how far each stage is; sweeps follow from earlier ones, so not all planned runs are known at once.

    A run that several stages need is counted in the first.
    """
    found, counted = [], set[str]()
    for stage in scale.stages:
        keys: dict[str, bool] = {}
        waits = ""
        try:
            for sweep in stage_sweeps(stage, runs, weights, scale):
                keys |= {run.key: run.key in runs for run in sweep.runs()}
            if stage in ("judge", "curves"):  # looks that are over yield nothing any more
                every = all_looks(stage, chosen(runs, scale) or {}, scale).runs()
                keys |= {run.key: True for run in every if run.key in runs}
        except NoWeightsError:
            waits = "needs pre-trained weights"
        except ValueError:  # every other stage follows from the choice
            waits = "follows from the stage choose"
        own = {key: there for key, there in keys.items() if key not in counted}
        counted |= keys.keys()
        found.append(Progress(stage, len(own), sum(own.values()), waits))
    return found
