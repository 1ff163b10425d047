"""The demo's figures as SVG text: one function per figure, no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..optim import METHODS
from ..report.style import FAST, GREY, INK, SLOW, STYLES, Figure, blank, svg
from ..trace import Trace
from .runs import BETA, METHOD_OPTIONS, WORKERS, DemoRun

__all__ = ["curves", "delays", "influence_curves", "relative_influence", "slow_and_fast", "timeline"]


def timeline(trace: Trace, arrivals: int = 46) -> str:
    """Draw the jobs of each worker: a bar from the iterate a gradient was started at to the update it arrived at."""
    figure, axes = blank(9, 3.0, "A late gradient: started at one iterate, applied at a later update")
    head = slice(0, arrivals)
    rows = zip(trace.worker[head], trace.version[head], trace.arrival[head], trace.group[head], strict=True)
    longest = int(np.argmax(trace.delay[head]))
    for index, (worker, version, arrival, group) in enumerate(rows):
        colour = SLOW if group else FAST
        axes.barh(worker + 1, arrival - version + 0.72, left=version - 0.86, height=0.62, color=colour, alpha=0.85)
        axes.plot([arrival], [worker + 1], "o", color="white", markeredgecolor=colour, markersize=4, zorder=3)
        if index == longest:
            middle, label = (version + arrival) / 2, f"delay {arrival - version}"
            axes.text(middle, worker + 1, label, ha="center", va="center", color="white", fontsize=9)
    axes.set_xlim(0, arrivals + 1)
    axes.set_yticks(range(1, trace.header.workers + 1))
    axes.set_xlabel("update")
    axes.set_ylabel("worker")
    axes.grid(axis="y", visible=False)
    named = ((FAST, "fast sample"), (SLOW, "slow sample (a nine)"))
    handles = [axes.barh(0, 0, color=colour, label=label) for colour, label in named]
    axes.set_ylim(0.4, trace.header.workers + 0.6)
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False, fontsize=9)
    return svg(figure)


def delays(trace: Trace) -> str:
    """Draw how late fast and slow gradients are."""
    figure, axes = blank(4.4, 3.6, "Delay of slow and fast gradients")
    edge = int(np.quantile(trace.delay, 0.995)) + 1
    bins = np.arange(-0.5, edge + 1.5, max(1, edge // 30)).tolist()
    for group, colour, label in ((0, FAST, "fast"), (1, SLOW, "slow")):
        own = trace.delay[trace.group == group]
        if len(own) == 0:
            continue
        share = np.full(len(own), 1 / len(own))
        axes.hist(np.minimum(own, edge), bins=bins, weights=share, color=colour, alpha=0.7, label=label)
        axes.axvline(own.mean(), color=colour, linewidth=1.5, linestyle="--")
    axes.set_xlabel("delay (dashed: mean)")
    axes.set_ylabel("share of the group")
    axes.legend(frameon=False)
    return svg(figure)


def influence_curves() -> str:
    """Draw the influence of a gradient by its delay, one line per method."""
    figure, axes = blank(4.6, 3.6, "Influence of a gradient by its delay")
    delay = np.arange(0, 43)
    together: dict[str, list[str]] = {}
    lines: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = {}
    for name, options in METHOD_OPTIONS.items():
        weight = np.array([METHODS[name].influence(delay=int(d), workers=WORKERS, **options) for d in delay])
        key = weight.tobytes().hex()
        together.setdefault(key, []).append(name)
        lines[key] = weight
    for key, names in together.items():
        colour, dash = STYLES[names[0]]
        label = ", ".join(names) if len(names) < 3 else f"{', '.join(names[:2])},\n{', '.join(names[2:])}"
        axes.plot(delay, lines[key], color=colour, linestyle=dash, linewidth=2, label=label)
    axes.set_ylim(-0.04, 1.08)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_xlabel(f"delay (M = {WORKERS}, beta = {BETA:g})")
    axes.set_ylabel("influence (1: as if in time)")
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2)
    return svg(figure)


def curves(results: Sequence[DemoRun]) -> str:
    """Draw test F1 over updates, one panel per method; thin lines are seeds, bold lines their mean."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = figure.subplots(2, 4, sharex=True, sharey=True).flatten()
    for axes, name in zip(panels, METHOD_OPTIONS, strict=True):
        own = [result.history for result in results if result.method == name]
        for history in own:
            axes.plot(history["update"], history["f1"], color=STYLES[name][0], alpha=0.35, linewidth=1)
        length = min(history.height for history in own)
        mean = np.mean([history["f1"].to_numpy()[:length] for history in own], axis=0)
        axes.plot(own[0]["update"][:length], mean, color=STYLES[name][0], linewidth=2.2)
        axes.set_title(name, fontsize=10, color=INK)
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("update", fontsize=10)
    figure.supylabel("test F1, mean over classes", fontsize=10)
    return svg(figure)


def _bars(results: Sequence[DemoRun]) -> Mapping[str, list[DemoRun]]:
    return {name: [result for result in results if result.method == name] for name in METHOD_OPTIONS}


def slow_and_fast(results: Sequence[DemoRun]) -> str:
    """Draw the final F1 of the slow class and of the fast classes; one dot per seed."""
    figure, axes = blank(9, 3.2, "Final test F1 of the slow class and of the fast classes")
    for index, own in enumerate(_bars(results).values()):
        for shift, key, colour in ((-0.2, "f1_slow", SLOW), (0.2, "f1_fast", FAST)):
            values = [result.history[key][-1] for result in own]
            axes.bar(index + shift, float(np.mean(values)), width=0.36, color=colour, alpha=0.8)
            axes.plot(np.full(len(values), index + shift), values, "o", color=INK, markersize=3)
    axes.set_xticks(range(len(METHOD_OPTIONS)), [name.replace("-", "-\n", 1) for name in METHOD_OPTIONS], fontsize=9)
    axes.set_ylim(0, 1.02)
    axes.grid(axis="x", visible=False)
    handles = [axes.bar(0, 0, color=SLOW, label="slow class"), axes.bar(0, 0, color=FAST, label="fast classes")]
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return svg(figure)


def relative_influence(results: Sequence[DemoRun]) -> str:
    """Draw the relative influence of the slow class."""
    figure, axes = blank(9, 2.9, "Relative influence: mean influence of a slow gradient over that of a fast one")
    names = list(METHOD_OPTIONS)
    for index, own in enumerate(_bars(results).values()):
        value = float(np.mean([result.relative_influence for result in own]))
        if not np.isfinite(value):  # a schedule so short that no slow gradient arrived
            continue
        axes.barh(index, value, color=SLOW if value < 0.95 else FAST, alpha=0.85)
        axes.text(value + 0.012, index, f"{value:.2f}", va="center", fontsize=9)
    axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12)
    axes.grid(axis="y", visible=False)
    return svg(figure)
