"""Figures of a run: delays, influence, loss and other metrics, throughput. Each returns SVG, or nothing to show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..report.plot import GROUP_TINTS, Plot, wants_log
from .view import RunView

__all__ = ["delays", "influence", "metric", "throughput"]

_POINTS = 400  # of a line: more than a screen can show
_BINS = 60
_LARGEST = 1e200  # what is larger is drawn as a gap, as NaN is: an axis up to it would overflow


def delays(view: RunView) -> str:
    """Draw how often arrivals of each group have which delay."""
    trace = view.trace
    edge = int(np.quantile(trace.delay, 0.995)) + 1
    width = max(1, -(-edge // 40))
    edges = np.arange(0, edge + 2 * width, width)
    names = trace.header.groups
    lines = []
    for group in range(min(len(names), GROUP_TINTS)):
        own = trace.delay[trace.group >= group if group == GROUP_TINTS - 1 else trace.group == group]
        if len(own):
            share = np.histogram(np.minimum(own, edges[-1] - 1), edges)[0] / len(own)
            label = names[group] if group < GROUP_TINTS - 1 else "other groups"
            lines.append((f"s{group}", label, share, float(own.mean())))
    highest = max(float(share.max()) for _, _, share, _ in lines)
    axis = "delay, in updates (dashed: mean)"
    plot = Plot("Delay by group", (0, float(edges[-1])), (0, highest * 1.05), axis, "share of the group", whole=True)
    for colour, label, share, mean in lines:
        plot.line(np.repeat(edges, 2)[1:-1], np.repeat(share, 2), colour, label)
        plot.upright(min(mean, float(edges[-1])), colour)
    return plot.svg()


def influence(view: RunView, other: RunView | None = None) -> str:
    """Draw the mean influence of an arrival of each group, of one run or of two."""
    found = [(each, colour, each.influence()) for each, colour in _both(view, other)]
    shown = [(each, colour, weight) for each, colour, weight in found if weight is not None]
    if not shown:
        return ""
    names = [name[:24] for name in view.trace.header.groups[:12]]
    most = max([1.0, *(float(np.nanmax(weight[: len(names)])) for _, _, weight in shown if np.isfinite(weight).any())])
    height = 30 * max(3, len(names) * len(shown))
    plot = Plot(
        "Influence of an arrival, by group", (0, most * 1.12), (0, len(names)), "1: as if nothing were late", "",
        height=height, lanes=names,
    )  # fmt: skip
    for index, (each, colour, weight) in enumerate(shown):
        lane = np.arange(len(names)) + 0.12 + index * 0.76 / len(shown)
        value = np.nan_to_num(weight[: len(names)])
        thick = 0.76 / len(shown)
        if other is not None:
            plot.boxes(np.zeros(len(names)), value, lane, lane + thick, colour, each.method)
        else:
            for group in range(len(names)):
                own, tint = slice(group, group + 1), f"s{min(group, GROUP_TINTS - 1)}"
                plot.boxes([0.0], value[own], lane[own], lane[own] + thick, tint)
        for group, size in enumerate(weight[: len(names)]):
            text = f"{size:.2f}" if np.isfinite(size) else "no arrivals"
            plot.words(float(value[group]), float(lane[group]) + thick / 2, text)
    return plot.svg()


def metric(view: RunView, other: RunView | None, *names: str) -> str:
    """Draw columns of the history over arrivals; of two columns the second is dashed."""
    lines = []
    for each, colour in _both(view, other):
        for index, name in enumerate(names):
            x, y = each.series(name)
            x, y = _thinned(x, np.where(np.abs(y) < _LARGEST, y, np.nan))
            if np.isfinite(y).any():
                label = name if other is None or not each.method else f"{each.method}: {name}"
                lines.append((x, y, colour, label, index > 0))
    if not lines:
        return ""
    values = np.concatenate([y[np.isfinite(y)] for _, y, *_ in lines])
    log = wants_log(values)
    low, high = float(values.min()), float(values.max())
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    y_range = (low / 1.1, high * 1.1) if log else (low - room, high + room)
    if not log and 0 <= low < 0.3 * high:
        y_range = (0.0, high + room)
    last = max(float(x[-1]) for x, *_ in lines)
    title = names[0].replace("_", " ").capitalize()
    plot = Plot(title, (0, last), y_range, "arrivals", "", log=log, whole=True)
    for x, y, colour, label, dash in lines:
        plot.line(x, y, colour, label if len(lines) > 1 else "", dash=dash)
    return plot.svg()


def throughput(view: RunView) -> str:
    """Draw arrivals per second over time, with a cross per fault of a worker."""
    if not view.clock or view.seconds <= 0:
        return ""
    bins = int(np.clip(len(view.trace) // 10, 4, _BINS))
    edges = np.linspace(0, view.seconds, bins + 1)
    rate = np.histogram(view.trace.end, edges)[0] / (edges[1] - edges[0])
    top = float(rate.max()) * 1.05
    plot = Plot("Arrivals per second", (0, view.seconds), (0, top), "seconds", "", width=1000, height=150)
    plot.line(np.repeat(edges, 2)[1:-1], np.repeat(rate, 2), "a")
    times = [fault.time for fault in view.faults or () if fault.time is not None and fault.worker is not None]
    if times:
        chosen = times[:: -(-len(times) // 200)]
        plot.crosses(np.clip(chosen, 0, view.seconds), np.zeros(len(chosen)), "fault")
    return plot.svg()


def _both(view: RunView, other: RunView | None) -> list[tuple[RunView, str]]:
    return [(view, "a")] if other is None else [(view, "a"), (other, "b")]


def _thinned(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means of neighbours if there are more points than can be seen; what is not finite is left out of them."""
    if len(x) <= _POINTS:
        return x, y
    bins = np.linspace(0, _POINTS, len(x), endpoint=False).astype(int)
    good = np.isfinite(y)
    count = np.bincount(bins, good)
    with np.errstate(invalid="ignore"):
        return np.bincount(bins, x) / np.bincount(bins), np.bincount(bins, np.where(good, y, 0.0)) / count
