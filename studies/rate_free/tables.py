"""Tables of the study as Markdown, so that no number on a page is typed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
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


def parts(
    found: pl.DataFrame,
    best: pl.DataFrame,
    limits: pl.DataFrame,
    ratios: Mapping[str, Mapping[str, float]],
    runs: Pieces,
) -> list[Part]:
    """Return the tables of the page: verdicts, cost of a sweep, fairness, harder settings, and every tuned method."""
    missing = [name for name in PROBLEMS if name not in set(found["problem"])]
    words = f"Not complete, so without a verdict: {', '.join(missing)}." if missing else ""
    made = [_verdicts(found, words), _cost(found, runs), _influence(found, runs), _counter_example(ratios)]
    if len(limits):
        made.append(_limits(limits))
    return made + [_methods(name, best.filter(pl.col("problem") == name)) for name in found["problem"]]


def _influence(found: pl.DataFrame, runs: Pieces) -> Part:
    rows = []
    for name in found["problem"]:
        specs = [spec for spec in PROBLEMS[name].sweep().runs() if spec.method == OURS]
        own = sorted(runs.record(spec.key)["outcome"]["relative_influence"] for spec in specs)
        rows.append([name, number(median(own), 3), number(own[0], 3), number(own[-1], 3)])
    words = (
        "Mean weight of a slow gradient in the final parameters over that of a fast one, before the division by the "
        "denominator. On text, slow means all but the shortest windows."
    )
    return Part(["problem", "median over seeds", "least", "most"], rows, "Relative influence of slow samples", words)


def _counter_example(ratios: Mapping[str, Mapping[str, float]]) -> Part:
    methods = list(next(iter(ratios.values())))
    rows = [[workers, *(number(own[method], 3) for method in methods)] for workers, own in ratios.items()]
    words = "Mean squared gradient over the bound of Theorem 1: above 1 the bound is exceeded."
    return Part(["workers", *methods], rows, "The counter-example to Theorem 1", words)


def _limits(limits: pl.DataFrame) -> Part:
    heads, rows = ["setting", "metric", OURS, "its worst run", "least influence"], []
    methods = limits["method"].unique(maintain_order=True).to_list()
    for method in methods:
        heads += [f"{method}, best of seven", "its rate carried over"]
    for (setting,), own in limits.group_by(["setting"], maintain_order=True):
        first = own.row(0, named=True)
        cells = [str(setting), "excess loss" if first["metric"] == "loss" else "F1"]
        cells += [number(first["ours"], 3), number(first["worst"], 3), f"{first['influence']:.2f}"]
        for row in own.iter_rows(named=True):
            cells += [f"{number(row['best'], 3)} at {row['lr']:g}", number(row["carried"], 3)]
        rows.append(cells)
    words = (
        "Medians of three seeds. *Least influence*: of slow samples relative to fast ones, in the run with the least. "
        "*Best of seven*: at the best learning rate in this very setting. *Carried over*: at "
        "the best learning rate of the usual setting, which is in the first row of each problem."
    )
    return Part(heads, rows, "Harder settings", words)


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
