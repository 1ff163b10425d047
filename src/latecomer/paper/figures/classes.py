"""Figures of delay, frequency and influence by class."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...report.style import FAST, INK, SLOW, STYLES, Figure, blank

__all__ = ["delay_by_class", "influence_by_class", "labels_by_class"]


def _by_class(rows: pl.DataFrame, column: str, title: str, label: str) -> Figure:
    figure, axes = blank(4.7, 3.4, title)
    kinds = ((-0.2, True, SLOW, "data-dependent"), (0.2, False, FAST, "independent of the data"))
    for shift, dependent, colour, name in kinds:
        own = rows.filter(pl.col("dependent") == dependent)
        means = own.group_by("label").agg(pl.col(column).mean(), pl.col(column).std().alias("spread")).sort("label")
        spread = means["spread"].fill_null(0.0)
        places = means["label"].to_numpy() + shift
        axes.bar(places, means[column], width=0.38, color=colour, alpha=0.85, label=name)
        axes.errorbar(places, means[column], yerr=spread, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    axes.set_xticks(range(10))
    axes.set_xlabel("label (bar: mean over seeds; whisker: standard deviation)")
    axes.set_ylabel(label)
    axes.grid(axis="x", visible=False)
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return figure


def delay_by_class(rows: pl.DataFrame) -> Figure:
    """Draw the mean delay by class, with and without delays that depend on the data."""
    return _by_class(rows, "delay", "Mean delay by label", "delay in updates")


def labels_by_class(rows: pl.DataFrame) -> Figure:
    """Draw how often each class appears."""
    return _by_class(rows, "appearances", "Number of images by label", "images")


def influence_by_class(rows: pl.DataFrame) -> Figure:
    """Draw the mean influence of an image of each class, one row per method."""
    methods = [name for name in STYLES if name in set(rows["method"])]
    title = "Influence of an image of each class (1: as if it arrived in time)"
    figure, axes = blank(9.6, 0.42 * len(methods) + 1.2, title)
    means = rows.group_by("method", "label").agg(pl.col("influence").mean()).sort("label")
    table = np.array([means.filter(pl.col("method") == name)["influence"] for name in methods])
    axes.pcolormesh(table, cmap="RdYlBu", vmin=0.0, vmax=1.3, edgecolors="white", linewidth=1.5)
    for (row, label), value in np.ndenumerate(table):
        axes.text(
            label + 0.5,
            row + 0.5,
            f"{value:.2f}",
            ha="center",
            va="center",
            fontsize=9,
            color="white" if value < 0.15 else INK,
        )
    axes.set_yticks(np.arange(len(methods)) + 0.5, methods)
    axes.invert_yaxis()
    axes.set_xticks(np.arange(table.shape[1]) + 0.5, [str(label) for label in range(table.shape[1])])
    axes.set_xlabel("label")
    axes.grid(visible=False)
    return figure
