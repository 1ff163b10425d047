"""What the runs of a comparison say: one row per run, one per method and cell, and performance profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ..experiments.pieces import FinishedRuns
from .plan import Cell, Comparison, evaluations
from .settings import DEPENDENT, INDEPENDENT
from .statistics import NEVER, median, performance_profile, reached

__all__ = ["FACTORS", "Results", "collect"]

FACTORS = tuple(float(f"{factor:.4g}") for factor in np.geomspace(1.0, 32.0, 61))
"""Factors of the performance profiles."""
_NAMED = {"fastest": 1.0, "within 1.5": 1.5, "within 2": 2.0, "solved": 1e300}
"""Factors of the overall table; no time is a miss within the last one."""
_RUN = {
    "problem": pl.String, "delays": pl.String, "method": pl.String, "options": pl.String, "rate": pl.String,
    "seed": pl.Int64, "time": pl.Float64, "updates": pl.Float64, "final": pl.Float64, "loss_fast": pl.Float64,
    "loss_slow": pl.Float64, "wasted": pl.Float64, "idle": pl.Float64, "delay": pl.Float64, "diverged": pl.Boolean,
    "trained": pl.Boolean, "easier": pl.Boolean,
}  # fmt: skip
_SUMMARY = {
    "problem": pl.String, "delays": pl.String, "method": pl.String, "options": pl.String, "rate": pl.String,
    "reached": pl.Int64, "runs": pl.Int64, "time": pl.Float64, "ratio": pl.Float64, "updates": pl.Float64,
    "final": pl.Float64, "loss_fast": pl.Float64, "loss_slow": pl.Float64, "wasted": pl.Float64,
    "idle": pl.Float64, "delay": pl.Float64, "target": pl.Float64,
}  # fmt: skip

_SLOW = {
    "method": pl.String, "problem": pl.String, "ratio": pl.Float64, "above": pl.Int64, "pairs": pl.Int64,
}  # fmt: skip


@dataclass(frozen=True)
class Results:
    """What the runs that are there say.

    Attributes:
        comparison: The plan.
        targets: The target of every cell whose tuning is complete.
        runs: One row per judging run: time and updates to the target, infinite for a miss. A run has ``trained`` if it
            ended at least half of the way from its start to the target. Where delays follow the data, and in the
            control, ``easier`` says whether it reached the easier one of their two targets.
        planned: Number of runs per stage that are known so far.
        there: How many of them are there.
        cpu: CPU seconds that these took.
    """

    comparison: Comparison
    targets: dict[Cell, float | None]
    runs: pl.DataFrame
    planned: dict[str, int]
    there: dict[str, int]
    cpu: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether all runs are there."""
        return self.planned == self.there and len(self.targets) == len(self.comparison.cells)

    def summary(self) -> pl.DataFrame:
        """Return one row per method and cell, fastest first: medians over seeds, means of the shares."""
        rows = []
        for cell in self.comparison.cells:
            own = self.runs.filter(problem=cell.problem, delays=cell.delays)
            found = [self._row(cell, own.filter(method=method)) for method in own["method"].unique(maintain_order=True)]
            best = min((row["time"] for row in found), default=math.inf)
            for row in found:
                row["ratio"] = row["time"] / best if math.isfinite(row["time"]) and best else math.inf
            rows += sorted(found, key=lambda row: (row["time"], -row["reached"]))
        return pl.DataFrame(rows, schema=_SUMMARY)

    def _row(self, cell: Cell, own: pl.DataFrame) -> dict[str, Any]:
        middle = {name: median(own[name].to_list()) for name in ("time", "updates")}
        known = {name: _known(own[name].to_list()) for name in ("final", "loss_fast", "loss_slow")}
        means = {name: own[name].mean() for name in ("wasted", "idle", "delay")}
        return {
            "problem": cell.problem, "delays": cell.delays, "method": own["method"][0], "options": own["options"][0],
            "rate": own["rate"][0], "reached": int(own["time"].is_finite().sum()), "runs": own.height,
            "target": self.targets[cell], **middle, **known, **means,
        }  # fmt: skip

    def slow_losses(self) -> pl.DataFrame:
        """Return how far the slow group is behind if delays follow the data: one row per method and problem.

        ``ratio`` is the median over seeds of its last loss, over that of the control with the same seed; ``above`` says
        on how many of ``pairs`` it is above 1. Pairs count in which both runs trained.
        """
        both = self.runs.filter(pl.col("delays").is_in([DEPENDENT, INDEPENDENT]) & pl.col("trained"))
        losses = both.pivot("delays", index=["problem", "method", "seed"], values="loss_slow")
        if not {DEPENDENT, INDEPENDENT} <= set(losses.columns):
            return pl.DataFrame(schema=_SLOW)
        ratio = pl.col(DEPENDENT) / pl.col(INDEPENDENT)
        found = losses.with_columns(ratio.alias("ratio")).filter(pl.col("ratio").is_finite())
        return found.group_by("method", "problem", maintain_order=True).agg(
            pl.col("ratio").median(), (pl.col("ratio") > 1).sum().cast(pl.Int64).alias("above"),
            pl.len().cast(pl.Int64).alias("pairs"),
        )  # fmt: skip

    def overall(self) -> pl.DataFrame:
        """Return per method the shares of instances solved at all and within some factors, and of rates at an end.

        A chosen learning rate at an end of the range that was tried is a doubt: a wider range might serve the method.
        """
        shares = self.profiles(factors=[*_NAMED.values()]).pivot("factor", index="method", values="share")
        shares = shares.rename({str(factor): name for name, factor in _NAMED.items()})
        has_rate, at_end = pl.col("options").str.contains("lr=").any(), pl.col("rate").is_not_null().mean()
        ends = self.summary().group_by("method").agg(pl.when(has_rate).then(at_end).alias("rate at an end"))
        return shares.join(ends, on="method", maintain_order="left").sort(
            "within 2", "solved", "fastest", descending=True, maintain_order=True
        )

    def profiles(self, problem: str | None = None, factors: Sequence[float] = FACTORS) -> pl.DataFrame:
        """Return performance profiles over delay models and seeds, of one problem or of all.

        Only instances count that every method was run on: a method that was left out of a problem is no miss.
        """
        own = self.runs if problem is None else self.runs.filter(problem=problem)
        methods = own["method"].unique(maintain_order=True).to_list()
        table = own.pivot("method", index=["problem", "delays", "seed"], values="time") if own.height else own
        whole = table.drop_nulls() if own.height else table
        return performance_profile({method: whole[method].to_list() for method in methods}, factors)


