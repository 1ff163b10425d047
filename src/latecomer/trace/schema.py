"""The columns and the header of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

__all__ = ["ARRIVED", "COLUMNS", "NULLS", "STATUSES", "Header", "TraceError"]

STATUSES = ("applied", "zero", "dropped", "held", "cancelled", "lost")
"""Possible statuses of a ticket; one that is still in flight at the end of the trace has none."""
ARRIVED = frozenset({"applied", "zero", "dropped", "held"})

COLUMNS: Mapping[str, type] = MappingProxyType(
    {
        "ticket": np.int64,  # number; fixes the sample. A lost ticket has one row per issue
        "worker": np.int32,  # worker it was issued to
        "seen": np.int64,  # arrivals counted when it was issued
        "version": np.int64,  # index of the iterate it starts from
        "arrival": np.int64,  # index of its arrival; 0 here and null in the file if it never arrived
        "update": np.int64,  # index of its update; 0 and null if none
        "ended": np.int64,  # arrivals counted when it was lost or cancelled; -1 and null otherwise
        "group": np.int16,  # group of its sample, fast (0) or slow (1, 2, ...); -1 and null if unknown
        "sample": np.uint64,  # seed of its sample
        "start": np.float64,  # time on the clock; NaN and null without a clock
        "end": np.float64,
        "status": np.int8,  # index into STATUSES; -1 and null while in flight
    }
)
"""Columns of a trace and their types."""
NULLS: Mapping[str, Any] = MappingProxyType({"arrival": 0, "update": 0, "ended": -1, "group": -1, "status": -1})


class TraceError(ValueError):
    """A trace that violates a rule, or a file that is not a trace."""


@dataclass(frozen=True)
class Header:
    """What holds for a whole trace.

    Args:
        policy: Name of the policy that made the schedule.
        workers: Number of workers, the paper's M: those at the start and those that joined.
        seed: Draws arrivals and samples.
        groups: Names of the groups, fastest first.
        model: Description of where the schedule comes from.
        clock: ``"none"``, ``"virtual"`` or ``"real"``.
        strict: Whether every worker continued immediately from the iterate that its last arrival made: true unless
            workers joined, left or paused during the run, or tickets were lost or cancelled.
        joined: Workers that joined during the run, as pairs (arrivals counted by then, worker).
        left: Workers that left, in the same form.
        given_up: Tickets that no worker could compute: they arrive with weight zero under any method.
        versions: Versions of the software that made the trace.

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
