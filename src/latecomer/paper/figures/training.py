"""Figures of training runs: scores over updates, slow and fast classes, differences between methods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from ...report.style import FAST, GREY, INK, SLOW, STYLES, Axes, Figure, blank, tidy
from ..claims import differences, paired

__all__ = ["over_updates", "paired_differences", "panels", "slow_against_fast"]


def _methods(rows: pl.DataFrame) -> list[str]:
    there = set(rows["method"])
    return [name for name in STYLES if name in there]


def _mean_curve(rows: pl.DataFrame, method: str, column: str) -> pl.DataFrame:
    score = pl.col(column)
    error = score.std().fill_null(0.0) / pl.len().sqrt()
    means = (
        rows.filter(pl.col("method") == method).group_by("update").agg(score.mean().alias("mean"), error.alias("error"))
    )
    return means.sort("update")


def over_updates(rows: pl.DataFrame, column: str, label: str, title: str) -> Figure:
    """Draw a score over updates: means over seeds with their standard error, and a zoom on the top.

    Args:
        rows: The result of `curves`.
        column: The score to draw.
        label: Label of the y axis.
        title: Title of the figure.
    """
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    whole, top = figure.subplots(1, 2, width_ratios=(1, 1.25))
    finals = {}
    for method in _methods(rows):
        mean = _mean_curve(rows, method, column)
        colour, dash = STYLES[method]
        finals[method] = float(mean["mean"][-1])
        for axes in (whole, top):
            axes.plot(mean["update"], mean["mean"], color=colour, linestyle=dash, linewidth=1.8, label=method)
            low, high = mean["mean"] - mean["error"], mean["mean"] + mean["error"]
            axes.fill_between(mean["update"], low, high, color=colour, alpha=0.12, linewidth=0)
    for axes, words in ((whole, title), (top, "zoomed in")):
        tidy(axes, words)
        axes.set_xlabel("update")
    whole.set_ylabel(label)
    whole.set_ylim(0, 1)
    _enlarge(top, rows, column, finals)
    order = sorted(finals, key=lambda name: -finals[name])
    handles = dict(zip(*reversed(top.get_legend_handles_labels()), strict=True))
    labels = [f"{name}  {finals[name]:.3f}" for name in order]
    lines = [handles[name] for name in order]
    figure.legend(lines, labels, loc="outside right center", frameon=False, fontsize=9, title="final mean")
    return figure


def _enlarge(axes: Axes, rows: pl.DataFrame, column: str, finals: dict[str, float]) -> None:
    """Show the range from the weakest method that trains to the best, in the last two thirds of the run."""
    working = [value for value in finals.values() if value > 0.6 * max(finals.values())]
    start = int(rows["update"].to_numpy().max()) // 3
    late = rows.filter(pl.col("update") >= start).group_by("method", "update").agg(pl.col(column).mean())
    best = float(late[column].to_numpy().max())
    low = min(working)
    margin = 0.35 * (best - low) + 0.002
    axes.set_ylim(low - margin, min(1.0, best + 0.6 * margin))
    axes.set_xlim(start, None)


def panels(rows: pl.DataFrame, column: str, label: str) -> Figure:
    """Draw a score over updates, one panel per method; thin lines are seeds, bold lines their mean."""
    methods = _methods(rows)
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    grid = figure.subplots(2, 4, sharex=True, sharey=True).flatten()
    for axes in grid[len(methods) :]:
        axes.set_visible(False)
    for axes, method in zip(grid, methods, strict=False):
        for own in rows.filter(pl.col("method") == method).partition_by("seed"):
            axes.plot(own["update"], own[column], color=STYLES[method][0], alpha=0.3, linewidth=0.9)
        mean = _mean_curve(rows, method, column)
        axes.plot(mean["update"], mean["mean"], color=STYLES[method][0], linewidth=2.2)
        tidy(axes, method)
        axes.set_ylim(0, 1)
    figure.supxlabel("update", fontsize=10)
    figure.supylabel(label, fontsize=10)
    return figure


def slow_against_fast(rows: pl.DataFrame, title: str) -> Figure:
    """Draw the final F1 of slow and of fast classes by method; one dot per seed."""
    figure, axes = blank(9.6, 3.6, title)
    methods = _methods(rows)
    for place, method in enumerate(methods):
        own = rows.filter(pl.col("method") == method)
        for shift, column, colour in ((-0.2, "f1_slow", SLOW), (0.2, "f1_fast", FAST)):
            values = own[column].to_numpy()
            axes.bar(place + shift, values.mean(), width=0.36, color=colour, alpha=0.8)
            spread = np.linspace(-0.1, 0.1, len(values)) if len(values) > 1 else np.zeros(1)
            axes.plot(place + shift + spread, values, "o", color=INK, markersize=2.5, alpha=0.8)
    axes.set_xticks(range(len(methods)), [name.replace("-", "-\n", 1) for name in methods], fontsize=9)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("final test F1")
    axes.grid(axis="x", visible=False)
    handles = [axes.bar(0, 0, color=SLOW, label="slow classes"), axes.bar(0, 0, color=FAST, label="fast classes")]
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return figure


def paired_differences(rows: pl.DataFrame, against: str, column: str, title: str, label: str) -> Figure:
    """Draw every method's score minus that of one method on the same schedules: seeds, means, 95 % intervals."""
    methods = [name for name in _methods(rows) if name != against]
    figure, axes = blank(9.6, 0.45 * len(methods) + 1.3, title)
    axes.axvline(0.0, color=GREY, linewidth=1)
    for place, method in enumerate(methods):
        values = differences(rows, method, against, column)
        interval = paired(rows, method, against, column)
        colour = STYLES[method][0]
        axes.plot(values, np.full(len(values), place) + 0.18, "o", color=colour, markersize=4, alpha=0.5, linewidth=0)
        axes.plot([interval.low, interval.high], [place - 0.12] * 2, color=colour, linewidth=3, solid_capstyle="butt")
        axes.plot([interval.value], [place - 0.12], "D", color=INK, markersize=5)
    _show_most(axes, rows, methods, against, column)
    axes.set_yticks(range(len(methods)), methods)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    return figure


def _show_most(axes: Axes, rows: pl.DataFrame, methods: Sequence[str], against: str, column: str) -> None:
    """Limit the axis if a collapsed run would compress all others, and print how many points are outside."""
    values = np.concatenate([differences(rows, method, against, column) for method in methods])
    middles = [abs(paired(rows, method, against, column).value) for method in methods]
    reach = max(0.01, 1.1 * max(middles), 1.6 * float(np.quantile(np.abs(values), 0.8)))
    if np.abs(values).max() > 1.5 * reach:
        axes.set_xlim(-reach, reach)
        hidden = int((np.abs(values) > reach).sum())
        words = f"{hidden} of {len(values)} points are outside"
        axes.text(1.0, 1.02, words, transform=axes.transAxes, fontsize=8, color=GREY, ha="right", va="bottom")
