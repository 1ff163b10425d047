"""The result of a run, simulated or on real workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from numbers import Real
from pathlib import Path
from typing import Any

import polars as pl
from torch import Tensor

from ..optim import RateFree
from ..server import Server
from ..trace import STATUSES, Trace
from .faults import Fault
from .history import COLUMNS

__all__ = ["Run", "RunWarning"]


class RunWarning(UserWarning):
    """A run has ended in a way that its result should not be used as it is."""


@dataclass(frozen=True, repr=False)
class Run:
    """The result of `latecomer.simulate` and `latecomer.fit`.

    Attributes:
        method: Name of the method.
        options: Its hyper-parameters.
        history: One row per evaluation: ``update``, ``time`` (on the trace's clock, or in seconds), ``arrival``,
            ``train_loss`` and ``delay`` (means since the row before) and the metrics.
        state: The trained model's state dict.
        output: The state dict of the iterate chosen by ``output=``; the same as `state` by default.
        trace: The schedule of the run, with the status of every ticket.
        server: The server after the run.
        record: Path of the written trace, or None.
        deaths: Number of workers that died, or were killed because they hung.
        failures: Number of jobs that raised.
        reissued: Number of tickets that were issued again.
        given_up: Sample seeds of tickets that failed too often and counted with weight zero, by ticket number.
        non_finite: Number of contributions with a NaN or an infinity; they counted with weight zero.
        ignored: Number of answers that came twice or too late.
        faults: What went wrong, in order; of more than 1,000 the first and the last 500.
        diverged_at: The arrival at which the run was stopped because it had diverged, or None.
        resumed_at: Number of arrivals counted before this call, 0 for a new run.
        seconds: Seconds that this call trained, without the start of the workers.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.DataDependent(workers=3, slow_share=0.1).trace(steps=100, seed=0)
        >>> run = lc.simulate(lc.problems.quadratic(), "ordered-momentum", trace, lr=0.05)
        >>> run.history.columns
        ['update', 'time', 'arrival', 'train_loss', 'delay', 'loss', 'squared_gradient']
        >>> run.final["update"], run.diverged_at, run.deaths
        (100, None, 0)
        >>> run.summary()["contributions"], run.summary()["faults"]
        ('100, 100 updates', 'none')
    """

    method: str
    options: Mapping[str, Any]
    history: pl.DataFrame
    state: Mapping[str, Tensor]
    output: Mapping[str, Tensor]
    trace: Trace
    server: Server
    record: Path | None = None
    deaths: int = 0
    failures: int = 0
    reissued: int = 0
    given_up: Mapping[int, int] = field(default_factory=dict)
    non_finite: int = 0
    ignored: int = 0
    faults: tuple[Fault, ...] = ()
    diverged_at: int | None = None
    resumed_at: int = 0
    seconds: float = 0.0

    @property
    def trouble(self) -> str:
        """Why the result should not be used as it is, as a sentence; empty if nothing is known against it."""
        rate = self.method != RateFree.method or "lr" in self.options
        arrivals = len(self.trace)
        check = "check the data, the loss and the learning rate" if rate else "check the data and the loss"
        bad = f"{self.non_finite:,} of {arrivals:,} contributions were not finite"
        if self.diverged_at is not None:
            return f"The run diverged and ended at arrival {self.diverged_at:,}; {bad}: {check}"
        if 2 * self.non_finite > arrivals:
            return f"{bad} and count with weight zero: {check}"
        if arrivals and not self.server.optimizer.t:
            return f"After {arrivals:,} contributions there was no update: the policy has held or dropped all of them"
        return ""

    def summary(self) -> dict[str, str]:
        """Return the run in a few words by name: method, options, length, final metrics, delays and faults."""
        trace, final = self.trace, self.final if self.history.height else {}
        rows = {"method": self.method}
        rows["options"] = ", ".join(f"{name}={_shown(value)}" for name, value in self.options.items()) or "defaults"
        applied = f" ({self._applied:,} applied)" if self.non_finite or self.given_up else ""
        rows["contributions"] = f"{len(trace):,}{applied}, {self.server.optimizer.t:,} updates"
        metrics = {name: value for name, value in final.items() if name not in COLUMNS and value is not None}
        if final.get("train_loss") is not None:
            metrics = {"train_loss": final["train_loss"]} | metrics
        rows |= {f"final {name}": _shown(value) for name, value in metrics.items()}
        if len(trace):
            delay = trace.delay
            rows["delay"] = f"mean {delay.mean():.2f}, largest {delay.max()}, {trace.header.workers} workers"
        faults = {"deaths": self.deaths, "failures": self.failures, "given up": len(self.given_up)}
        faults |= {"not finite": self.non_finite}
        rows["faults"] = ", ".join(f"{count} {name}" for name, count in faults.items() if count) or "none"
        if cancelled := int((self.trace.columns["status"] == STATUSES.index("cancelled")).sum()):
            rows["cancelled"] = f"{cancelled:,} jobs" + (
                ", whose worker processes count as deaths" if self.deaths else ""
            )
        if self.diverged_at is not None:
            rows["diverged"] = f"at arrival {self.diverged_at:,}"
        if self.resumed_at:
            rows["resumed"] = f"at arrival {self.resumed_at:,}"
        if self.seconds:
            rows["seconds"] = f"{self.seconds:.1f}"
        return rows

    @property
    def _applied(self) -> int:
        """Number of contributions that entered an update."""
        status: list[str] = self.trace.status.tolist()
        held = status.count("held")  # in a round, bad contributions have the status of the good ones
        bad = self.non_finite + len(self.given_up) if held else 0
        return max(0, status.count("applied") + held - bad)

    def __repr__(self) -> str:
        return "Run(\n" + "".join(f"  {name}: {value}\n" for name, value in self.summary().items()) + ")"

    def _repr_html_(self) -> str:
        """Return a small table, which notebooks show."""
        left = 'style="text-align: left"'
        cells = "".join(
            f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(value)}</td></tr>"
            for name, value in self.summary().items()
        )
        return f"<table><tbody>{cells}</tbody></table>"

    @property
    def final(self) -> dict[str, Any]:
        """The last row of the history."""
        return self.history.row(-1, named=True)


def _shown(value: Any) -> str:
    """Return a number with four digits; anything else by its repr, cut short."""
    if isinstance(value, Real) and not isinstance(value, (bool, int)):
        return f"{float(value):.4g}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
