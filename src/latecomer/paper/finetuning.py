"""The stage ``cifar10``: fine-tuning with delays, from the stand-in to the choice to the 20 pairs that judge.

Every sweep follows from what earlier ones found, on the validation split until the judging runs.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ..experiments.pieces import FinishedRuns
from ..experiments.ranking import Ranking, all_there, configured
from ..experiments.spec import Grid, Sweep
from .evidence import PAPER
from .ranking import ranking
from .scale import PLAN, Scale, Task
from .weights import GIVEN, Weights

__all__ = ["FineTuning", "NoWeightsError", "at_end", "fine_tuned_rows", "fine_tuning", "judge_sweep", "settled"]

REACH = 0.6
"""What a stand-in has to reach without delays: F1 on the validation split."""
TRAINED_SHARE = 0.9
"""A run trained if its F1 is at least this share of the best mean validation F1 among the chosen configurations."""
WORKERS = 5
_NEIGHBOURS = {0.002: (0.001, 0.005), 0.01: (0.005, 0.02), 0.05: (0.02, 0.1)}
_REACH_RATES = [0.01, 0.03, 0.1]
_BETA, _OTHER_BETAS = 0.05, (0.1, 0.01)
_GAMMAS = [0.9, 0.1]
_THRESHOLD, _OTHER_THRESHOLDS = 1.5 * WORKERS, (1.0 * WORKERS, 2.0 * WORKERS)


class NoWeightsError(ValueError):
    """There is nothing to fine-tune from; ``task`` is what to pre-train on."""

    def __init__(self, message: str, task: Task) -> None:
        super().__init__(message)
        self.task = task


@dataclass(frozen=True)
class FineTuning:
    """What the validation split has decided before the judging runs.

    Args:
        weights: What is fine-tuned.
        reached: Its best F1 without delays; None if the weights were given.
        frozen: Whether BatchNorm keeps the averages of the pre-training.
        choice: Each method's configuration.
        trained: The F1 from which on a run counts as trained.
    """

    weights: Weights
    reached: float | None
    frozen: bool
    choice: Mapping[str, dict[str, Any]]
    trained: float


def fine_tuning(
    runs: FinishedRuns, weights: Sequence[Weights], scale: Scale = PLAN
) -> Generator[Sweep, None, FineTuning | None]:
    """Yield the sweeps of the stage in their order, and return what was decided; None while runs are missing.

    Args:
        runs: Where runs are; it may grow between two sweeps.
        weights: What there is to fine-tune from.
        scale: How large the plan is.
    """
    start = yield from _starting_point(runs, weights, scale)
    if start is None:
        return None
    own, reached = start
    frozen = yield from _batch_norm(runs, own, scale)
    if frozen is None:
        return None
    best = yield from _choosing(runs, own, frozen, scale)
    if best is None:
        return None
    choice = {method: ranked[0][1] for method, ranked in best.items()}
    trained = round(TRAINED_SHARE * max(ranked[0][0] for ranked in best.values()), 2)
    made = FineTuning(own, reached, frozen, choice, trained)
    yield judge_sweep(made, scale)
    return made


def settled(runs: FinishedRuns, weights: Sequence[Weights], scale: Scale = PLAN) -> FineTuning | None:
    """Return what runs that are there have decided; None if weights or runs are missing."""
    stage = fine_tuning(runs, weights, scale)
    while True:
        try:
            next(stage)
        except StopIteration as end:
            made: FineTuning | None = end.value
            return made
        except NoWeightsError:
            return None


def _sweep(
    name: str,
    grids: list[Grid],
    seeds: Sequence[int],
    weights: Weights,
    frozen: bool,
    scale: Scale,
    workers: int = WORKERS,
    split: str = "validation",
) -> Sweep:
    """Return a sweep that is evaluated at its start and its end."""
    delays: dict[str, Any] = {"workers": workers, "slow_share": 0.5, "exact": False}
    return Sweep(
        name, "cifar10", "data-dependent", scale.tuned_steps, tuple(seeds), tuple(grids),
        evaluate_every=scale.tuned_steps,
        problem_options={"width": weights.width, "weights": weights.name, "frozen_batch_norm": frozen, "split": split},
        delay_options=delays if workers > 1 else {"workers": 1, "slow_share": 0.5, "dependent": False},
    )  # fmt: skip


def _starting_point(
    runs: FinishedRuns, weights: Sequence[Weights], scale: Scale
) -> Generator[Sweep, None, tuple[Weights, float | None] | None]:
    """Yield what each stand-in reaches without delays until one reaches enough; else the best is taken."""
    for each in weights:
        if each.task == GIVEN:
            return each, None
    tried: list[tuple[float, Weights]] = []
    for task, steps in scale.stand_ins.items():
        own = next((each for each in weights if (each.task, each.steps) == (task, steps)), None)
        if own is None:
            before = "".join(f"{each.task} reach F1 {f1:.3f}, below {REACH}; " for f1, each in tried)
            raise NoWeightsError(
                f"{before}the stage 'cifar10' needs weights: run `python -m latecomer.cli.pretrain --task {task}`, "
                "or add ImageNet's with `--given FILE`",
                task,
            )
        scores = []
        for frozen in (False, True):
            grid = [Grid("momentum", {"lr": _REACH_RATES, "beta": [0.1]})]
            sweep = _sweep("cifar10-reach", grid, (0,), own, frozen, scale, workers=1)
            yield sweep
            found = ranking(sweep, runs)
            if found is None:
                return None
            scores.append(found["momentum"][0][0])
        tried.append((max(scores), own))
        if max(scores) >= REACH:
            break
    reached, own = max(tried, key=lambda each: each[0])
    return own, reached


def _batch_norm(runs: FinishedRuns, weights: Weights, scale: Scale) -> Generator[Sweep, None, bool | None]:
    """Yield async SGD and ordered momentum with and without frozen averages; return whether freezing is better."""
    rates = list(scale.tuned_rates)
    grids = [Grid("async-sgd", {"lr": rates}), Grid("ordered-momentum", {"lr": rates, "beta": [_BETA]})]
    means = []
    for frozen in (False, True):
        sweep = _sweep("cifar10-batch-norm", grids, (0,), weights, frozen, scale)
        yield sweep
        found = ranking(sweep, runs)
        if found is None:
            return None
        means.append(sum(ranked[0][0] for ranked in found.values()) / len(found))
    return means[1] > means[0]


def _coarse(method: str, scale: Scale) -> dict[str, list[Any]]:
    rates: dict[str, list[Any]] = {"lr": list(scale.tuned_rates)}
    if method in ("async-sgd", "delay-adaptive"):
        return rates
    if method == "delay-filtered":
        return {**rates, "threshold": [_THRESHOLD]}
    return {**rates, "beta": [_BETA]} | ({"gamma": _GAMMAS} if method.endswith("mu2") else {})


def _around(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a configuration and those that differ from it in one value."""
    others = {"lr": _NEIGHBOURS[options["lr"]], "beta": _OTHER_BETAS, "threshold": _OTHER_THRESHOLDS}
    changed = [{**options, name: value} for name, values in others.items() if name in options for value in values]
    return [options, *changed]


