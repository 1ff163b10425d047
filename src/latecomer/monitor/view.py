"""What a page shows of a run, wherever the run comes from: a record, a trace, a result, or a run in progress."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..core.faults import FaultLog
from ..core.history import COLUMNS
from ..core.result import Run
from ..optim import METHODS
from ..theory.influence import influence_by_group
from ..trace import Trace
from ..training.record import read_record, recorded_faults, recorded_history

__all__ = ["RunView", "short"]

_SHOWN_METRICS = 6


@dataclass(frozen=True)
class RunView:
    """A run as a page shows it.

    Args:
        trace: Its schedule.
        method: Name of the method, empty if nothing is known of it.
        options: Its hyper-parameters, as they were given.
        history: One row per evaluation, None if there is none.
        faults: What went wrong, None if nobody kept a list.
        steps: Number of arrivals that the run was to have, None if unknown.
        diverged_at: The arrival at which it diverged, or None.
    """

    trace: Trace
    method: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    history: pl.DataFrame | None = None
    faults: FaultLog | None = None
    steps: int | None = None
    diverged_at: int | None = None

    @classmethod
    def of_record(cls, path: str | os.PathLike[str]) -> RunView:
        """Read a record, or a trace alone: the page then has no history and no faults."""
        path = Path(path)
        trace = Trace.load(path)
        if not len(trace):
            raise ValueError(f"{path} has no arrivals, so there is nothing to show")
        _, about = read_record(path, trace)
        steps, diverged = about.get("steps"), about.get("diverged_at")
        return cls(
            trace,
            str(about.get("method") or ""),
            about.get("options", {}),
            recorded_history(path, about),
            recorded_faults(path, about),
            steps if isinstance(steps, int) else None,
            diverged if isinstance(diverged, int) else None,
        )

    @classmethod
    def of_run(cls, run: Run) -> RunView:
        """Return the view of a result of `latecomer.simulate` or `latecomer.fit`."""
        if not len(run.trace):
            raise ValueError("The run has no arrivals, so there is nothing to show")
        log = FaultLog()
        for fault in run.faults:
            log.add(fault.kind, fault.time, fault.arrival, fault.worker, fault.ticket, fault.reason)
        return cls(run.trace, run.method, run.options, run.history, log, None, run.diverged_at)

    @property
    def clock(self) -> bool:
        """Whether the run has a clock."""
        return self.trace.header.clock != "none"

    @property
    def seconds(self) -> float:
        """Time of the last arrival."""
        return float(self.trace.end[-1])

    @property
    def metrics(self) -> list[str]:
        """Columns of the history that are metrics."""
        return [] if self.history is None else [name for name in self.history.columns if name not in COLUMNS]

    def series(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return a column of the history over arrivals, NaN where it is missing; both empty if there is none."""
        if self.history is None or name not in self.history.columns:
            return np.zeros(0), np.zeros(0)
        values = self.history[name]
        if not values.dtype.is_numeric() and values.dtype != pl.Null:
            return np.zeros(0), np.zeros(0)
        numbers = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
        return self.history["arrival"].cast(pl.Float64).to_numpy(), numbers

    def influence(self) -> NDArray[np.float64] | None:
        """Return the mean influence of an arrival of each group; None if the method declares none."""
        rule = METHODS.get(self.method)
        if rule is None:
            return None
        defaults = {
            name: argument.default
            for name, argument in rule.arguments.items()
            if argument.default is not inspect.Parameter.empty
        }
        try:
            return influence_by_group(self.trace, self.method, defaults | dict(self.options))
        except (TypeError, ValueError, KeyError):  # a method of the user's own that declares none for these options
            return None

    @property
    def last(self) -> dict[str, float]:
        """The last training loss and the last value of every metric."""
        found = {}
        for name in ["train_loss", *self.metrics]:
            values = self.series(name)[1]
            if len(values) and (name != "train_loss" or np.isfinite(values[-1])):  # a problem need not report its loss
                found[name] = float(values[-1])
        return found

    def summary(self) -> dict[str, str]:
        """Return the run in a few words by name."""
        trace, header = self.trace, self.trace.header
        rows = {"method": self.method or "not recorded"}
        if self.options:
            rows["options"] = ", ".join(f"{name}={short(value)}" for name, value in self.options.items())
        planned = f" of {self.steps:,}" if self.steps and self.steps != len(trace) else ""
        rows["contributions"] = f"{len(trace):,}{planned}, {int((trace.update > 0).sum()):,} updates"
        rows["workers"] = f"{header.workers:,}" + (f", {len(header.joined):,} joined later" if header.joined else "")
        if self.clock:
            rate = len(trace) / self.seconds if self.seconds > 0 else 0.0
            rows["time"] = f"{self.seconds:,.1f} s ({header.clock} clock), {rate:,.4g} per second"
        rows["delay"] = f"mean {trace.delay.mean():.2f}, largest {int(trace.delay.max()):,}"
        for name, value in list(self.last.items())[:_SHOWN_METRICS]:
            rows[f"last {name}"] = short(value)
        if self.faults is not None:
            rows["faults"] = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.counts.items()) or "none"
        return rows


def short(value: Any) -> str:
    """Return a number with four digits, anything else as text of limited length, and nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if np.isfinite(value) else "not finite"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
