"""The timeline of a trace with a clock: which worker had which ticket when."""

from __future__ import annotations

import numpy as np

from ..trace import STATUSES, Trace
from .style import FAST, GREY, SLOW, blank, svg

__all__ = ["workers"]

_LOST = STATUSES.index("lost")


def workers(trace: Trace, share: float = 1.0) -> str:
    """Draw one bar per ticket from issue to arrival, one line per worker.

    A lost ticket is grey up to the next one of its worker, with a cross. Colours are groups, fastest first.

    Args:
        trace: A trace with a clock.
        share: Share of the run to draw, from its start.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.SampleCost(workers=3, cost=(1.0, 5.0), slow_share=0.3).trace(steps=20, seed=0)
        >>> workers(trace).startswith("<svg")
        True
    """
    from matplotlib.collections import PolyCollection

    if trace.header.clock == "none":
        raise ValueError(
            "This trace has no clock, so it has no timeline: record a real run, or use a delay model with durations"
        )
    if not 0 < share <= 1:
        raise ValueError(f"Invalid share value: {share:g} (expected 0 < share <= 1)")
    c = trace.columns
    last = float(trace.end[-1]) * share
    figure, axes = blank(9, 1.6 + 0.35 * trace.header.workers, f"Timeline of the workers, {trace.header.clock} clock")
    ends = np.where(np.isnan(c["end"]), last, c["end"])
    # A lost ticket ends at the latest when the next one of its worker starts.
    for worker in range(trace.header.workers):
        rows = np.flatnonzero(c["worker"] == worker)
        gone = np.isnan(c["end"][rows[:-1]])
        ends[rows[:-1][gone]] = c["start"][rows[1:]][gone]
    shown = c["start"] <= last
    lost = c["status"] == _LOST
    names = trace.header.groups
    tints = [FAST, SLOW, "#7a5195", "#bc8f2a", "#3b7d4f", "#444444"]
    kinds = [(lost, GREY, "lost, issued again")] if lost.any() else []
    kinds += [((c["group"] == g) & ~lost, tints[min(g, 5)], name) for g, name in enumerate(names)]
    for chosen, colour, label in kinds:
        rows = np.flatnonzero(chosen & shown)
        left, right, y = c["start"][rows], np.minimum(ends[rows], last), c["worker"][rows] * 1.0
        corners = np.stack(
            [np.stack([x, y + h], axis=1) for x, h in ((left, -0.3), (left, 0.3), (right, 0.3), (right, -0.3))], axis=1
        )
        axes.add_collection(
            PolyCollection(list(corners), facecolors=colour, edgecolors="white", linewidths=0.3, label=label)
        )
        if label.startswith("lost"):
            axes.plot(right, y, "x", color="black", markersize=5, zorder=3)
    axes.set_xlim(0, last)
    axes.set_ylim(-0.6, trace.header.workers - 0.4)
    axes.set_yticks(range(trace.header.workers))
    axes.set_xlabel("seconds")
    axes.set_ylabel("worker")
    axes.grid(axis="y", visible=False)
    if len(kinds) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=len(kinds), frameon=False, fontsize=9)
    return svg(figure)
