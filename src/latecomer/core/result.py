"""The result of a run, simulated or on real workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from torch import Tensor

from ..server import Server
from ..trace import Trace

__all__ = ["Run"]


@dataclass(frozen=True)
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
    diverged_at: int | None = None
    resumed_at: int = 0
    seconds: float = 0.0

    @property
    def final(self) -> dict[str, Any]:
        """The last row of the history."""
        return self.history.row(-1, named=True)
