"""The runs on MNIST behind the evidence: choose on the validation split, judge on fresh seeds, draw the curves.

A stage is made of sweeps, and later sweeps follow from what earlier ones found. What is in the store is never run
again, so the plan can be interrupted anywhere. docs/evidence.md has the same plan in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import torch

from .._util.revision import commit
from ..core.result import Run
from ..experiments.pieces import FinishedRuns
from ..experiments.ranking import all_there, configured
from ..experiments.spec import Grid, RunSpec, Sweep
from ..experiments.sweep import FinishedRun, run_one
from ..optim import METHODS
from ..server import Server
from ..training import OnArrival
from .evidence import OURS, PAPER, judge
from .presets import PAPER_RATES
from .ranking import ranking
from .scale import PLAN, Scale

__all__ = [
    "Choice", "all_looks", "choosing", "chosen", "curve_rows", "figure_sweep", "final_f1", "judge_sweep", "judged_rows",
    "looks", "run_planned",
]  # fmt: skip

Choice = Mapping[str, dict[str, Any]]
"""Each method's configuration."""

WORKERS = 7
COMMON_CLIP = "clipped-catch-up"
"""One clip for all, which our own claims compare with."""
COMPARED = (*PAPER, *OURS, COMMON_CLIP)
_NEIGHBOURS = sorted(PAPER_RATES)


def _sweep(
    name: str, grids: list[Grid], seeds: range, scale: Scale, width: float | None, split: str | None = None
) -> Sweep:
    """Return a sweep on MNIST that is evaluated at its start and its end."""
    problem: dict[str, Any] = {"width": width, "split": split}
    return Sweep(
        name, "mnist", "data-dependent", scale.steps, tuple(seeds), tuple(grids), evaluate_every=scale.steps,
        problem_options={name: value for name, value in problem.items() if value is not None},
        delay_options={"workers": WORKERS, "slow_share": 0.1, "exact": False},
    )  # fmt: skip


def _values(method: str, scale: Scale) -> dict[str, list[Any]]:
    """Return what a method's hyper-parameters are chosen from, besides the learning rate."""
    if method in ("async-sgd", "delay-adaptive"):
        return {}
    if method == "delay-filtered":
        return {"threshold": [each * WORKERS for each in scale.thresholds]}
    betas = {"beta": list(scale.betas)}
    return {**betas, "gamma": list(scale.gammas)} if method.endswith("mu2") else betas


# ---- choosing -------------------------------------------------------------------------------------------------------


