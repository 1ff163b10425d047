"""The runs of a comparison: every method tuned with the same budget, targets fixed, then judged on fresh seeds.

docs/compare.md has the same plan in words. Judging follows from the tuning runs, so nothing can be looked at early.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from .._util.checks import whole_number
from .._util.suggest import unknown
from ..experiments.pieces import FinishedRuns
from ..experiments.ranking import Ranking, ranked
from ..experiments.spec import RunSet, RunSpec
from ..optim import METHODS
from .settings import DELAYS, PROBLEMS, SIZES, TUNING_SEED, WORKERS, ProblemSetting
from .spaces import configurations, space_of

__all__ = ["Cell", "Comparison", "evaluations", "planned"]

_QUARTERS = 4
"""Evaluations of a tuning run; the third one sets the target."""
_LARGEST_SEED = 2**63 - 1
"""A table has seeds as 64-bit numbers."""
_MOST = 2
"""No run has more than so many times the arrivals of an asynchronous one."""


class Cell(NamedTuple):
    """One problem under one delay model."""

    problem: str
    delays: str


@dataclass(frozen=True)
class Comparison:
    """Methods x problems x delay models, and the runs that this takes.

    Args:
        size: What the command calls it.
        methods: Names of the methods.
        problems: The problems.
        delays: Names of the delay models, in `DELAYS`.
        seeds: Seeds to judge on.
        configurations: Configurations per method in every cell.
        evaluations: Evaluations of a judging run.
        workers: Number of workers.
        imports: Python files that register methods.
    """

    size: str
    methods: tuple[str, ...]
    problems: tuple[ProblemSetting, ...]
    delays: tuple[str, ...]
    seeds: tuple[int, ...]
    configurations: int
    evaluations: int = 24
    workers: int = WORKERS
    imports: tuple[str, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """Every problem under every delay model."""
        return [Cell(problem.problem, delays) for problem in self.problems for delays in self.delays]

    def setting(self, cell: Cell) -> ProblemSetting:
        """Return the problem of a cell."""
        return next(problem for problem in self.problems if problem.problem == cell.problem)

    def methods_of(self, cell: Cell) -> list[str]:
        """Return the methods that are run in a cell."""
        only = self.setting(cell).methods
        return [method for method in self.methods if not only or method in only]

    # ---- tuning -------------------------------------------------------------------------------------------------

    def tuning(self) -> RunSet:
        """Return the runs on the validation split, with one seed."""
        return RunSet("tune", tuple(run for cell in self.cells for run in self.tuning_of(cell)), self.imports)

    def tuning_of(self, cell: Cell) -> Iterator[RunSpec]:
        """Yield the tuning runs of one cell."""
        for method in self.methods_of(cell):
            for options in self._configurations(cell, method):
                yield self._run(cell, method, options, TUNING_SEED, "validation", _QUARTERS)

    def _configurations(self, cell: Cell, method: str) -> list[dict[str, Any]]:
        space, setting = space_of(method), self.setting(cell)
        return configurations(
            space, setting.rates[space.family], count=self.configurations, workers=self.workers,
            arrivals=setting.arrivals,
        )  # fmt: skip

    def end_of_range(self, cell: Cell, method: str, options: Mapping[str, Any]) -> str | None:
        """Return ``"smallest"`` or ``"largest"`` if a learning rate is at an end of what was tried, else None."""
        tried = sorted({each["lr"] for each in self._configurations(cell, method) if "lr" in each})
        if len(tried) < 2 or options["lr"] not in (tried[0], tried[-1]):
            return None
        return "smallest" if options["lr"] == tried[0] else "largest"

    def _run(
        self, cell: Cell, method: str, options: Mapping[str, Any], seed: int, split: str, evaluations: int
    ) -> RunSpec:
        setting = self.setting(cell)
        delays, delay_options = DELAYS[cell.delays](setting, self.workers)
        run = RunSpec(
            setting.problem, method, delays, setting.arrivals, seed,
            problem_options={**setting.options, **({"split": split} if setting.splits else {})},
            options=dict(options), delay_options=delay_options,
        )  # fmt: skip
        own = METHODS[method].policy_options(options)  # what a schedule depends on
        same = replace(run, problem="", problem_options={}, options=own)
        steps = _arrivals_in_time(json.dumps(same.as_dict()))
        return replace(run, steps=steps, evaluate_every=math.ceil(steps / evaluations))

    def ranking(self, cell: Cell, runs: FinishedRuns) -> Ranking | None:
        """Return each method's configurations by the last value of the metric, best first; None if runs are missing."""
        setting = self.setting(cell)
        sign = 1.0 if setting.higher else -1.0

        def score(run: RunSpec) -> float:
            value = runs.record(run.key)["final"].get(setting.metric)
            return -math.inf if value is None else sign * float(value)

        return ranked(self.tuning_of(cell), runs, score)

    def chosen(self, cell: Cell, runs: FinishedRuns) -> dict[str, dict[str, Any]] | None:
        """Return each method's configuration; None if tuning runs are missing."""
        found = self.ranking(cell, runs)
        return None if found is None else {method: scores[0][1] for method, scores in found.items()}

    def target(self, cell: Cell, runs: FinishedRuns) -> float | None:
        """Return the target: what the median method reaches in three quarters of the time, of those that train.

        A method trains if its chosen configuration has by then gone at least half of the way from the start to the best
        value of all methods. None while tuning runs are missing, and if no method moves.
        """
        choice, setting = self.chosen(cell, runs), self.setting(cell)
        if choice is None:
            return None
        values, start = [], math.nan
        for method, options in choice.items():
            run = self._run(cell, method, options, TUNING_SEED, "validation", _QUARTERS)
            history = evaluations(runs, run, setting.metric)[setting.metric].to_list()
            start = float(history[0])
            if len(history) >= _QUARTERS and history[_QUARTERS - 1] is not None:
                values.append(float(history[_QUARTERS - 1]))
        return _target([value for value in values if math.isfinite(value)], start, setting.higher)

    # ---- judging ------------------------------------------------------------------------------------------------

    def judging(self, runs: FinishedRuns) -> RunSet:
        """Return the chosen configurations on the test split and on all seeds; raise if tuning runs are missing."""
        specs = [spec for cell in self.cells for spec in self.judging_of(cell, runs) or _missing(cell)]
        return RunSet("judge", tuple(specs), self.imports)

    def judging_of(self, cell: Cell, runs: FinishedRuns) -> list[RunSpec] | None:
        """Return the judging runs of one cell; None if tuning runs are missing."""
        choice = self.chosen(cell, runs)
        if choice is None:
            return None
        return [
            self._run(cell, method, options, seed, "test", self.evaluations)
            for seed in self.seeds
            for method, options in choice.items()
        ]

    def expected(self, cell: Cell) -> list[RunSpec]:
        """Return the tuning runs of a cell, and judging runs of some configuration, for an estimate of the time."""
        tuning = list(self.tuning_of(cell))
        first = {run.method: run for run in tuning}
        judging = [
            replace(run, seed=seed, evaluate_every=math.ceil(run.steps / self.evaluations))
            for run in first.values()
            for seed in self.seeds
        ]
        return [*tuning, *judging]


