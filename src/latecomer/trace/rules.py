"""The rules a trace keeps, each with a sentence that says which row breaks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.seeds import sample_seeds
from .schema import ARRIVED, STATUSES, Header, TraceError

__all__ = ["check"]

Columns = Mapping[str, NDArray[Any]]


def check(header: Header, c: Columns) -> None:
    """Check every invariant of a trace and of its policy; raise for the first row that breaks one.

    Examples:
        >>> import latecomer as lc
        >>> good = lc.delays.Constant(workers=2).trace(steps=4, seed=0)
        >>> columns = dict(good.columns, version=good.columns["version"] + 1)
        >>> lc.Trace(good.header, columns)
        Traceback (most recent call last):
        latecomer.trace.schema.TraceError: Row 0 breaks the rule "a ticket starts from the newest iterate" (version 2,
        seen 0)
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

    rule(f"workers are 0 to {header.workers - 1}", (c["worker"] >= 0) & (c["worker"] < header.workers), "worker")
    rule(f"groups are 0 to {len(header.groups) - 1}", (c["group"] >= -1) & (c["group"] < len(header.groups)), "group")
    rule("a status is one of " + ", ".join(STATUSES), (c["status"] >= -1) & (c["status"] < len(STATUSES)), "status")
    arrived = c["arrival"] != 0
    came = np.array([word in ARRIVED for word in STATUSES] + [False])[c["status"]]
    rule("what arrived is applied, zero, dropped or held, and nothing else is", arrived == came, "arrival", "status")
    rule("who arrived has a group", (c["group"] >= 0) | ~arrived, "arrival", "group")
    rule("tickets are issued in order", np.diff(c["seen"], prepend=0) >= 0, "ticket", "seen")
    steps = int(arrived.sum())
    rule(f"arrivals are 1 to {steps}", (c["arrival"] >= 0) & (c["arrival"] <= steps), "arrival")
    first = np.zeros(n, dtype=bool)
    first[np.unique(c["arrival"], return_index=True)[1]] = True
    rule("no two tickets arrive at once", first | ~arrived, "ticket", "arrival")
    rule("a ticket arrives after it was issued", (c["seen"] < c["arrival"]) | ~arrived, "seen", "arrival")
    rule("nothing is issued after the last arrival", c["seen"] <= steps, "seen")
    fits = (c["ended"] == -1) | ((c["ended"] >= c["seen"]) & (c["ended"] <= steps))
    rule("what ends does so after it was issued", fits, "seen", "ended")
    gone = np.isin(c["status"], [STATUSES.index("cancelled"), STATUSES.index("lost")])
    rule("what is lost or called off says when, and nothing else does", (c["ended"] >= 0) == gone, "status", "ended")

    updates = _check_updates(header, c, rule, arrived)
    _check_tickets(header, c, rule, updates)
    _check_workers(header, c, rule, steps)
    if header.clock != "none":
        _check_clock(c, rule)