def _with_neighbours(several: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return configurations and those with the next lower and the next higher of the paper's learning rates."""
    found = []
    for options in several:
        place = _NEIGHBOURS.index(options["lr"])
        for near in (place, place - 1, place + 1):
            if 0 <= near < len(_NEIGHBOURS) and {**options, "lr": _NEIGHBOURS[near]} not in found:
                found.append({**options, "lr": _NEIGHBOURS[near]})
    return found


def choosing(runs: FinishedRuns, scale: Scale = PLAN) -> Iterator[Sweep]:
    """Yield the three sweeps of the choice, from coarse to fine, each once the one before is in the store."""
    grids = [Grid(m, {"lr": list(scale.rates), **_values(m, scale)}) for m in COMPARED]
    coarse = _sweep("choose-coarse", grids, range(scale.coarse_seeds), scale, scale.width, "validation")
    yield coarse
    scores = ranking(coarse, runs)
    if scores is None:
        return
    count, seeds = scale.fine
    best = {method: _with_neighbours([options for _, options in ranked[:count]]) for method, ranked in scores.items()}
    fine = _sweep("choose-fine", configured(best), range(seeds), scale, scale.width, "validation")
    yield fine
    scores = ranking(fine, runs)
    if scores is None:
        return
    count, seeds = scale.final
    best = {method: [options for _, options in ranked[:count]] for method, ranked in scores.items()}
    yield _sweep("choose-final", configured(best), range(seeds), scale, scale.width, "validation")


def chosen(runs: FinishedRuns, scale: Scale = PLAN) -> dict[str, dict[str, Any]] | None:
    """Return each method's configuration: the best mean F1 of the final choice; None while runs are missing."""
    sweeps = list(choosing(runs, scale))
    scores = ranking(sweeps[-1], runs) if len(sweeps) == 3 else None
    return None if scores is None else {method: ranked[0][1] for method, ranked in scores.items()}


# ---- judging --------------------------------------------------------------------------------------------------------


def _undecided(study: str, rows: pl.DataFrame | None, scale: Scale, most: int | None) -> tuple[set[str], int]:
    """Return the methods that open claims of a study need, and the number of seeds of their next look."""
    methods: set[str] = set()
    look = 0
    for claim in (claim for claim in scale.claims if claim.study == study):
        needed = {method for pair in claim.comparisons for method in pair}
        have = 0
        if rows is not None and needed <= set(rows["method"]):
            found = judge(claim, rows)
            if found.verdict in ("held", "refuted"):
                continue
            have = found.pairs
        following = [n for n in claim.looks[:most] if n > have]
        if following:
            methods |= needed
            look = max(look, following[0])
    return methods, look


def looks(
    study: str, runs: FinishedRuns, choice: Choice, scale: Scale = PLAN, most: int | None = None
) -> Iterator[Sweep]:
    """Yield the runs of every look of a study, or of the first few, as long as a claim needs them."""
    while True:
        rows = (judged_rows if study == "judge" else curve_rows)(runs, choice, scale)
        methods, look = _undecided(study, rows, scale, most)
        if not methods:
            return
        if study == "judge" and look == scale.pairs[0]:  # later only as far as our own claim needs them
            methods |= set(OURS)
        own = {method: choice[method] for method in COMPARED if method in methods}
        sweep = (judge_sweep if study == "judge" else _small_curves)(own, scale.seeds[:look], scale)
        yield sweep
        if not all_there(sweep, runs):
            return


def all_looks(study: str, choice: Choice, scale: Scale) -> Sweep:
    """Return the runs of all looks of a study, as if no claim were decided before the last."""
    return (judge_sweep if study == "judge" else _small_curves)(choice, scale.seeds, scale)


def judge_sweep(choice: Choice, seeds: range, scale: Scale = PLAN) -> Sweep:
    """Return the chosen configurations on the test set, evaluated several times per run."""
    grids = configured({method: [options] for method, options in choice.items()})
    sweep = _sweep("judge", grids, seeds, scale, scale.width)
    return replace(sweep, evaluate_every=-(-scale.steps // scale.evaluations))


def judged_rows(runs: FinishedRuns, choice: Choice, scale: Scale = PLAN) -> pl.DataFrame | None:
    """Return one row per judging run that is there, with how much its accuracy varied over the second half."""
    rows = []
    for run in judge_sweep(choice, scale.seeds, scale).runs():
        if run.key in runs:
            history, record = runs.history(run.key), runs.record(run.key)
            late = history.filter(pl.col("update") >= scale.steps / 2)["accuracy"]
            plain = {"method": run.method, "seed": run.seed, "variation": late.std() if len(late) > 1 else None}
            rows.append({**plain, **record["final"], "relative_influence": record["outcome"]["relative_influence"]})
    return pl.DataFrame(rows, infer_schema_length=None) if rows else None


# ---- curves over learning rates -------------------------------------------------------------------------------------


def _curve_sweep(
    name: str, choice: Choice, rates: list[float], seeds: range, scale: Scale, width: float | None
) -> Sweep:
    """Return each method's configuration at several learning rates."""
    grids = [Grid(method, {**{k: [v] for k, v in options.items()}, "lr": rates}) for method, options in choice.items()]
    return _sweep(name, grids, seeds, scale, width)


def _small_curves(choice: Choice, seeds: range, scale: Scale) -> Sweep:
    return _curve_sweep("curves", choice, list(scale.rates), seeds, scale, scale.curve_width)


def figure_sweep(choice: Choice) -> Sweep:
    """Return the runs of the figure: all of the paper's learning rates at full width."""
    return _curve_sweep("figure", choice, sorted(PAPER_RATES), PLAN.seeds[:3], PLAN, PLAN.width)


def curve_rows(runs: FinishedRuns, choice: Choice, scale: Scale = PLAN) -> pl.DataFrame | None:
    """Return one row per run over the learning rates, of seeds that have all rates."""
    table = final_f1(_small_curves(choice, scale.seeds, scale), runs)
    return None if table is None else table.filter(pl.len().over("method", "seed") == len(scale.rates))


def final_f1(sweep: Sweep, runs: FinishedRuns) -> pl.DataFrame | None:
    """Return method, seed, learning rate and last F1 of the runs of a sweep that are there."""
    rows = [
        {"method": run.method, "seed": run.seed, "lr": run.options["lr"], "f1": runs.record(run.key)["final"]["f1"]}
        for run in sweep.runs()
        if run.key in runs
    ]
    return pl.DataFrame(rows, infer_schema_length=None) if rows else None


# ---- one run --------------------------------------------------------------------------------------------------------


def run_planned(spec: dict[str, Any], folder: str) -> FinishedRun:
    """Make a run and put it into the store, with the influence that slow samples had and the code that made it."""
    kept: list[float] = []

    def note(server: Server) -> None:
        kept.append(float(getattr(server.optimizer, "last_scale", 1.0)))

    def extra_outcome(run: RunSpec, result: Run) -> dict[str, Any]:
        influence = _relative_influence(run, result.trace.delay, result.trace.group, np.array(kept))
        return {"relative_influence": influence, "commit": commit(), "torch": torch.__version__}

    return run_one(spec, folder, callbacks=[OnArrival(note)], extra_outcome=extra_outcome)


def _relative_influence(run: RunSpec, delay: Any, group: Any, scale: Any) -> float | None:
    """Return the mean influence of slow samples over that of fast ones, by what the clip has left of them."""
    options = {"workers": run.delay_options["workers"], **run.options}
    influence = np.array([METHODS[run.method].influence(int(d), **options) for d in delay]) * scale
    slow = group == 1
    if not slow.any() or slow.all() or not influence[~slow].mean():
        return None
    return float(influence[slow].mean() / influence[~slow].mean())
