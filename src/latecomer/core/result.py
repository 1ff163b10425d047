"""What a run leaves behind, simulated or on real workers."""

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
    """What `latecomer.simulate` and `latecomer.fit` return.

    Attributes:
        method: Name of the method.
        options: Its hyper-parameters.
        history: One row per evaluation: ``update``, ``time`` (of the trace's clock, or in seconds), ``arrival``,
            ``train_loss`` and ``delay`` (means since the row before) and the metrics.
        state: The trained model's state dict.
        output: The state dict of the iterate that ``output=`` asked for; the same as `state` by default.
        trace: The schedule that happened, with what became of every ticket.
        server: The server at the end.
        record: Where the trace was written, or None.
        deaths: How many workers died, or were killed because they hung.
        failures: How many jobs raised.
        reissued: How many tickets were given out again.
        given_up: Samples of tickets that failed too often and counted with weight zero, by ticket.
        non_finite: How many contributions had a NaN or an infinity and counted with weight zero.
        ignored: Answers nobody waited for: a contribution that came twice, or too late.
        diverged_at: The arrival at which the run was given up, or None.
        resumed_at: How many arrivals had been counted when this call began, 0 for a fresh run.
        seconds: How long this call trained, without the time workers took to start.

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