def _known(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are known; None if there are none."""
    found = [value for value in values if value is not None]
    return median(found) if found else None


def collect(comparison: Comparison, runs: FinishedRuns) -> Results:
    """Read the runs that are there.

    Args:
        comparison: The plan.
        runs: A store, or committed pieces.
    """
    tuning = comparison.tuning().runs()
    planned, there = {"tune": len(tuning), "judge": 0}, {"tune": sum(run.key in runs for run in tuning), "judge": 0}
    cpu = sum(runs.seconds(run.key) or 0.0 for run in tuning if run.key in runs)
    known = {cell: specs for cell in comparison.cells if (specs := comparison.judging_of(cell, runs)) is not None}
    targets = {cell: comparison.target(cell, runs) for cell in known}
    rows: list[dict[str, Any]] = []
    for cell, specs in known.items():
        setting = comparison.setting(cell)
        easier = _easier(cell, targets, setting.higher)
        planned["judge"] += len(specs)
        for run in specs:
            if run.key not in runs:
                continue
            there["judge"] += 1
            cpu += runs.seconds(run.key) or 0.0
            record, target = runs.record(run.key), targets[cell]
            outcome, final = record["outcome"], record["final"].get(setting.metric)
            if "losses" not in outcome:
                raise ValueError(
                    f"The run {run.key[:12]} ({run.method} on {run.problem}) is that of a sweep, without the loss of "
                    "every group: pass another --store"
                )
            history = evaluations(runs, run, setting.metric)
            met = NEVER if target is None else reached(history, setting.metric, target, setting.higher)
            losses = outcome["losses"] or [None]
            rows.append(
                {
                    "problem": cell.problem, "delays": cell.delays, "method": run.method, "seed": run.seed,
                    "rate": comparison.end_of_range(cell, run.method, run.options),
                    "options": ", ".join(f"{name}={value:g}" for name, value in run.options.items()),
                    "time": met.time, "updates": met.updates, "final": final,
                    "loss_fast": losses[0], "loss_slow": losses[-1], "wasted": outcome["wasted"],
                    "idle": outcome["idle"], "delay": outcome["delay"],
                    "diverged": outcome["diverged_at"] is not None,
                    "trained": _trained(history[setting.metric][0], final, target),
                    "easier": None if easier is None
                    else math.isfinite(reached(history, setting.metric, easier, setting.higher).time),
                }
            )  # fmt: skip
    return Results(comparison, targets, pl.DataFrame(rows, schema=_RUN), planned, there, cpu)


def _easier(cell: Cell, targets: dict[Cell, float | None], higher: bool) -> float | None:
    """Return the easier one of the targets of the cell and of its control, or of the cell that it is the control of."""
    if cell.delays not in (DEPENDENT, INDEPENDENT):
        return None
    own = [targets.get(Cell(cell.problem, delays)) for delays in (DEPENDENT, INDEPENDENT)]
    both = [target for target in own if target is not None]
    return None if len(both) < len(own) else (min if higher else max)(both)


def _trained(start: float, final: float | None, target: float | None) -> bool | None:
    """Return whether a run ended at least half of the way from its start to the target; None without a target."""
    if target is None:
        return None
    return final is not None and (final - start) / (target - start or 1.0) >= 0.5
