"""The demo's figures as SVG text: one function per figure, no state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._util.defaults import DEFAULT_METHOD
from ..report.style import FAST, GREY, INK, SLOW, Axes, Figure, decimals, style_of, svg, tidy
from ..trace import Trace
from .runs import METHOD_OPTIONS, DemoRun
from .tables import TARGET, last

__all__ = ["learning_rates", "main_figure", "timeline"]

_LETTERS = 11


def main_figure(results: Sequence[DemoRun]) -> str:
    """Draw the loss over time, and the loss of the slow class at the end; thin lines are seeds, bold ones medians."""
    figure = Figure(figsize=(8.6, 4.0), layout="constrained")
    over_time, at_end = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _panel(over_time, "Loss over time")
    for name in METHOD_OPTIONS:
        own = [each.history for each in results if (each.method, each.factor) == (name, 1.0)]
        colour = style_of(name)[0]
        for history in own:
            over_time.plot(history["time"], history["loss"], color=colour, alpha=0.25, linewidth=0.8)
        end = min(history["time"][-1] for history in own)
        grid = np.linspace(0, end, 200)
        middle = np.median([np.interp(grid, history["time"], history["loss"]) for history in own], axis=0)
        front = 4 if name == DEFAULT_METHOD else 3
        over_time.plot(grid, middle, color=colour, linewidth=2.6, linestyle=style_of(name)[1], zorder=front)
    over_time.axhline(TARGET, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    over_time.text(0.99, TARGET, f"target {TARGET:g}", ha="right", va="bottom", fontsize=_LETTERS - 1, color=INK,
                   transform=over_time.get_yaxis_transform())  # fmt: skip
    over_time.set_yscale("log")
    decimals(over_time.yaxis)
    over_time.set_xlabel("seconds, virtual clock", fontsize=_LETTERS)
    _panel(at_end, "Slow class: loss at the end")
    for place, name in enumerate(METHOD_OPTIONS):
        _dots(at_end, last(results, name, "loss_slow"), place, style_of(name)[0])
    _methods(at_end)
    return svg(figure)


def learning_rates(results: Sequence[DemoRun]) -> str:
    """Draw the last loss at the tuned learning rate and at twice that, one dot per seed."""
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, sharex=True)
    for axes, factor, title in zip(panels, (1.0, 2.0), ("Loss at the end, tuned lr", "At twice that lr"), strict=True):
        _panel(axes, title)
        for place, (name, options) in enumerate(METHOD_OPTIONS.items()):
            if "lr" in options or factor == 1.0:
                _dots(axes, last(results, name, "loss", factor), place, style_of(name)[0])
            else:
                axes.text(0.03, place, "no learning rate to choose", va="center", fontsize=_LETTERS - 1, color=GREY,
                          transform=axes.get_yaxis_transform())  # fmt: skip
    _methods(panels[0])
    decimals(panels[1].xaxis)
    return svg(figure)


def timeline(waiting: Trace, late: Trace, seconds: float = 42.0) -> str:
    """Draw the jobs of every worker in synchronous and in asynchronous training; white is idle.

    Args:
        waiting: A synchronous schedule.
        late: An asynchronous one.
        seconds: How much to draw, from the start.
    """
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, trace, title in zip(
        panels, (waiting, late), ("Synchronous: white is waiting", "Asynchronous"), strict=True
    ):
        _panel(axes, title)
        columns = trace.columns
        begun = columns["start"] < seconds
        for group, colour in ((0, FAST), (1, SLOW)):
            own = begun & (columns["group"] == group) & np.isfinite(columns["end"])
            start, end = columns["start"][own], columns["end"][own]
            axes.barh(columns["worker"][own] + 1, end - start, left=start, height=0.72, color=colour, edgecolor="white",
                      linewidth=0.7)  # fmt: skip
        axes.set_yticks(range(1, trace.header.workers + 1))
        axes.set_ylabel("worker", fontsize=_LETTERS)
        axes.grid(visible=False)
        axes.set_xlim(0, seconds)
    handles = [
        panels[0].barh(0, 0, color=colour, label=f"{label} sample")
        for colour, label in ((FAST, "fast"), (SLOW, "slow"))
    ]
    for axes in panels:
        axes.set_ylim(0.4, waiting.header.workers + 0.6)
    panels[0].legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.36, 0.99), ncols=2, frameon=False, fontsize=_LETTERS - 1
    )
    panels[1].set_xlabel("seconds, virtual clock", fontsize=_LETTERS)
    return svg(figure)


def _panel(axes: Axes, title: str) -> None:
    tidy(axes, title)
    axes.title.set_fontsize(_LETTERS + 1)
    axes.tick_params(labelsize=_LETTERS - 1)


def _dots(axes: Axes, values: Sequence[float], place: int, colour: str) -> None:
    """Draw one dot per seed, their mean as a line, and its value."""
    mean = float(np.mean(values))
    if not np.isfinite(mean):
        axes.text(0.03, place, "diverged", va="center", color=INK, transform=axes.get_yaxis_transform())
    axes.plot(values, np.full(len(values), place), "o", color=colour, markersize=5, alpha=0.5, linewidth=0)
    axes.plot([mean, mean], [place - 0.3, place + 0.3], color=colour, linewidth=2.6)
    axes.text(
        mean, place - 0.36, f"{mean:.2f}", clip_on=True, ha="center", va="bottom", fontsize=_LETTERS - 1, color=INK
    )


def _methods(axes: Axes) -> None:
    """Write the methods on the vertical axis, each in its colour, on a logarithmic scale of losses."""
    names = [f"{name}\n(default)" if name == DEFAULT_METHOD else name for name in METHOD_OPTIONS]
    axes.set_xscale("log")
    decimals(axes.xaxis)
    axes.set_yticks(range(len(names)), names, fontsize=_LETTERS)
    for label, name in zip(axes.get_yticklabels(), METHOD_OPTIONS, strict=True):
        label.set_color(style_of(name)[0])
        label.set_fontweight("bold")
    axes.set_ylim(len(names) - 0.5, -0.8)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
