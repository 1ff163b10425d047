"""The timeline of a trace: which worker had which ticket when, ticket by ticket or as shares of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..trace import STATUSES, Trace
from .plot import GROUP_TINTS, Plot, standalone

__all__ = ["Jobs", "timeline", "workers"]

_LOST = STATUSES.index("lost")
_MOST_BARS = 1500  # more jobs than this are drawn as shares of time
_MOST_LANES = 24  # more workers than this share lanes
_BINS = 160
_MOST_CROSSES = 200
_LANE = 0.8  # part of a lane's height that is used


@dataclass(frozen=True)
class Jobs:
    """The jobs of a trace, one entry per issue of a ticket, in order of worker and time.

    Args:
        worker: The worker.
        start: When it was issued: seconds, or arrivals if the trace has no clock.
        end: When it arrived. For a lost job, when its worker started the next one; for one in flight, the last arrival.
        tint: Colour of its group, -1 if it is not known yet.
        lost: Whether it was lost.
        last: Time of the last arrival.
    """

    worker: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    tint: NDArray[np.int64]
    lost: NDArray[np.bool_]
    last: float

    @classmethod
    def of(cls, trace: Trace) -> Jobs:
        """Return the jobs of a trace."""
        c = trace.columns
        order = np.argsort(c["worker"], kind="stable")  # rows are in the order of issue
        timed = trace.header.clock != "none"
        start = (c["start"] if timed else c["seen"].astype(float))[order]
        end = (c["end"] if timed else np.where(c["arrival"] > 0, c["arrival"], np.nan).astype(float))[order]
        last = float(np.nanmax(end)) if np.isfinite(end).any() else float(start.max())
        worker = c["worker"][order].astype(np.int64)
        following = np.full(len(order), last)
        same = worker[1:] == worker[:-1]
        following[:-1][same] = start[1:][same]
        end = np.where(np.isnan(end), np.maximum(start, np.minimum(following, last)), end)
        tint = np.minimum(c["group"][order], GROUP_TINTS - 1).astype(np.int64)
        return cls(worker, start, end, tint, (c["status"] == _LOST)[order], last)

    def between(self, low: float, high: float) -> Jobs:
        """Return the jobs that are at least partly between two times, cut there."""
        keep = (self.end >= low) & (self.start <= high)
        start, end = np.maximum(self.start[keep], low), np.minimum(self.end[keep], high)
        lost = self.lost[keep] & (self.end[keep] <= high)
        return Jobs(self.worker[keep], start, end, self.tint[keep], lost, high)


def timeline(
    trace: Trace,
    title: str = "",
    low: float = 0.0,
    high: float | None = None,
    marks: Sequence[tuple[float, int]] | None = None,
) -> str:
    """Draw who computed what when, one lane per worker; with too many jobs for bars, as shares of time.

    Args:
        trace: The trace; without a clock, time is counted in arrivals.
        title: Heading.
        low: Where to begin.
        high: Where to end; the last arrival by default.
        marks: Where to draw crosses, as pairs (time, worker); at lost jobs by default.
    """
    jobs = Jobs.of(trace)
    jobs = jobs.between(low, jobs.last if high is None else high)
    count = trace.header.workers
    per_lane = -(-count // _MOST_LANES)
    lanes = [
        str(first) if per_lane == 1 else f"{first}-{min(first + per_lane, count) - 1}"
        for first in range(0, count, per_lane)
    ]
    unit = "arrivals" if trace.header.clock == "none" else f"seconds, {trace.header.clock} clock"
    plot = Plot(
        title or "Timeline of the workers", (low, jobs.last), (0, len(lanes)), unit, "worker", width=1000,
        height=26 * max(2, len(lanes)) if len(lanes) < 12 else 16 * len(lanes), lanes=lanes,
        whole=trace.header.clock == "none",
    )  # fmt: skip
    names = list(trace.header.groups[: GROUP_TINTS - 1])
    rest = len(trace.header.groups) - len(names)
    if rest:
        names.append(trace.header.groups[-1] if rest == 1 else f"{rest} other groups")
    if len(jobs.worker) <= _MOST_BARS and per_lane == 1:
        _bars(plot, jobs, names)
    else:
        _shares(plot, jobs, names, len(lanes), per_lane)
    what = "fault"
    if marks is None:
        what, marks = "lost job", list(zip(jobs.end[jobs.lost], jobs.worker[jobs.lost], strict=True))
    marks = [(at, worker) for at, worker in marks if low <= at <= jobs.last and 0 <= worker < count]
    if marks:
        shown = marks[:: -(-len(marks) // _MOST_CROSSES)]
        label = what if len(shown) == len(marks) else f"{what} ({len(shown)} of {len(marks):,} are drawn)"
        plot.crosses([at for at, _ in shown], [worker // per_lane + 0.5 for _, worker in shown], label)
    return plot.svg()


def _bars(plot: Plot, jobs: Jobs, names: list[str]) -> None:
    """Draw one bar per job."""
    for tint, name in [*enumerate(names), (-1, "")]:
        own = np.flatnonzero(jobs.lost | (jobs.tint < 0) if tint < 0 else (jobs.tint == tint) & ~jobs.lost)
        if not len(own):
            continue
        low = jobs.worker[own] + (1 - _LANE) / 2
        colour, label = (
            ("lost", "lost, or in flight at the end") if tint < 0 else (f"s{tint}", name if len(names) > 1 else "")
        )
        plot.boxes(jobs.start[own], jobs.end[own], low, low + _LANE, colour, label)


def _shares(plot: Plot, jobs: Jobs, names: list[str], lanes: int, per_lane: int) -> None:
    """Draw per lane and bin how much of the time went into jobs of each group."""
    low = plot._x[0]
    edges = np.linspace(low, plot._x[1], _BINS + 1)
    busy = np.zeros((len(names), lanes, _BINS))
    first = np.flatnonzero(np.diff(jobs.worker, prepend=-1))
    for begin, end in zip(first, [*first[1:], len(jobs.worker)], strict=True):
        lane = int(jobs.worker[begin]) // per_lane
        for tint in range(len(names)):
            own = slice(begin, end)
            chosen = np.flatnonzero((jobs.tint[own] == tint) & ~jobs.lost[own]) + begin
            if len(chosen):
                busy[tint, lane] += _time_in_bins(jobs.start[chosen], jobs.end[chosen], edges)
    busy /= (edges[1] - edges[0]) * per_lane
    floor = np.arange(lanes)[:, None] + 1 - (1 - _LANE) / 2 + np.zeros((lanes, _BINS))  # lanes count downwards
    for tint, name in enumerate(names):
        roof = floor - np.minimum(busy[tint], 1.0) * _LANE
        plot.areas(edges, floor, roof, f"s{tint}", f"{name}: share of the time" if len(names) > 1 else "")
        floor = roof


def _time_in_bins(
    start: NDArray[np.float64], end: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how much of intervals that do not overlap is in each bin."""
    points = np.stack([start, end], axis=1).ravel()
    total = np.cumsum(end - start)
    until = np.stack([np.concatenate([[0.0], total[:-1]]), total], axis=1).ravel()
    found: NDArray[np.float64] = np.diff(np.interp(edges, points, until, left=0.0))
    return found


def workers(trace: Trace, share: float = 1.0) -> str:
    """Draw the timeline of a trace as an SVG file: one lane per worker, one bar per job, or shares of time.

    Colours are groups, fastest first. A lost job has a cross. Without a clock, time is counted in arrivals.

    Args:
        trace: The trace.
        share: Share of the run to draw, from its start.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.SampleCost(workers=3, cost=(1.0, 5.0), slow_share=0.3).trace(steps=20, seed=0)
        >>> workers(trace).startswith("<svg")
        True
    """
    if not 0 < share <= 1:
        raise ValueError(f"Invalid share value: {share:g} (expected 0 < share <= 1)")
    last = Jobs.of(trace).last
    return standalone(timeline(trace, high=last * share))
