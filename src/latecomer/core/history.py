"""Rows of a run's history: means of what arrived since the row before, and the metrics of an evaluation."""

from __future__ import annotations

from typing import Any

import polars as pl

__all__ = ["COLUMNS", "History"]

COLUMNS = ("update", "time", "arrival", "train_loss", "delay")
"""What a history has besides metrics."""
_NUMBERS = {"time": pl.Float64, "train_loss": pl.Float64, "delay": pl.Float64}


class History:
    """Collects rows, whoever evaluates them and whenever that is done.

    Examples:
        >>> history = History()
        >>> history.count(loss=0.5, delay=3)
        >>> history.add(history.begin(update=1, arrival=1, time=None) | {"accuracy": 0.9})
        >>> history.table().row(0, named=True)
        {'update': 1, 'time': None, 'arrival': 1, 'train_loss': 0.5, 'delay': 3.0, 'accuracy': 0.9}
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._losses: list[float] = []
        self._delays: list[int] = []

    def count(self, loss: float, delay: int) -> None:
        """Note an arrival, for the means of the next row; a loss that is NaN is not known."""
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
        """Add a row that has its metrics."""
        self.rows.append(row)

    def table(self) -> pl.DataFrame:
        """Return the rows in order of arrival."""
        ordered = sorted(self.rows, key=lambda row: int(row["arrival"]))
        return pl.DataFrame(ordered, infer_schema_length=None, schema_overrides=_NUMBERS)

    def state_dict(self) -> dict[str, Any]:
        """Return rows and what the next one has so far."""
        return {"rows": [dict(row) for row in self.rows], "losses": list(self._losses), "delays": list(self._delays)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.rows = list(state["rows"])
        self._losses, self._delays = list(state["losses"]), list(state["delays"])


def _mean(values: list[Any]) -> float | None:
    return sum(values) / len(values) if values else None
