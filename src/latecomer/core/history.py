"""The history of a run: per row, metrics and the means of what arrived since the row before."""

from __future__ import annotations

from typing import Any

import polars as pl

__all__ = ["COLUMNS", "MEANS", "History"]

COLUMNS = ("update", "time", "arrival", "train_loss", "delay")
"""Columns of a history besides the metrics."""
MEANS = ("time", "train_loss", "delay")
"""Those of them that are numbers or null."""
_NUMBERS = dict.fromkeys(MEANS, pl.Float64)


class History:
    """Collects the rows of a history; their metrics may be computed later and elsewhere."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._losses: list[float] = []
        self._delays: list[int] = []

    def count(self, loss: float, delay: int) -> None:
        """Add an arrival to the means of the next row; a NaN loss is unknown and left out."""
        if loss == loss:
            self._losses.append(loss)
        self._delays.append(delay)

    def begin(self, update: int, arrival: int, time: float | None) -> dict[str, Any]:
        """Return a new row without metrics."""
        row = {"update": update, "time": time, "arrival": arrival}
        row |= {"train_loss": _mean(self._losses), "delay": _mean(self._delays)}
        self._losses, self._delays = [], []
        return row

    def add(self, row: dict[str, Any]) -> None:
        """Add a row with its metrics."""
        self.rows.append(row)

    def table(self) -> pl.DataFrame:
        """Return the rows in order of arrival."""
        ordered = sorted(self.rows, key=lambda row: int(row["arrival"]))
        return pl.DataFrame(ordered, infer_schema_length=None, schema_overrides=_NUMBERS)

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, and the counts of the next one."""
        return {"rows": [dict(row) for row in self.rows], "losses": list(self._losses), "delays": list(self._delays)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state dict."""
        self.rows = list(state["rows"])
        self._losses, self._delays = list(state["losses"]), list(state["delays"])


def _mean(values: list[Any]) -> float | None:
    return sum(values) / len(values) if values else None
