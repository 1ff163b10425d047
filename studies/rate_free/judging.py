"""What the runs say: the method without a learning rate beside every tuned method, problem by problem."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import polars as pl
import torch

from latecomer.experiments import RunSpec
from latecomer.experiments.pieces import FinishedRuns
from latecomer.problems import Logistic

from .plan import LOGISTIC, OURS, PROBLEMS, RATES, Setting

__all__ = ["judged", "logistic_minimum", "tuned", "verdict_of", "verdicts"]


def tuned(setting: Setting, runs: FinishedRuns, offset: float = 0.0) -> pl.DataFrame | None:
    """Return one row per method and learning rate: the median over seeds, the worst run, and how many collapsed.

    None if runs are missing.

    Args:
        setting: The problem.
        runs: Where runs are.
        offset: What is subtracted from a loss: the minimum, where it is known and not zero.
    """
    specs = setting.sweep().runs()
    if any(spec.key not in runs for spec in specs):
        return None
    values: dict[tuple[str, float], list[float]] = {}
    for spec in specs:
        lr = float(spec.options.get("lr", math.nan))
        values.setdefault((spec.method, -1.0 if math.isnan(lr) else lr), []).append(_end(spec, runs, setting) - offset)
    goal = setting.goal
    rows = [
        {
            "problem": setting.problem,
            "method": method,
            "lr": None if lr < 0 else lr,
            "median": median(own),
            "worst": min(own) if goal.higher else max(own),
            "collapsed": sum(goal.is_collapse(value + offset) for value in own),
            "runs": len(own),
        }
        for (method, lr), own in values.items()
    ]
    return pl.DataFrame(rows, schema_overrides={"lr": pl.Float64})


def _end(spec: RunSpec, runs: FinishedRuns, setting: Setting) -> float:
    value = runs.record(spec.key)["final"].get(setting.goal.metric)
    if value is None or not math.isfinite(value):
        return -math.inf if setting.goal.higher else math.inf
    return float(value)


def judged(table: pl.DataFrame, setting: Setting) -> pl.DataFrame:
    """Return one row per method: at its best learning rate, one step of the sweep below and above it, best first.

    Examples:
        >>> rows = [{"problem": "digits", "method": "momentum", "lr": lr, "median": score, "worst": score,
        ...          "collapsed": 0, "runs": 3} for lr, score in zip(RATES["sgd"], (0.1, 0.5, 0.9, 0.7, 0.2, 0.1, 0.1))]
        >>> judged(pl.DataFrame(rows), PROBLEMS["digits"]).select("method", "lr", "median", "below", "above").rows()
        [('momentum', 0.01, 0.9, 0.5, 0.7)]
    """
    sign = 1.0 if setting.goal.higher else -1.0
    rows: list[dict[str, Any]] = []
    for (method,), own in table.group_by(["method"], maintain_order=True):
        ordered = own.sort("lr")
        scores = [sign * value for value in ordered["median"]]
        best = scores.index(max(scores))
        chosen = ordered.row(best, named=True)
        below, above = (
            ordered["median"][i] if 0 <= i < len(ordered) and method != OURS else None for i in (best - 1, best + 1)
        )
        rows.append(
            {**chosen, "below": below, "above": above, "edge": method != OURS and best in (0, len(ordered) - 1)}
        )
    return pl.DataFrame(rows, schema_overrides={"below": pl.Float64, "above": pl.Float64}).sort(
        "median", descending=setting.goal.higher
    )


def verdict_of(rows: pl.DataFrame, setting: Setting) -> dict[str, Any]:
    """Return the verdict on one problem: the best tuned method, ours, whether it is near enough, and collapses.

    Examples:
        >>> rows = pl.DataFrame([{"method": m, "lr": lr, "median": score, "worst": score, "collapsed": 0, "runs": 3}
        ...                      for m, lr, score in (("momentum", 0.1, 0.95), ("rate-free", None, 0.94))])
        >>> found = verdict_of(rows, PROBLEMS["digits"])
        >>> found["best"], found["reached"]
        ('momentum', True)
    """
    ours = rows.filter(pl.col("method") == OURS).row(0, named=True)
    best = rows.filter(pl.col("method") != OURS).row(0, named=True)
    near = setting.goal.within(ours["median"], best["median"])
    return {
        "problem": setting.problem,
        "metric": setting.goal.metric if setting.goal.kind != "excess" else "excess loss",
        "ours": ours["median"],
        "worst": ours["worst"],
        "best": best["method"],
        "lr": best["lr"],
        "median": best["median"],
        "collapsed": ours["collapsed"],
        "near": near,
        "reached": near and not ours["collapsed"],
        "runs": ours["runs"],
        "sweep": len(RATES["sgd"]),
    }


def verdicts(runs: FinishedRuns, offsets: Mapping[str, float]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the verdicts, each method at its best learning rate, and all of them, of problems that are complete."""
    found: list[dict[str, Any]] = []
    best: list[pl.DataFrame] = []
    every: list[pl.DataFrame] = []
    for name, setting in PROBLEMS.items():
        table = tuned(setting, runs, offsets.get(name, 0.0))
        if table is None:
            continue
        rows = judged(table, setting)
        found.append(verdict_of(rows, setting))
        best.append(rows)
        every.append(table)
    return pl.DataFrame(found), _joined(best), _joined(every)


def _joined(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(tables) if tables else pl.DataFrame()


@functools.cache
def logistic_minimum() -> float:
    """Return the smallest loss of the logistic problem, by L-BFGS over all images."""
    problem = Logistic(**LOGISTIC)
    x = torch.zeros(10 * problem._features.shape[1], dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([x], max_iter=600, history_size=30, line_search_fn="strong_wolfe", tolerance_change=0.0)

    def loss() -> torch.Tensor:
        solver.zero_grad()
        x.grad = torch.empty_like(x)
        problem.expected_gradient(x.detach(), x.grad)
        return torch.tensor(problem.objective(x))

    solver.step(loss)  # type: ignore[no-untyped-call]
    return problem.objective(x)
