"""A study: select on the validation split, run the selection on new seeds, evaluate on the test set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from ..experiments.spec import Grid, Sweep
from ..experiments.store import Store
from .claims import COLLAPSED
from .presets import PRESETS, preset

__all__ = ["Study", "choose", "chosen_sweep", "curves", "final_rows", "make_study"]

FRESH_SEEDS = {
    "mnist": {"quick": range(100, 103), "standard": range(100, 110), "paper": range(100, 110)},
    "cifar10": {"quick": range(100, 103), "standard": range(100, 105), "paper": range(100, 110)},
}
"""Seeds of the final runs, never used for selection."""


@dataclass(frozen=True)
class Study:
    """One experiment of the paper in one size.

    Args:
        name: One of the presets.
        size: ``"quick"``, ``"standard"`` or ``"paper"``.
        grid: The first sweep: to select from, or to show (``lr-sensitivity``).
        fresh: Seeds of the final runs; empty if nothing is selected.

    Examples:
        >>> made = make_study("mnist", "quick")
        >>> made.grid.name, list(made.fresh), made.command
        ('mnist-quick', [100, 101, 102], 'latecomer reproduce mnist --size quick')
    """

    name: str
    size: str
    grid: Sweep
    fresh: tuple[int, ...]

    @property
    def command(self) -> str:
        """The command that reproduces it."""
        return f"latecomer reproduce {self.name} --size {self.size}"


def make_study(name: str, size: str, weights: str = "") -> Study:
    """Return an experiment of the paper by name and size; ``weights`` replaces the initial weights for CIFAR-10.

    Examples:
        >>> make_study("lr-sensitivity", "quick").fresh
        ()
    """
    if name not in PRESETS:
        raise ValueError(f"Unknown study {name!r} (expected one of {', '.join(PRESETS)})")
    grid = preset(name, size)
    if weights and name == "cifar10":
        grid = replace(grid, problem_options={**grid.problem_options, "weights": weights})
    return Study(name, size, grid, tuple(FRESH_SEEDS[name][size]) if name in FRESH_SEEDS else ())


def choose(grid: Sweep, store: Store) -> dict[str, dict[str, Any]]:
    """Return each method's best configuration: the highest mean over seeds of the final F1 on the validation split.

    A run that diverged counts with the F1 it ended at. Of equal ones the first in the grid is selected.

    Args:
        grid: A sweep on the validation split whose runs are all in the store.
        store: The store.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> grid = replace(preset("mnist", "quick"), grids=(Grid("async-sgd", {"lr": [0.01, 0.02]}),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder))
        ...     for run, f1 in zip(grid.runs(), (0.7, 0.9)):
        ...         store.put(run, pl.DataFrame({"update": [0], "f1": [f1]}), {"diverged_at": None}, 0.0)
        ...     choose(grid, store)
        {'async-sgd': {'lr': 0.02}}
    """
    if grid.problem_options.get("split") != "validation":
        raise ValueError(
            f"The sweep {grid.name!r} is not on the validation split: nothing may be selected on test data"
        )
    best: dict[str, tuple[float, dict[str, Any]]] = {}
    scores: dict[tuple[str, str], list[float]] = {}
    options: dict[tuple[str, str], dict[str, Any]] = {}
    for run in grid.runs():
        configuration = (run.method, repr(sorted(run.options.items())))
        options[configuration] = dict(run.options)
        scores.setdefault(configuration, []).append(store.record(run.key)["final"]["f1"] or 0.0)
    for configuration, values in scores.items():
        score = sum(values) / len(values)
        if configuration[0] not in best or score > best[configuration[0]][0]:
            best[configuration[0]] = score, options[configuration]
    return {method: chosen for method, (_, chosen) in best.items()}


def chosen_sweep(made: Study, chosen: dict[str, dict[str, Any]]) -> Sweep:
    """Return the final runs: every method's best configuration on new seeds, evaluated on the test set.

    Examples:
        >>> final = chosen_sweep(make_study("mnist", "quick"), {"momentum": {"lr": 0.01, "beta": 0.05}})
        >>> final.problem_options["split"], len(final.runs())
        ('test', 3)
    """
    return replace(
        made.grid,
        name=f"{made.grid.name}-final",
        seeds=made.fresh,
        grids=tuple(Grid(method, {name: [v] for name, v in values.items()}) for method, values in chosen.items()),
        problem_options={**made.grid.problem_options, "split": "test"},
    )


def curves(sweep: Sweep, store: Store) -> pl.DataFrame:
    """Return the evaluations of all runs of a sweep, one row each; a run that ended early keeps its last values.

    Columns: ``method``, ``seed``, its options, ``update`` and the metrics.
    """
    parts, every = [], sweep.evaluate_every
    updates = [*range(0, sweep.steps, every), sweep.steps]
    for run in sweep.runs():
        history = store.history(run.key).drop("time")
        reached = history["update"][-1]
        if reached < sweep.steps:  # it diverged: repeat its last row
            rest = [point for point in updates if point >= reached]
            update = pl.Series("update", rest, dtype=history.schema["update"])
            tail = pl.concat([history.tail(1)] * len(rest)).with_columns(update)
            history = pl.concat([history.head(-1), tail])
        labels = {"method": run.method, "seed": run.seed, **run.options}
        parts.append(history.select([pl.lit(value).alias(name) for name, value in labels.items()] + [pl.all()]))
    return pl.concat(parts, how="diagonal")


def final_rows(sweep: Sweep, store: Store) -> pl.DataFrame:
    """Return one row per run: its final metrics, the deviation of its accuracy, whether it collapsed.

    ``restless`` is the standard deviation of the accuracy over the evaluations of the second half; null for a run that
    has collapsed.
    """
    rows = curves(sweep, store)
    late = rows.filter(pl.col("update") >= sweep.steps / 2)
    keys = ["method", "seed", *sorted({name for grid in sweep.grids for name in grid.values})]
    restless = late.group_by(keys).agg(pl.col("accuracy").std().alias("restless"))
    last = rows.filter(pl.col("update") == pl.col("update").max().over(keys))
    joined = last.join(restless, on=keys, how="left", nulls_equal=True)
    collapsed = pl.col("f1").fill_nan(0.0) < COLLAPSED
    steadiness = pl.when(~collapsed).then(pl.col("restless"))
    return joined.with_columns(collapsed.alias("collapsed"), steadiness.alias("restless")).sort(keys)
