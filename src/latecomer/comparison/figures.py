"""Figures of a comparison: performance profiles, times to target, losses of groups, and where the time went."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from ..report.style import FAST, GREY, INK, SLOW, Axes, Figure, LogLocator, NullFormatter, style_of, tidy
from .results import FACTORS, Results
from .statistics import median

__all__ = ["group_losses", "profiles", "times", "work"]

_COLOURED = 8
"""Curves that get a colour and a name; the others are grey."""
_WIDE = 20
"""Losses that differ by more than this factor are drawn on a log scale."""
_VERY_WIDE = 1000
"""From this factor on a log scale has labels at powers of ten alone."""


def _panels(titles: Sequence[str], rows: int, wide: float = 9.6) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side that share their rows."""
    figure = Figure(figsize=(wide, 0.22 * rows + 1.5), layout="constrained")
    axes = list(figure.subplots(1, len(titles), sharey=True, squeeze=False)[0])
    for each, title in zip(axes, titles, strict=True):
        tidy(each, title)
        each.grid(axis="y", visible=False)
    return figure, axes


def _methods(axes: Axes, methods: Sequence[str]) -> None:
    axes.set_yticks(range(len(methods)), methods, fontsize=8.5)
    axes.set_ylim(len(methods) - 0.5, -0.5)


def _log_scale(axes: Axes, ratio: float) -> None:
    """Draw on a log scale with few labels, so that they do not overlap in a narrow panel."""
    axes.set_xscale("log")
    if ratio < _VERY_WIDE:  # decades alone could be a single label
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(lambda loss, _: f"{loss:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def profiles(found: Results) -> Figure:
    """Draw the share of instances solved within a factor of the fastest method's time: all problems, then each."""
    names = [problem.problem for problem in found.comparison.problems]
    whole = [None, *names] if len(names) > 1 else names
    columns = min(2, len(whole))
    lines = -(-len(whole) // columns)
    figure = Figure(figsize=(9.6, 3.1 * lines + 0.4), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, name in zip(panels, whole, strict=False):
        table = found.profiles(name)
        tidy(axes, name or "problems that every method was run on")
        best = table.group_by("method", maintain_order=True).agg(pl.col("share").mean()).sort("share", descending=True)
        shown = best.head(_COLOURED)["method"].to_list()
        for method in reversed(best["method"].to_list()):
            share = table.filter(method=method)["share"].to_numpy()
            colour, dash = style_of(method) if method in shown else ("#d0d0d0", "-")
            label = method if method in shown else None
            axes.step(FACTORS, share, where="post", color=colour, linestyle=dash, label=label,
                      linewidth=1.8 if label else 0.8, zorder=3 if label else 2)  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("time, in units of the fastest method's")
        axes.set_ylabel("share of instances")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], frameon=False, fontsize=7.5, loc="upper left", bbox_to_anchor=(1, 1))
    for axes in panels[len(whole) :]:
        axes.set_visible(False)
    return figure


def times(found: Results, problem: str) -> Figure:
    """Draw the time to target of every run, over the fastest method's median; misses stand at the right edge."""
    figure, panels, order = _by_delays(found, problem)
    for axes, part in panels:
        medians = [median(part.filter(method=method)["time"].to_list()) for method in order]
        best = min((each for each in medians if math.isfinite(each)), default=1.0)
        edge = 2.0 * max([1.0, *(time / best for time in part["time"] if math.isfinite(time))])
        axes.axvline(1.0, color=GREY, linewidth=0.8)
        for place, (method, middle) in enumerate(zip(order, medians, strict=True)):
            ratios = np.array(part.filter(method=method)["time"].to_list()) / best
            met = ratios[np.isfinite(ratios)]
            colour = style_of(method)[0]
            axes.plot(met, np.full(len(met), place), "o", color=colour, markersize=4, alpha=0.6, linewidth=0)
            missed = len(ratios) - len(met)
            if missed:
                axes.plot(edge, place, "x", color=SLOW, markersize=5)
                axes.annotate(f"{missed}", (edge, place), xytext=(5, 0), textcoords="offset points", fontsize=7.5,
                              va="center", color=SLOW, annotation_clip=False)  # fmt: skip
            if math.isfinite(middle):
                axes.plot([middle / best] * 2, [place - 0.35, place + 0.35], color=INK, linewidth=1.8)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}")
        axes.set_xlim(None, edge * 1.25)
        axes.set_xlabel("time to target / fastest")
        _methods(axes, order)
    return figure


def group_losses(found: Results, problem: str) -> Figure:
    """Draw the last loss of the fastest and of the slowest group: medians over seeds."""
    figure, panels, order = _by_delays(found, problem)
    for axes, part in panels:
        drawn: list[float] = []
        for place, method in enumerate(order):
            rows = part.filter(method=method)
            values = [median(rows[name].drop_nulls().to_list()) for name in ("loss_fast", "loss_slow")]
            drawn += [value for value in values if value > 0]
            axes.plot(values, [place] * 2, color=GREY, linewidth=1)
            for value, colour in zip(values, (FAST, SLOW), strict=True):
                axes.plot(value, place, "D", color=colour, markersize=4.5)
        if drawn and max(drawn) > _WIDE * min(drawn):
            _log_scale(axes, max(drawn) / min(drawn))
        axes.set_xlabel("last loss")
        _methods(axes, order)
    handles = [panels[0][0].plot([], [], "D", color=colour)[0] for colour in (FAST, SLOW)]
    words = ["fast group", "slow group"]
    figure.legend(handles, words, loc="outside upper left", frameon=False, fontsize=9, ncols=2)
    return figure


def work(found: Results) -> Figure | None:
    """Draw idle time and thrown-away work of the methods that have any; None if no method has."""
    means = found.runs.group_by("method", "delays", maintain_order=True).agg(pl.col("idle", "wasted").mean())
    some = means.filter((pl.col("idle") > 0.005) | (pl.col("wasted") > 0.005))
    if some.is_empty():
        return None
    total = some.group_by("method", maintain_order=True).agg((pl.col("idle") + pl.col("wasted")).mean())
    order = total.sort("idle", descending=True, maintain_order=True)
    methods = order["method"].to_list()
    figure, panels = _panels(found.comparison.delays, len(methods))
    for axes, delays in zip(panels, found.comparison.delays, strict=True):
        part = {row["method"]: row for row in means.filter(delays=delays).iter_rows(named=True)}
        idle, wasted = (np.array([part.get(m, {}).get(name) or 0.0 for m in methods]) for name in ("idle", "wasted"))
        places = np.arange(len(methods))
        axes.barh(places, idle, height=0.6, color="#b9c4cc", label="idle")
        axes.barh(places, (1 - idle) * wasted, left=idle, height=0.6, color=SLOW, label="thrown away")
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of the workers' time")
        _methods(axes, methods)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", frameon=False, fontsize=9, ncols=2)
    return figure


def _by_delays(found: Results, problem: str) -> tuple[Figure, list[tuple[Axes, pl.DataFrame]], list[str]]:
    """Return a figure with one panel per delay model, the runs of each, and the methods in order of their profiles."""
    shares = found.profiles(problem).group_by("method", maintain_order=True).agg(pl.col("share").mean())
    order = shares.sort("share", descending=True, maintain_order=True)["method"].to_list()
    names = found.comparison.delays
    figure, axes = _panels(names, len(order))
    own = found.runs.filter(problem=problem)
    return figure, [(each, own.filter(delays=name)) for each, name in zip(axes, names, strict=True)], order
