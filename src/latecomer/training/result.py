"""What a run on real workers leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from torch import Tensor

from ..server import Server
from ..trace import Trace

__all__ = ["Result"]


@dataclass(frozen=True)
class Result:
    """What `fit` returns.

    Attributes:
        method: Name of the method.
        options: Its hyper-parameters.
        history: One row an evaluation: ``update``, ``time`` in seconds, ``arrival``, ``train_loss`` and ``delay``
            (means since the row before) and the metrics.
        state: The trained model's state dict.
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
        >>> result = lc.fit(lc.problems.quadratic(), lr=0.05, workers=2, engine="inline", steps=100)
        >>> result.final["update"], result.deaths, result.diverged_at
        (100, 0, None)
    """

    method: str
    options: Mapping[str, Any]
    history: pl.DataFrame
    state: Mapping[str, Tensor]
    trace: Trace
    server: Server
    record: Path | None = None
    deaths: int = 0
    failures: int = 0
    reissued: int = 0
    given_up: Mapping[int, int] | None = None
    non_finite: int = 0
    ignored: int = 0
    diverged_at: int | None = None
    resumed_at: int = 0
    seconds: float = 0.0

    @property
    def final(self) -> dict[str, Any]:
        """The last row of the history."""
        return self.history.row(-1, named=True)