def _choosing(
    runs: FinishedRuns, weights: Weights, frozen: bool, scale: Scale
) -> Generator[Sweep, None, Ranking | None]:
    coarse = _sweep("cifar10-coarse", [Grid(m, _coarse(m, scale)) for m in PAPER], (0,), weights, frozen, scale)
    yield coarse
    found = ranking(coarse, runs)
    if found is None:
        return None
    near = {method: _around(ranked[0][1]) for method, ranked in found.items()}
    fine = _sweep("cifar10-fine", configured(near), (0,), weights, frozen, scale)
    yield fine
    found = ranking(fine, runs)
    if found is None:
        return None
    best = {method: [options for _, options in ranked[:2]] for method, ranked in found.items()}
    final = _sweep("cifar10-final", configured(best), range(scale.tuned_seeds), weights, frozen, scale)
    yield final
    return ranking(final, runs)


def at_end(options: Mapping[str, Any]) -> list[str]:
    """Return the values of a configuration that are at an end of what was tried: a better one may lie beyond.

    Examples:
        >>> at_end({"lr": 0.1, "beta": 0.05}), at_end({"lr": 0.05, "threshold": 5.0})
        (['lr 0.1'], ['threshold 5'])
    """
    tried: dict[str, list[float]] = {
        "lr": [rate for around in _NEIGHBOURS.values() for rate in around],
        "beta": [_BETA, *_OTHER_BETAS],
        "threshold": [_THRESHOLD, *_OTHER_THRESHOLDS],
    }
    ends = {name: (min(values), max(values)) for name, values in tried.items() if name in options}
    return [f"{name} {options[name]:g}" for name, both in ends.items() if options[name] in both]


def judge_sweep(made: FineTuning, scale: Scale = PLAN) -> Sweep:
    """Return the chosen configurations on the test set, on fresh seeds."""
    grids = configured({method: [options] for method, options in made.choice.items()})
    seeds = scale.seeds[: scale.tuned_pairs]
    return _sweep("cifar10-judge", grids, seeds, made.weights, made.frozen, scale, split="test")


def fine_tuned_rows(runs: FinishedRuns, made: FineTuning, scale: Scale = PLAN) -> pl.DataFrame | None:
    """Return one row per judging run; None while runs are missing, because there is one look."""
    sweep = judge_sweep(made, scale)
    if not all_there(sweep, runs):
        return None
    rows = [{"method": run.method, "seed": run.seed, **runs.record(run.key)["final"]} for run in sweep.runs()]
    return pl.DataFrame(rows, infer_schema_length=None)
