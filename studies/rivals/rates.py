"""``python -m studies.rivals.rates``: how much of a lead in the standard study comes from the few rates of its grid.

    python -m studies.rivals.rates [--out docs/rivals]

On the quadratic, some methods of the standard study run again on its seeds and targets, with their chosen learning rate
times several factors. The best factor is taken in hindsight, on the same seeds: no choice among these factors could
do better. Writes rates.md and rates.json.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from latecomer.comparison.plan import Cell, Comparison, planned
from latecomer.comparison.results import collect
from latecomer.comparison.statistics import median, reached
from latecomer.experiments import RunSpec, Store
from latecomer.experiments.pieces import FinishedRuns, Pieces
from latecomer.experiments.sweep import run_one
from latecomer.report.markdown import write_table

__all__ = ["FACTORS", "METHODS", "hindsight", "rows_of"]

METHODS = (
    "clipped", "async-sgd", "momentum", "ordered-momentum", "balanced-catch-up", "catch-up-adamw", "balanced-adamw",
)  # fmt: skip
FACTORS = (0.32, 0.56, 1.0, 1.8, 3.2, 5.6)
"""Of the chosen learning rate."""
REFERENCE = "rate-free"
"""It has no learning rate to choose."""


def hindsight(
    plan: Comparison,
    cell: Cell,
    method: str,
    target: float | None,
    runs: FinishedRuns,
    factors: Sequence[float] = FACTORS,
) -> dict[float, float]:
    """Return the median time to the target over seeds, by the factor on the chosen learning rate."""
    if target is None:
        raise ValueError(f"Runs of {cell.problem} under {cell.delays} are missing")
    found = {}
    setting = plan.setting(cell)
    chosen = [run for run in plan.judging_of(cell, runs) or () if run.method == method]
    with tempfile.TemporaryDirectory() as folder:
        for factor in factors:
            several = [replace(run, options={**run.options, "lr": factor * run.options["lr"]}) for run in chosen]
            found[factor] = median([_time(run, folder, setting.metric, target, setting.higher) for run in several])
    return found


def _time(run: RunSpec, folder: str, metric: str, target: float, higher: bool) -> float:
    run_one(run.as_dict(), folder)
    return reached(Store(Path(folder)).history(run.key), metric, target, higher).time


def rows_of(times: dict[str, dict[str, dict[float, float]]], reference: dict[str, float]) -> list[list[str]]:
    """Return one row per method: its time at the chosen rate and at the best factor, per delay model."""
    rows = []
    for method, by_delays in times.items():
        row = [f"`{method}`"]
        for delays, own in by_delays.items():
            best = min(own, key=lambda factor: (own[factor], abs(factor - 1)))
            if math.isinf(own[best]):
                row.append("missed with all")
            else:
                at_chosen = "missed" if math.isinf(own[1.0]) else f"{own[1.0]:.0f}"
                row.append(f"{at_chosen}; {own[best]:.0f} (x {best:g}); {reference[delays] / own[best]:.2f}")
        rows.append(row)
    return rows


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/rivals"))
    parser.add_argument("--pieces", type=Path, default=Path("docs/results/compare/runs"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    runs = Pieces(given.pieces)
    plan = planned("standard")
    plan = replace(plan, problems=tuple(each for each in plan.problems if each.problem == "quadratic"))
    found = collect(plan, runs)
    summary = found.summary().filter(method=REFERENCE)
    reference = dict(summary.select("delays", "time").iter_rows())
    times: dict[str, dict[str, dict[float, float]]] = {method: {} for method in METHODS}
    for method, cell in track([(m, c) for m in METHODS for c in plan.cells], description="Methods and delay models"):
        times[method][cell.delays] = hindsight(plan, cell, method, found.targets[cell], runs)
    heads = ["method", *(cell.delays for cell in plan.cells)]
    title = (
        "quadratic: time to the target at the chosen learning rate, at the best of "
        f"{len(FACTORS)} factors on it in hindsight, and {REFERENCE}'s time over that"
    )
    data: list[dict[str, Any]] = [
        {"method": method, "delays": delays, "reference": reference[delays],
         "times": {str(factor): time if math.isfinite(time) else None for factor, time in own.items()}}
        for method, by_delays in times.items() for delays, own in by_delays.items()
    ]  # fmt: skip
    command = shlex.join(["python", "-m", "studies.rivals.rates", *sys.argv[1:]])
    given.out.mkdir(parents=True, exist_ok=True)
    write_table(given.out, "rates", title, heads, rows_of(times, reference), command, data)


if __name__ == "__main__":
    main()
