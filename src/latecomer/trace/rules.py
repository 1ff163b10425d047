"""The rules a trace keeps, each with a sentence that says which row breaks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .schema import ARRIVED, STATUSES, Header, TraceError

__all__ = ["check"]

Columns = Mapping[str, NDArray[Any]]


def check(header: Header, c: Columns) -> None:
    """Check every invariant of a trace and of its policy; raise for the first row that breaks one.

    Examples:
        >>> import latecomer as lc
        >>> good = lc.delays.Constant(workers=2).trace(steps=4, seed=0)
        >>> columns = dict(good.columns, version=good.columns["version"] + 1)
        >>> lc.Trace(good.header, columns)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        latecomer.trace.schema.TraceError: Row 0 breaks the rule "a version is at most ... plus one" (version 2, seen 0)
    """
    n = len(c["ticket"])
    if any(len(column) != n for column in c.values()):
        raise TraceError("The columns of a trace must have the same length")
    if n == 0:
        raise TraceError("The trace has no rows")

    def rule(text: str, good: NDArray[np.bool_], *shown: str) -> None:
        if not good.all():
            row = int(np.argmin(good))
            values = ", ".join(f"{name} {_show(name, c[name][row])}" for name in shown)
            raise TraceError(f'Row {row} breaks the rule "{text}" ({values})')

    rule("tickets count 0, 1, 2, ...", c["ticket"] == np.arange(n), "ticket")
    rule(f"workers are 0 to {header.workers - 1}", (c["worker"] >= 0) & (c["worker"] < header.workers), "worker")
    rule(f"groups are 0 to {len(header.groups) - 1}", (c["group"] >= -1) & (c["group"] < len(header.groups)), "group")
    rule("a status is one of " + ", ".join(STATUSES), (c["status"] >= -1) & (c["status"] < len(STATUSES)), "status")
    arrived = c["arrival"] != 0
    came = np.array([word in ARRIVED for word in STATUSES] + [False])[c["status"]]
    rule("what arrived is applied, zero, dropped or held, and nothing else is", arrived == came, "arrival", "status")
    rule("who arrived has a group", (c["group"] >= 0) | ~arrived, "arrival", "group")
    rule("tickets are issued in order", np.diff(c["seen"], prepend=0) >= 0, "ticket", "seen")
    rule("a version is at least 1", c["version"] >= 1, "version")
    rule("a version is at most the arrivals seen, plus one", c["version"] <= c["seen"] + 1, "version", "seen")
    steps = int(arrived.sum())
    rule(f"arrivals are 1 to {steps}", (c["arrival"] >= 0) & (c["arrival"] <= steps), "arrival")
    first = np.zeros(n, dtype=bool)
    first[np.unique(c["arrival"], return_index=True)[1]] = True
    rule("no two tickets arrive at once", first | ~arrived, "ticket", "arrival")
    rule("a ticket arrives after it was issued", (c["seen"] < c["arrival"]) | ~arrived, "seen", "arrival")
    rule("nothing is issued after the last arrival", c["seen"] <= max(0, steps), "seen")
    _check_workers(header, c, rule, arrived)
    if header.clock != "none":
        _check_clock(c, rule)
    if header.policy == "async":
        fine = ~arrived | (c["status"] != STATUSES.index("held"))
        rule("async never holds a contribution", fine, "status")
        rule(
            "under async a ticket's version is the arrivals seen, plus one",
            c["version"] == c["seen"] + 1,
            "version",
            "seen",
        )


def _check_workers(header: Header, c: Columns, rule: Any, arrived: NDArray[np.bool_]) -> None:
    """Check that a worker has one ticket at a time and, under async, goes on from what its last arrival made.

    Where tickets changed hands a row only tells who had it last, so there is nothing to check.
    """
    if not header.strict:
        return
    order = np.lexsort((c["ticket"], c["worker"]))
    again = c["worker"][order][1:] == c["worker"][order][:-1]
    before, after = order[:-1][again], order[1:][again]
    free = np.ones(len(order), dtype=bool)
    free[after] = arrived[before] & (c["arrival"][before] <= c["seen"][after])
    rule("a worker has one ticket at a time", free, "ticket", "worker", "seen")
    if header.policy == "async":
        follows = c["version"] == 1
        follows[after] = c["version"][after] == c["arrival"][before] + 1
        rule("a worker goes on from the iterate its last arrival made", follows, "ticket", "worker", "version")


def _check_clock(c: Columns, rule: Any) -> None:
    rule("with a clock every ticket has a start", ~np.isnan(c["start"]), "start")
    rule("a ticket starts before it ends", ~(c["end"] < c["start"]), "start", "end")
    in_order = np.ones(len(c["end"]), dtype=bool)
    arrived = np.flatnonzero(c["arrival"])
    rows = arrived[np.argsort(c["arrival"][arrived])]
    ends = c["end"][rows]
    in_order[rows[1:]] = ends[1:] >= ends[:-1]
    in_order[rows] &= ~np.isnan(ends)
    rule("arrivals are in the order of their clock", in_order, "arrival", "end")


def _show(name: str, value: Any) -> str:
    if name == "status":
        return "none" if value == -1 else STATUSES[value] if 0 <= value < len(STATUSES) else str(value)
    if name == "arrival" and value == 0:
        return "none"
    return f"{value}"