def _check_updates(header: Header, c: Columns, rule: Any, arrived: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Check what became an update; return how many had been made after 0, 1, 2, ... arrivals."""
    always, never = np.isin(c["status"], [0, 1]), ~arrived | (c["status"] == STATUSES.index("held"))
    made = c["update"] != 0
    rule("what is applied or zero is an update", made | ~always, "status", "update")
    rule("what is held or never arrived is no update", ~made | ~never, "status", "update")
    rows = np.argsort(c["arrival"], kind="stable")[int((~arrived).sum()) :]
    count = np.concatenate([[0], np.cumsum(made[rows])]).astype(np.int64)
    in_order = np.ones(len(made), dtype=bool)
    in_order[rows] = ~made[rows] | (c["update"][rows] == count[1:])
    rule("updates count 1, 2, ... in order of arrival", in_order, "arrival", "update")
    if header.policy == "async":
        rule("async never holds a contribution", c["status"] != STATUSES.index("held"), "status")
        rule("under async every arrival is an update", c["update"] == c["arrival"], "arrival", "update")
    return count


def _check_tickets(header: Header, c: Columns, rule: Any, updates: NDArray[np.int64]) -> None:
    """Check that tickets count up, start from the newest iterate, and are issued again only as they were."""
    again, before, after = _pairs(c["ticket"])
    fresh = ~again
    counts = again | (c["ticket"] == np.cumsum(fresh) - 1)
    rule("tickets count 0, 1, 2, ...", counts, "ticket")
    newest = again | (c["version"] == updates[c["seen"]] + 1)
    rule("a ticket starts from the newest iterate", newest, "version", "seen")
    lost = np.ones(len(again), dtype=bool)
    lost[after] = (c["status"][before] == STATUSES.index("lost")) & (c["ended"][before] <= c["seen"][after])
    rule("a ticket is issued again only once it is lost", lost, "ticket", "seen")
    same = np.ones(len(again), dtype=bool)
    same[after] = (c["version"][before] == c["version"][after]) & (c["sample"][before] == c["sample"][after])
    rule("a ticket that is issued again is the same job", same, "ticket", "version", "sample")
    drawn = sample_seeds(header.seed, int(c["ticket"].max()) + 1)[c["ticket"]]
    rule("a sample follows from the trace's seed and the ticket", c["sample"] == drawn, "ticket", "sample")


def _check_workers(header: Header, c: Columns, rule: Any, steps: int) -> None:
    """Check who was there, that nobody has two tickets at once and, if the trace says so, that all went on at once."""
    came, left = _seats(header, c["worker"], steps)
    rule("a worker gets a ticket while it has its seat", (came <= c["seen"]) & (c["seen"] <= left), "worker", "seen")
    # When a ticket left its worker, counted in arrivals; still out is later than anything.
    end = np.where(c["arrival"] > 0, c["arrival"], np.where(c["ended"] >= 0, c["ended"], np.iinfo(np.int64).max))
    rule("who leaves has handed in or lost its ticket", (end <= left) | (left > steps), "worker", "arrival", "ended")
    again, before, after = _pairs(c["worker"])
    free = np.ones(len(again), dtype=bool)
    free[after] = end[before] <= c["seen"][after]
    rule("a worker has one ticket at a time", free, "ticket", "worker", "seen")
    if header.strict:
        at_once = c["seen"] == 0
        at_once[after] = c["seen"][after] == c["arrival"][before]
        rule("a worker goes on from the iterate its last arrival made", at_once, "ticket", "worker", "seen")
        rule("in a strict trace nothing is lost or called off", c["ended"] < 0, "ticket", "status")


def _seats(header: Header, worker: NDArray[Any], steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for every row when its worker came and when it left, counted in arrivals."""
    first = header.workers - len(header.joined)
    times = [time for time, _ in header.joined]
    if first < 1 or [seat for _, seat in header.joined] != list(range(first, header.workers)) or times != sorted(times):
        raise TraceError("The header's list of workers that joined makes no sense: seats are given in order")
    leaving = {seat: time for time, seat in header.left}
    fine = all(
        0 <= seat < header.workers and time >= (times[seat - first] if seat >= first else 0)
        for seat, time in leaving.items()
    )
    if len(leaving) < len(header.left) or not fine or any(not 0 <= t <= steps for t in [*times, *leaving.values()]):
        raise TraceError("The header's list of workers that left makes no sense: they leave once, after they came")
    came, left = np.zeros(len(worker), dtype=np.int64), np.full(len(worker), steps + 1, dtype=np.int64)
    late = worker >= first
    came[late] = np.array([*times, 0], dtype=np.int64)[worker[late] - first]
    if leaving:
        seats = np.array(sorted(leaving), dtype=np.int64)
        at = np.minimum(np.searchsorted(seats, worker), len(seats) - 1)
        goes = seats[at] == worker
        left[goes] = np.array([leaving[int(seat)] for seat in seats], dtype=np.int64)[at[goes]]
    return came, left


def _pairs(key: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Say which rows have an earlier one with the same key, and list both."""
    order = np.argsort(key, kind="stable")
    same = key[order][1:] == key[order][:-1]
    before, after = order[:-1][same], order[1:][same]
    again = np.zeros(len(key), dtype=bool)
    again[after] = True
    return again, before, after


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
    # Between the last arrival it has seen and the next one, and after the ticket before it.
    clock = np.concatenate([[-np.inf], ends, [np.inf]])
    between = (clock[c["seen"]] <= c["start"]) & (c["start"] <= clock[c["seen"] + 1])
    between[1:] &= np.diff(c["start"]) >= 0
    rule("tickets start in the order of their clock", between, "seen", "start")


def _show(name: str, value: Any) -> str:
    if name == "status":
        return "none" if value == -1 else STATUSES[value] if 0 <= value < len(STATUSES) else str(value)
    if (name in ("arrival", "update") and value == 0) or (name == "ended" and value == -1):
        return "none"
    return f"{value}"
