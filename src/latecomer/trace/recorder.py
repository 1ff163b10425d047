"""Records the rows of a trace during a run."""

from __future__ import annotations

import math
import platform
from array import array
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._util.seeds import sample_seeds
from ..policy import Ticket
from . import COLUMNS, STATUSES, Header, Trace

__all__ = ["Recorder"]

# Typed arrays, as narrow as possible: the record of a long run must stay smaller than its tensors. Samples follow
# from the tickets, and without a clock there are no times.
_WHOLE = {name: np.dtype(kind).char.replace("l", "i") for name, kind in COLUMNS.items() if np.dtype(kind).kind == "i"}
_TIMES = {"start": "d", "end": "d"}
_CODES = {status: code for code, status in enumerate(STATUSES)}


class Recorder:
    """One row per issue of a ticket, filled in as the run goes on."""

    def __init__(
        self, workers: int, seed: int, policy: str = "async", groups: tuple[str, ...] = ("all",), clock: str = "none"
    ) -> None:
        self.workers = workers
        self.seed, self.policy, self.groups, self.clock = seed, policy, groups, clock
        self.tickets = 0
        self.strict = True
        self._joined: list[tuple[int, int]] = []
        self._left: list[tuple[int, int]] = []
        self._given_up: list[int] = []
        self._last: dict[int, int] = {}  # each worker's last arrival
        self._rows: dict[int, int] = {}  # row of each ticket in flight
        self._types = _WHOLE if clock == "none" else {**_WHOLE, **_TIMES}
        self._columns: dict[str, array[Any]] = {name: array(kind) for name, kind in self._types.items()}

    def join(self, arrivals: int) -> int:
        """Record that a worker joins, and return its number."""
        self._joined.append((arrivals, self.workers))
        self.strict = self.strict and arrivals == 0
        self.workers += 1
        return self.workers - 1

    def leave(self, worker: int, arrivals: int) -> None:
        """Record that a worker leaves."""
        self._left.append((arrivals, worker))
        self.strict = False

    def issued(self, ticket: Ticket, at: float) -> None:
        """Record that a ticket is issued, for the first time or again."""
        if ticket.number == self.tickets:
            self.tickets += 1
            self.strict = self.strict and ticket.seen == self._last.get(
                ticket.worker, 0
            )  # no pause since its last arrival
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
        """Record the arrival of a ticket; ``update`` is 0 if it made none."""
        c, row = self._columns, self._rows.pop(ticket.number)
        c["arrival"][row], c["update"][row], c["group"][row] = arrival, update, group
        c["status"][row] = _CODES[status]
        if self.clock != "none":
            c["end"][row] = at
        self._last[ticket.worker] = arrival

    @property
    def given_up(self) -> int:
        """Number of tickets that were given up."""
        return len(self._given_up)

    def gave_up(self, ticket: Ticket) -> None:
        """Record that no worker could compute a ticket, which arrives now."""
        self._given_up.append(ticket.number)

    def ended(self, ticket: Ticket, status: str, arrivals: int) -> None:
        """Record that a ticket was lost or cancelled after so many arrivals."""
        c, row = self._columns, self._rows.pop(ticket.number)
        c["status"][row], c["ended"][row] = _CODES[status], arrivals
        self.strict = False

    def since(self, row: int) -> tuple[dict[str, NDArray[Any]], int]:
        """Return copies of the rows from this one on, and the first row that may still change."""
        columns = {name: np.array(values[row:]) for name, values in self._columns.items()}
        return columns, min(self._rows.values(), default=len(self._columns["ticket"]))

    def header(self, model: str) -> Header:
        """Return the header of the trace so far."""
        return Header(
            workers=self.workers,
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

    def trace(self, model: str) -> Trace:
        """Return the rows as a trace."""
        columns = {name: np.array(values) for name, values in self._columns.items()}
        no_times = np.full(len(columns["ticket"]), np.nan)
        samples = sample_seeds(self.seed, self.tickets)[columns["ticket"]]
        return Trace(self.header(model), {"sample": samples, "start": no_times, "end": no_times, **columns})

    def state_dict(self) -> dict[str, Any]:
        """Return the rows as tensors."""
        columns = {name: torch.from_numpy(np.array(values)) for name, values in self._columns.items()}
        return {
            "seats": [self.workers, self.tickets, self.strict],
            "joined": list(self._joined),
            "left": list(self._left),
            "given_up": list(self._given_up),
            "last": dict(self._last),
            "rows": dict(self._rows),
            "columns": columns,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state dict."""
        self.workers, self.tickets, self.strict = state["seats"]
        self._joined, self._left = list(state["joined"]), list(state["left"])
        self._given_up = list(state.get("given_up", ()))
        self._last, self._rows = dict(state["last"]), dict(state["rows"])
        self._columns = {
            name: array(kind, state["columns"][name].numpy().tobytes()) for name, kind in self._types.items()
        }
