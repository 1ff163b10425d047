"""Figures of sensitivity to the learning rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from ...report.style import FAST, INK, SLOW, STYLES, Figure, blank
from ..claims import shares_near_best

__all__ = ["bands", "over_rates"]

MOMENTUM_METHODS = ("momentum", "mu2", "ordered-momentum", "catch-up", "ordered-mu2")
OTHERS = ("async-sgd", "delay-adaptive", "delay-filtered", "ordered-momentum", "catch-up", "ordered-mu2")


def over_rates(
    rows: pl.DataFrame, methods: Sequence[str], x: str, title: str, label: str, width: float = 6.4
) -> Figure:
    """Draw final F1 against the learning rate or the effective step; one dot per seed, lines through the means."""
    figure, axes = blank(width, 4.0, title)
    for method in methods:
        own = rows.filter(pl.col("method") == method)
        if own.is_empty():
            continue
        colour, dash = STYLES[method]
        means = own.group_by("lr").agg(pl.col("f1").mean(), pl.col(x).mean().alias("x")).sort("lr")
        axes.plot(own[x], own["f1"], "o", color=colour, markersize=3, alpha=0.45, linewidth=0)
        axes.plot(means["x"], means["f1"], color=colour, linestyle=dash, linewidth=2, label=method)
    axes.set_xscale("log")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(label)
    axes.set_ylabel("final test F1")
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def bands(rows: pl.DataFrame) -> Figure:
    """Draw how many learning rates end near the method's best, and how many collapse; one dot per seed."""
    figure, axes = blank(9.6, 3.4, "Share of learning rates that end near the best, or collapse")
    near = shares_near_best(rows)
    collapsed = rows.group_by("method", "seed").agg(pl.col("collapsed").mean().alias("share")).sort("method", "seed")
    methods = [name for name in STYLES if name in set(rows["method"])]
    for place, method in enumerate(methods):
        for shift, table, colour in ((-0.2, near, FAST), (0.2, collapsed, SLOW)):
            values = table.filter(pl.col("method") == method)["share"].to_numpy()
            axes.bar(place + shift, values.mean(), width=0.36, color=colour, alpha=0.8)
            spread = np.linspace(-0.08, 0.08, len(values)) if len(values) > 1 else np.zeros(1)
            axes.plot(place + shift + spread, values, "o", color=INK, markersize=3)
    axes.set_xticks(range(len(methods)), [name.replace("-", "-\n", 1) for name in methods], fontsize=9)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("share of learning rates")
    axes.grid(axis="x", visible=False)
    handles = [
        axes.bar(0, 0, color=FAST, label="within 5 % of the method's best F1"),
        axes.bar(0, 0, color=SLOW, label="collapsed, or did not train at all (F1 below 0.05)"),
    ]
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return figure
