"""Tables of the study as Markdown, so that no number on a page is typed by hand."""

from __future__ import annotations

from typing import Any

import polars as pl

from latecomer.experiments.pieces import Pieces
from latecomer.report.markdown import Part

from ..stable_and_fair.tables import number
from .plan import OURS, PROBLEMS, Goal

__all__ = ["allowed", "parts"]


def allowed(goal: Goal) -> str:
    """Return how far from the best a problem's goal allows, in words.

    Examples:
        >>> allowed(PROBLEMS["text"].goal), allowed(PROBLEMS["quadratic"].goal)
        ('2 % more', 'twice')
    """
    if goal.kind == "score":
        return f"{goal.margin:g} less"
    return f"{100 * goal.margin:.0f} % more" if goal.kind == "loss" else "twice"


def parts(found: pl.DataFrame, best: pl.DataFrame, runs: Pieces) -> list[Part]:
    """Return the tables of the page: verdicts, cost of a sweep, and every method at its best learning rate."""
    missing = [name for name in PROBLEMS if name not in set(found["problem"])]
    words = f"Not complete, so without a verdict: {', '.join(missing)}." if missing else ""
    made = [_verdicts(found, words), _cost(found, runs)]
    return made + [_methods(name, best.filter(pl.col("problem") == name)) for name in found["problem"]]


def _verdicts(found: pl.DataFrame, words: str) -> Part:
    rows = []
    for row in found.iter_rows(named=True):
        where = f"{row['best']} at {row['lr']:g}"
        near = f"{'yes' if row['near'] else 'no'} ({allowed(PROBLEMS[row['problem']].goal)} allowed)"
        collapses = f"{row['collapsed']} of {row['runs']}"
        rows.append([
            row["problem"], row["metric"], number(row["ours"], 3), number(row["worst"], 3), number(row["median"], 3),
            where, near, collapses, "reached" if row["reached"] else "missed",
        ])  # fmt: skip
    heads = ["problem", "metric", f"{OURS}, median", "its worst run", "best tuned, median", "which", "near enough"]
    return Part([*heads, "collapses", "goal"], rows, "Verdicts", words)


def _cost(found: pl.DataFrame, runs: Pieces) -> Part:
    """Return the CPU time of one seed's sweep of the best tuned method, and of the one run without a learning rate."""
    rows = []
    for row in found.iter_rows(named=True):
        specs = [
            spec for spec in PROBLEMS[row["problem"]].sweep().runs() if spec.seed == PROBLEMS[row["problem"]].seeds[0]
        ]
        own = sum(runs.seconds(spec.key) for spec in specs if spec.method == OURS)
        sweep = sum(runs.seconds(spec.key) for spec in specs if spec.method == row["best"])
        rows.append([row["problem"], row["best"], f"{sweep:.0f}", f"{own:.0f}", f"{sweep / own:.1f}"])
    words = "CPU seconds of one seed: a sweep over seven learning rates, and one run without any, beside other work."
    return Part(["problem", "tuned method", "its sweep", OURS, "ratio"], rows, "What a sweep costs", words)


def _methods(problem: str, rows: pl.DataFrame) -> Part:
    def cells(row: dict[str, Any]) -> list[str]:
        rate = "none" if row["lr"] is None else f"{row['lr']:g}{' (edge)' if row['edge'] else ''}"
        values = (number(row[name], 3) for name in ("median", "below", "above", "worst"))
        return [row["method"], rate, *values, f"{row['collapsed']} of {row['runs']}"]

    words = "Medians over seeds; *below* and *above* are at the next smaller and larger learning rate of the sweep."
    heads = ["method", "best learning rate", "median", "below", "above", "worst run", "collapses"]
    return Part(heads, [cells(row) for row in rows.iter_rows(named=True)], problem, words)
