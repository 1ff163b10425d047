"""Rows of a trace while the run is still going."""

from __future__ import annotations

import math
import platform
from typing import Any

import numpy as np
import torch

from .policy import Ticket
from .seeds import sample_seeds
from .trace import STATUSES, Header, Trace

__all__ = ["Record"]

_INTS = ("worker", "seen", "version", "arrival", "group", "status")
_FLOATS = ("start", "end")


class Record:
    """One row a ticket, filled in as things happen.

    Examples:
        >>> record = Record(workers=1, seed=0)
        >>> ticket = Ticket(0, worker=0, version=1, seen=0, sample=0)
        >>> record.issued(ticket, at=math.nan)
        >>> record.arrived(ticket, "applied", arrival=1, group=0, at=math.nan)
        >>> record.trace("by hand").delay.tolist()
        [0]
    """

    def __init__(
        self, workers: int, seed: int, policy: str = "async", groups: tuple[str, ...] = ("all",), clock: str = "none"
    ) -> None:
        self.seats = workers
        self.seed, self.policy, self.groups, self.clock = seed, policy, groups, clock
        self.strict = True
        self._last: dict[int, int] = {}  # each worker's last arrival
        self._columns: dict[str, list[Any]] = {name: [] for name in (*_INTS, *_FLOATS)}

    @property
    def tickets(self) -> int:
        """How many tickets have been issued."""
        return len(self._columns["worker"])

    def issued(self, ticket: Ticket, at: float) -> None:
        """Note a new ticket, or who has one that was lost."""
        c = self._columns
        if ticket.number < self.tickets:
            c["worker"][ticket.number], c["start"][ticket.number] = ticket.worker, at
            return
        if ticket.seen != self._last.get(ticket.worker, 0):  # it did not go on at once
            self.strict = False
        row = {"worker": ticket.worker, "seen": ticket.seen, "version": ticket.version, "start": at, "end": math.nan}
        for name, value in {**row, "arrival": 0, "group": -1, "status": -1}.items():
            c[name].append(value)

    def arrived(self, ticket: Ticket, status: str, arrival: int, group: int, at: float) -> None:
        """Note what became of a ticket that came back."""
        c, row = self._columns, ticket.number
        c["arrival"][row], c["group"][row], c["end"][row] = arrival, group, at
        c["status"][row] = STATUSES.index(status)
        self._last[ticket.worker] = arrival

    def became(self, ticket: Ticket, status: str) -> None:
        """Note what became of a ticket that will not come back."""
        self._columns["status"][ticket.number] = STATUSES.index(status)

    def trace(self, model: str) -> Trace:
        """Return the rows as a trace."""
        n = self.tickets
        columns = {name: np.array(values) for name, values in self._columns.items()}
        header = Header(
            workers=self.seats,
            seed=self.seed,
            policy=self.policy,
            groups=self.groups,
            model=model,
            clock=self.clock,
            strict=self.strict,
            versions={"numpy": np.__version__, "python": platform.python_version(), "torch": torch.__version__},
        )
        return Trace(header, {"ticket": np.arange(n), "sample": sample_seeds(self.seed, n), **columns})

    def state_dict(self) -> dict[str, Any]:
        """Return the rows as tensors."""
        tensors = {name: torch.tensor(self._columns[name], dtype=torch.int64) for name in _INTS}
        tensors |= {name: torch.tensor(self._columns[name], dtype=torch.float64) for name in _FLOATS}
        return {"seats": self.seats, "strict": self.strict, "last": dict(self._last), "columns": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with these rows."""
        self.seats, self.strict, self._last = state["seats"], state["strict"], dict(state["last"])
        self._columns = {name: tensor.tolist() for name, tensor in state["columns"].items()}