def evaluations(runs: FinishedRuns, run: RunSpec, metric: str) -> pl.DataFrame:
    """Return the evaluations of a run; raise if they are not of this metric."""
    history = runs.history(run.key)
    if metric not in history.columns:
        name = f"{run.key[:12]} ({run.method} on {run.problem})"
        raise ValueError(f"The run {name} has no {metric}: pass another --store")
    return history


def _missing(cell: Cell) -> list[RunSpec]:
    raise ValueError(f"Tuning runs of {cell.problem} under {cell.delays} are missing: run the comparison to its end")


def _target(values: Sequence[float], start: float, higher: bool) -> float | None:
    """Return the median of the values that went at least half of the way from the start to the best one."""
    sign = 1.0 if higher else -1.0
    gains = sorted(sign * (value - start) for value in values)
    if not gains or gains[-1] <= 0:
        return None
    trained = [gain for gain in gains if gain >= gains[-1] / 2]
    return start + sign * float(np.median(trained))


@functools.lru_cache(maxsize=100_000)
def _arrivals_in_time(spec: str) -> int:
    """Return the arrivals that a method's policy makes in the time of as many asynchronous arrivals."""
    run = RunSpec(**json.loads(spec))
    if METHODS[run.method].policy is None:
        return run.steps
    end = float(replace(run, method="async-sgd", options={"lr": 1.0}, imports={}).make_trace().end[-1])
    for factor in (1, _MOST):
        ends = run.make_trace(factor * run.steps).end
        if float(ends[-1]) > end:
            break
    return max(1, int((ends <= end * (1 + 1e-12)).sum()))


def planned(
    size: str = "quick",
    *,
    methods: Sequence[str] = (),
    problems: Sequence[str] = (),
    delays: Sequence[str] = (),
    seeds: Sequence[int] = (),
    imports: Sequence[str] = (),
) -> Comparison:
    """Return the comparison of a size, with what was given in place of what the size has.

    Args:
        size: ``"quick"`` or ``"standard"``.
        methods: Names of methods; all that are known by default.
        problems: Names of problems, in `PROBLEMS`.
        delays: Names of delay models, in `DELAYS`.
        seeds: Seeds to judge on.
        imports: Python files that register methods; import them first.

    Examples:
        >>> made = planned("quick", methods=["momentum", "async-sgd"], problems=["quadratic"])
        >>> made.cells[0], len(made.tuning().runs())
        (Cell(problem='quadratic', delays='slow-samples'), 16)
    """
    if size not in SIZES:
        raise ValueError(unknown("size", size, SIZES))
    own = SIZES[size]
    for what, names, known in (
        ("method", methods, METHODS), ("problem", problems, PROBLEMS), ("delay model", delays, DELAYS),
    ):  # fmt: skip
        for name in names:
            if name not in known:
                raise ValueError(unknown(what, name, known))
        if len(set(names)) < len(names):
            raise ValueError(f"The {what}s {', '.join(names)} are not all different")
    chosen_seeds = tuple(whole_number("seed", seed, most=_LARGEST_SEED) for seed in dict.fromkeys(seeds)) or own.seeds
    if TUNING_SEED in chosen_seeds:
        raise ValueError(f"Invalid seed value: {TUNING_SEED} (every method is tuned on it; judge on others)")
    settings = [
        replace(
            PROBLEMS[name],
            arrivals=own.arrivals.get(name, PROBLEMS[name].arrivals),
            options={**PROBLEMS[name].options, **own.options.get(name, {})},
        )
        for name in problems or own.problems
    ]
    if methods:  # whoever names methods wants them everywhere
        settings = [replace(setting, methods=()) for setting in settings]
    return Comparison(
        size, tuple(methods or METHODS), tuple(settings), tuple(delays or own.delays), chosen_seeds,
        own.configurations, own.evaluations, imports=tuple(imports),
    )  # fmt: skip
