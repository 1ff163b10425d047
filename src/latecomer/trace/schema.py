"""What a trace consists of: its columns, its header, and the words in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

__all__ = ["ARRIVED", "COLUMNS", "NULLS", "STATUSES", "Header", "TraceError"]

STATUSES = ("applied", "zero", "dropped", "held", "cancelled", "lost")
"""What may become of a ticket. One that is still in flight when the record ends has none of them."""
ARRIVED = frozenset({"applied", "zero", "dropped", "held"})

COLUMNS: Mapping[str, type] = MappingProxyType(
    {
        "ticket": np.int64,  # a counter; it fixes the sample. One that was lost has a row each time it is issued
        "worker": np.int32,  # the seat it went to
        "seen": np.int64,  # arrivals the server had counted when it was issued
        "version": np.int64,  # index of the iterate it starts from
        "arrival": np.int64,  # which arrival it was; 0 here and null in the file if it never arrived
        "update": np.int64,  # which update it made; 0 and null if none
        "ended": np.int64,  # arrivals counted when it was lost or called off; -1 and null if it was not
        "group": np.int16,  # what makes its sample fast (0) or slow (1, 2, ...); -1 and null if unknown
        "sample": np.uint64,  # the seed of its sample
        "start": np.float64,  # clock; NaN and null where there is none
        "end": np.float64,
        "status": np.int8,  # index into STATUSES; -1 and null while in flight
    }
)
NULLS: Mapping[str, Any] = MappingProxyType({"arrival": 0, "update": 0, "ended": -1, "group": -1, "status": -1})


class TraceError(ValueError):
    """A trace that breaks a rule, or a file that is no trace."""


@dataclass(frozen=True)
class Header:
    """What holds for a whole trace.

    Args:
        policy: Name of the policy that made the schedule.
        workers: Number of seats, the paper's M: those at the start and those that joined.
        seed: Draws arrivals and samples.
        groups: Names of the groups, fastest first.
        model: Where the schedule comes from, for people.
        clock: ``"none"``, ``"virtual"`` or ``"real"``.
        strict: Whether every worker went on at once from the iterate its last arrival made: true unless workers joined,
            left or paused during the run, or tickets were lost or called off.
        joined: Who took a seat during the run: arrivals counted by then, and the seat.
        left: Who gave one up, in the same way.
        given_up: Tickets that nobody could compute: they arrived with weight zero under any method.
        versions: Versions of what made it.

    Examples:
        >>> Header(workers=7, seed=0).policy
        'async'
    """

    workers: int
    seed: int
    policy: str = "async"
    groups: tuple[str, ...] = ("all",)
    model: str = ""
    clock: str = "none"
    strict: bool = True
    joined: tuple[tuple[int, int], ...] = ()
    left: tuple[tuple[int, int], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    given_up: tuple[int, ...] = ()
