"""Rows of a trace while the run is still going."""

from __future__ import annotations

import math
import platform
from array import array
from typing import Any

import numpy as np
import torch

from .._util.seeds import sample_seeds
from ..policy import Ticket
from . import COLUMNS, STATUSES, Header, Trace

__all__ = ["Recorder"]

# Typed arrays, no wider than need be: the books of a long run must not outgrow its tensors. The samples follow from
# the tickets, and without a clock there are no times.
_WHOLE = {name: np.dtype(kind).char.replace("l", "i") for name, kind in COLUMNS.items() if np.dtype(kind).kind == "i"}
_TIMES = {"start": "d", "end": "d"}
_CODES = {status: code for code, status in enumerate(STATUSES)}


class Recorder:
    """One row a ticket, and another one each time it is issued again, filled in as things happen.

    Examples:
        >>> record = Recorder(workers=1, seed=0)
        >>> ticket = Ticket(0, worker=0, version=1, seen=0, sample=0)
        >>> record.issued(ticket, at=math.nan)
        >>> record.arrived(ticket, "applied", arrival=1, update=1, group=0, at=math.nan)
        >>> record.trace("by hand").delay.tolist()
        [0]
    """

    def __init__(
        self, workers: int, seed: int, policy: str = "async", groups: tuple[str, ...] = ("all",), clock: str = "none"
    ) -> None:
        self.seats = workers
        self.seed, self.policy, self.groups, self.clock = seed, policy, groups, clock
        self.tickets = 0
        self.strict = True
        self._joined: list[tuple[int, int]] = []
        self._left: list[tuple[int, int]] = []
        self._given_up: list[int] = []
        self._last: dict[int, int] = {}  # each worker's last arrival
        self._rows: dict[int, int] = {}  # where each ticket in flight stands
        self._types = _WHOLE if clock == "none" else {**_WHOLE, **_TIMES}
        self._columns: dict[str, array[Any]] = {name: array(kind) for name, kind in self._types.items()}

    def join(self, arrivals: int) -> int:
        """Note that somebody takes a seat, and return which."""
        self._joined.append((arrivals, self.seats))
        self.strict = self.strict and arrivals == 0
        self.seats += 1
        return self.seats - 1

    def leave(self, worker: int, arrivals: int) -> None:
        """Note that somebody gives up a seat."""
        self._left.append((arrivals, worker))
        self.strict = False

    def issued(self, ticket: Ticket, at: float) -> None:
        """Note that a ticket goes out, for the first time or again."""
        if ticket.number == self.tickets:
            self.tickets += 1
            self.strict = self.strict and ticket.seen == self._last.get(ticket.worker, 0)  # it went on at once
        c = self._columns
        self._rows[ticket.number] = len(c["ticket"])
        c["ticket"].append(ticket.number)
        c["worker"].append(ticket.worker)
        c["seen"].append(ticket.seen)
        c["version"].append(ticket.version)
        c["arrival"].append(0)
        c["update"].append(0)
        c["ended"].append(-1)
        c["group"].append(-1)
        c["status"].append(-1)
        if self.clock != "none":
            c["start"].append(at)
            c["end"].append(math.nan)

    def arrived(self, ticket: Ticket, status: str, arrival: int, update: int, group: int, at: float) -> None:
        """Note what became of a ticket that came back; ``update`` is 0 if it made none."""
        c, row = self._columns, self._rows.pop(ticket.number)
        c["arrival"][row], c["update"][row], c["group"][row] = arrival, update, group
        c["status"][row] = _CODES[status]
        if self.clock != "none":
            c["end"][row] = at
        self._last[ticket.worker] = arrival

    @property
    def given_up(self) -> int:
        """How many tickets were given up."""
        return len(self._given_up)

    def gave_up(self, ticket: Ticket) -> None:
        """Note that nobody could compute a ticket that arrives now."""
        self._given_up.append(ticket.number)

    def ended(self, ticket: Ticket, status: str, arrivals: int) -> None:
        """Note that a ticket was lost or called off when so many arrivals had been counted."""
        c, row = self._columns, self._rows.pop(ticket.number)
        c["status"][row], c["ended"][row] = _CODES[status], arrivals
        self.strict = False

    def trace(self, model: str) -> Trace:
        """Return the rows as a trace."""
        columns = {name: np.array(values) for name, values in self._columns.items()}
        nowhere = np.full(len(columns["ticket"]), np.nan)
        header = Header(
            workers=self.seats,
            seed=self.seed,
            policy=self.policy,
            groups=self.groups,
            model=model,
            clock=self.clock,
            strict=self.strict,
            joined=tuple(self._joined),
            left=tuple(self._left),
            given_up=tuple(self._given_up),
            versions={"numpy": np.__version__, "python": platform.python_version(), "torch": torch.__version__},
        )
        samples = sample_seeds(self.seed, self.tickets)[columns["ticket"]]
        return Trace(header, {"sample": samples, "start": nowhere, "end": nowhere, **columns})

    def state_dict(self) -> dict[str, Any]:
        """Return the rows as tensors."""
        columns = {name: torch.from_numpy(np.array(values)) for name, values in self._columns.items()}
        return {
            "seats": [self.seats, self.tickets, self.strict],
            "joined": list(self._joined),
            "left": list(self._left),
            "given_up": list(self._given_up),
            "last": dict(self._last),
            "rows": dict(self._rows),
            "columns": columns,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with these rows."""
        self.seats, self.tickets, self.strict = state["seats"]
        self._joined, self._left = list(state["joined"]), list(state["left"])
        self._given_up = list(state.get("given_up", ()))
        self._last, self._rows = dict(state["last"]), dict(state["rows"])
        self._columns = {
            name: array(kind, state["columns"][name].numpy().tobytes()) for name, kind in self._types.items()
        }
