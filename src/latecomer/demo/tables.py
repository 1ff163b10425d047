"""The demo's table: one row per method, over all its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .runs import METHOD_OPTIONS, DemoRun

__all__ = ["Row", "rows"]


@dataclass(frozen=True)
class Row:
    """Results of a method over its seeds: means, and the smallest and largest F1."""

    method: str
    lr: float
    f1: float
    lowest: float
    highest: float
    slow: float
    fast: float
    influence: float
    dropped: float
    diverged: int
    runs: int


def rows(results: Sequence[DemoRun]) -> list[Row]:
    """Return one row per method, in the order of the table of methods."""
    table = []
    for name, options in METHOD_OPTIONS.items():
        own = [result for result in results if result.method == name]
        if own:
            last = [result.history.row(-1, named=True) for result in own]
            f1 = [row["f1"] for row in last]
            table.append(
                Row(
                    method=name,
                    lr=options["lr"],
                    f1=float(np.mean(f1)),
                    lowest=min(f1),
                    highest=max(f1),
                    slow=float(np.mean([row["f1_slow"] for row in last])),
                    fast=float(np.mean([row["f1_fast"] for row in last])),
                    influence=float(np.mean([result.relative_influence for result in own])),
                    dropped=float(np.mean([result.dropped for result in own])),
                    diverged=sum(result.diverged_at is not None for result in own),
                    runs=len(own),
                )
            )
    return table
