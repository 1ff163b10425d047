"""The demo's table, one row per method, and the same in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from .._util.defaults import DEFAULT_METHOD
from .._util.wording import percent
from .runs import METHOD_OPTIONS, SYNCHRONOUS, DemoRun

__all__ = ["COLUMNS", "TARGET", "Row", "cells", "last", "rows", "story"]

TARGET = 0.3
"""The loss whose time is compared; chosen with the learning rates, not on the demo's seeds."""
COLUMNS = (
    "method", f"time to loss {TARGET:g}", "times as fast", "idle", "slow dropped", "loss", "slow loss", "fast loss",
    "loss at 2 lr", "lr",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Results of a method over its seeds: medians of times, and means of everything else."""

    method: str
    lr: float | None
    time: float
    """Time to the target, infinite if half of the runs or more miss it."""
    speed: float
    """Time of synchronous training over this one; zero for a miss, infinite if only synchronous training misses."""
    speeds: tuple[float, float]
    """Its smallest and largest value over seeds."""
    reached: int
    runs: int
    idle: float
    dropped: float
    loss: float
    slow: float
    fast: float
    doubled: float
    """Loss at twice the learning rate; NaN for a method without one."""


def _own(results: Sequence[DemoRun], method: str, factor: float = 1.0) -> list[DemoRun]:
    """Return the runs of a method at a multiple of its learning rate, in order of the seeds."""
    own = [result for result in results if (result.method, result.factor) == (method, factor)]
    return sorted(own, key=lambda result: result.seed)


def last(results: Sequence[DemoRun], method: str, key: str, factor: float = 1.0) -> list[float]:
    """Return the last value of a metric of every run of a method, in order of the seeds."""
    return [float(result.history[key][-1]) for result in _own(results, method, factor)]


def _times(results: Sequence[DemoRun], method: str) -> list[float]:
    """Return when every run of a method first reached the target, to within an evaluation; infinite for a miss."""
    times = []
    for result in _own(results, method):
        met = np.flatnonzero(result.history["loss"].to_numpy() <= TARGET)
        times.append(float(result.history["time"][int(met[0])]) if len(met) else math.inf)
    return times


def rows(results: Sequence[DemoRun]) -> list[Row]:
    """Return one row per method."""
    table, waited = [], _times(results, SYNCHRONOUS)
    for name, options in METHOD_OPTIONS.items():
        own, times = _own(results, name), _times(results, name)
        speeds = [wait / time if math.isfinite(time) else 0.0 for wait, time in zip(waited, times, strict=True)]
        loss, slow, fast = (float(np.mean(last(results, name, key))) for key in ("loss", "loss_slow", "loss_fast"))
        table.append(
            Row(
                method=name,
                lr=options.get("lr"),
                time=median(times),
                speed=median(speeds),
                speeds=(min(speeds), max(speeds)),
                reached=int(np.isfinite(times).sum()),
                runs=len(own),
                idle=float(np.mean([result.idle for result in own])),
                dropped=float(np.mean([result.dropped for result in own])),
                loss=loss,
                slow=slow,
                fast=fast,
                doubled=float(np.mean(last(results, name, "loss", 2.0))) if "lr" in options else math.nan,
            )
        )
    return table


def cells(row: Row) -> list[str]:
    """Return a row as text; a miss is a miss."""
    met = math.isfinite(row.time)
    some = "" if row.reached == row.runs or not met else f" ({row.reached} of {row.runs})"
    return [
        row.method,
        f"{row.time:.0f}{some}" if met else "missed",
        f"{row.speed:.1f}" if met and math.isfinite(row.speed) else "–",
        percent(row.idle),
        percent(row.dropped),
        *(_loss(value) for value in (row.loss, row.slow, row.fast)),
        "–" if row.lr is None else _loss(row.doubled),
        "none" if row.lr is None else f"{row.lr:g}",
    ]


def _loss(value: float) -> str:
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def story(results: Sequence[DemoRun]) -> list[str]:
    """Return what the table shows in a few paragraphs, with code in backticks; every number is from the runs."""
    table = {row.method: row for row in rows(results)}
    waiting, dropping, ordered = (table[name] for name in (SYNCHRONOUS, "delay-filtered", "ordered-momentum"))
    momentum, default = table["momentum"], table[DEFAULT_METHOD]
    lower = sum(
        a < b for a, b in zip(last(results, default.method, "loss"), last(results, "momentum", "loss"), strict=True)
    )
    twice = f"`momentum` ends at {_loss(momentum.doubled)}"
    if default.lr is None:
        twice = f"At twice its learning rate {twice}; the default has none to choose."
    else:
        twice = f"At twice the learning rate it ends at {_loss(default.doubled)}, {twice}."
    return [
        f"**Waiting**: synchronous workers are idle {percent(waiting.idle)} of the time. Training {_target(waiting)}.",
        f"**Dropping**: `delay-filtered` drops {percent(dropping.dropped)} of the slow gradients. It "
        f"{_target(dropping)}. The slow class ends at a loss of {_loss(dropping.slow)} (waiting: "
        f"{_loss(waiting.slow)}).",
        f"**Less weight**: the paper's `ordered-momentum` {_target(ordered)}. Slow class: {_loss(ordered.slow)}.",
        f"**The default** of `fit`, `{default.method}`, {_target(default)}. Slow class: {_loss(default.slow)}.",
        f"**Plain `momentum`** {_target(momentum)}. Slow class: {_loss(momentum.slow)}. The default ends at a lower "
        f"loss with {lower} of {default.runs} seeds. {twice}",
    ]


def _target(row: Row) -> str:
    """Return whether and when a method reaches the target, as the end of a sentence."""
    waits = row.method == SYNCHRONOUS
    if not row.reached:
        return f"never reaches a loss of {TARGET:g}" if waits else "never gets there"
    if not math.isfinite(row.time):
        return f"reaches a loss of {TARGET:g} with {row.reached} of {row.runs} seeds only"
    some = f" with {row.reached} of {row.runs} seeds" if row.reached < row.runs else ""
    if waits or not math.isfinite(row.speed):
        return f"reaches a loss of {TARGET:g} after {row.time:.0f} s{some}"
    if row.speed < 1:
        return f"gets there after {row.time:.0f} s, {1 / row.speed:.1f} times as long as waiting{some}"
    low, high = row.speeds
    spread = f" (seeds: {low:.1f} to {high:.1f})" if row.runs > 1 else ""
    return f"gets there after {row.time:.0f} s, {row.speed:.1f} times as fast{some or spread}"
