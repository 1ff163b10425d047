"""Figures of the evidence: who trained, F1 by seed, learning rates, slow against fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from ...report.style import FAST, GREY, INK, SLOW, STYLES, Axes, Figure, blank, tidy
from ..evidence import shares_trained

__all__ = ["by_seed", "over_rates", "slow_and_fast", "trained_shares"]

_MARKERS = ("<", "o", ">")
_FEW = 5


def _present(rows: pl.DataFrame, methods: Sequence[str]) -> list[str]:
    there = set(rows["method"])
    return [method for method in methods if method in there]


def _rows_of_methods(axes: Axes, methods: Sequence[str]) -> None:
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def trained_shares(rows: pl.DataFrame, methods: Sequence[str], thresholds: Sequence[float], ours: int) -> Figure:
    """Draw the share of runs that trained, by method, with its 95 % interval.

    Args:
        rows: One row per run.
        methods: In this order; the last ``ours`` are set apart by a line.
        thresholds: Three; the middle one is that of the plan.
        ours: How many are not the paper's.
    """
    present = _present(rows, methods)
    figure, axes = blank(9.6, 0.36 * len(present) + 1.4, "Share of runs that trained (MNIST)")
    handles = []
    for threshold, marker in zip(thresholds, _MARKERS, strict=True):
        shares, main = shares_trained(rows, threshold), threshold == thresholds[1]
        for place, method in enumerate(present):
            share = shares[method]
            if main:
                colour, runs = STYLES[method][0], rows.filter(pl.col("method") == method).height
                axes.plot([share.low, share.high], [place] * 2, color=colour, linewidth=4, solid_capstyle="butt")
                axes.text(1.02, place, f"{round(share.value * runs)} of {runs}", fontsize=9, va="center")
            axes.plot(share.value, place + (0.0 if main else 0.28), marker, **_looks(main))
        handles.append(axes.plot([], [], marker, label=f"F1 of at least {threshold:g}", **_looks(main))[0])
    if 0 < ours < len(present):
        axes.axhline(len(present) - ours - 0.5, color=GREY, linewidth=0.8, linestyle=":")
    _rows_of_methods(axes, present)
    axes.set_xlim(-0.02, 1.12)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.set_xlabel("share of runs")
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
    return figure


def _looks(main: bool) -> dict[str, Any]:
    """Return how the marker of a threshold looks: that of the plan stands out."""
    return {"color": INK if main else GREY, "markersize": 7 if main else 5, "linewidth": 0}


def by_seed(rows: pl.DataFrame, methods: Sequence[str], threshold: float, title: str) -> Figure:
    """Draw the last F1 of every run: one dot per seed, a bar at the median, a line at the threshold.

    Where runs did not train, a second panel shows those that did from near by.
    """
    present = _present(rows, methods)
    rows = rows.with_columns(pl.col("f1").fill_null(0.0).fill_nan(0.0))
    scores = rows["f1"].to_numpy()
    failed = bool((scores < threshold).any())
    figure = Figure(figsize=(9.6, 0.36 * len(present) + 1.3), layout="constrained")
    panels = figure.subplots(1, 2 if failed else 1, sharey=True, squeeze=False)[0]
    for axes, words in zip(panels, (title, "those that trained, zoomed in"), strict=False):
        tidy(axes, words)
        axes.axvline(threshold, color=GREY, linewidth=1, linestyle="--")
        for place, method in enumerate(present):
            f1 = rows.filter(pl.col("method") == method).sort("seed")["f1"].to_numpy()
            spread = (np.arange(len(f1)) * 0.618 % 1.0 - 0.5) * 0.56  # the same places every time, evenly filled
            axes.plot(f1, place + spread, "o", color=STYLES[method][0], markersize=3, alpha=0.55, linewidth=0)
            axes.plot([np.median(f1)] * 2, [place - 0.34, place + 0.34], color=INK, linewidth=2)
        _rows_of_methods(axes, present)
        axes.set_xlabel("last test F1")
    if failed:
        panels[0].set_xlim(-0.02, 1.02)
        panels[1].set_xlim(threshold - 0.005, max(float(scores.max()), threshold) + 0.005)
    return figure


def over_rates(rows: pl.DataFrame, groups: Sequence[tuple[str, Sequence[str]]], title: str, threshold: float) -> Figure:
    """Draw mean F1 over the learning rate, one panel per group of methods: bars are standard errors, dots few seeds.

    Args:
        rows: ``method``, ``seed``, ``lr`` and ``f1``.
        groups: Title and methods of each panel.
        title: Title of the figure.
        threshold: The F1 from which on a run trained.
    """
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", color=INK)
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    rows = rows.with_columns(pl.col("f1").fill_null(0.0).fill_nan(0.0))
    lines = {}
    for axes, (words, methods) in zip(panels, groups, strict=True):
        tidy(axes, words)
        axes.axhline(threshold, color=GREY, linewidth=0.8, linestyle="--")
        for method in _present(rows, methods):
            error = (pl.col("f1").std().fill_null(0.0) / pl.len().sqrt()).alias("error")
            own, (colour, dash) = rows.filter(pl.col("method") == method), STYLES[method]
            curve = own.group_by("lr").agg(pl.col("f1").mean(), error).sort("lr")
            lines[method] = axes.plot(
                curve["lr"], curve["f1"], color=colour, linestyle=dash, linewidth=1.6, marker="o", markersize=3
            )[0]
            if own["seed"].n_unique() > _FEW:
                axes.errorbar(curve["lr"], curve["f1"], yerr=curve["error"], fmt="none", ecolor=colour, elinewidth=1)
            else:  # too few for an error
                axes.plot(own["lr"], own["f1"], "o", color=colour, markersize=3, alpha=0.5, linewidth=0)
        axes.set_xscale("log")
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("learning rate")
    panels[0].set_ylabel("last test F1")
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", frameon=False, fontsize=9, ncols=5)
    return figure


def slow_and_fast(rows: pl.DataFrame, methods: Sequence[str], threshold: float, title: str) -> Figure:
    """Draw the F1 of slow and of fast classes by method, over the runs that trained."""
    trained = rows.filter(pl.col("f1").fill_null(0.0).fill_nan(0.0) >= threshold)
    present = _present(trained, methods)
    figure, axes = blank(9.6, 0.36 * len(present) + 1.4, title)
    for place, method in enumerate(present):
        own = trained.filter(pl.col("method") == method)
        means = []
        for shift, column, colour in ((-0.15, "f1_slow", SLOW), (0.15, "f1_fast", FAST)):
            values = own[column].to_numpy()
            means.append(values.mean())
            axes.plot(values, np.full(len(values), place + shift), "o", color=colour, markersize=3, alpha=0.3)
        axes.plot(means, [place] * 2, color=INK, linewidth=1.5)
        axes.plot(means[0], place, "D", color=SLOW, markeredgecolor=INK, markersize=6)
        axes.plot(means[1], place, "D", color=FAST, markeredgecolor=INK, markersize=6)
        axes.text(1.01, place, f"{own.height} runs", fontsize=8.5, va="center", transform=axes.get_yaxis_transform())
    _rows_of_methods(axes, present)
    axes.set_xlabel("last test F1 of the runs that trained (dots: seeds; diamonds: means)")
    handles = [axes.plot([], [], "D", color=c, label=f"{w} classes")[0] for c, w in ((SLOW, "slow"), (FAST, "fast"))]
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return figure
