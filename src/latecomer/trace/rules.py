"""The rules of a trace; an error names the first row that violates one.

A run is replayed from its trace, so a trace that violates a rule would train something else without notice. Every rule
is one vectorised comparison: a trace may have millions of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.seeds import sample_seeds
from .schema import ARRIVED, STATUSES, Header, TraceError

__all__ = ["check_trace"]

Columns = Mapping[str, NDArray[Any]]


def check_trace(header: Header, c: Columns) -> None:
    """Check every rule of a trace and of its policy; raise `TraceError` for the first row that violates one."""
    n = len(c["ticket"])
    if any(len(column) != n for column in c.values()):
        raise TraceError("The columns of a trace must have the same length")
    if n == 0:
        raise TraceError("The trace has no rows")

    def rule(text: str, holds: NDArray[np.bool_], *shown: str) -> None:
        if not holds.all():
            row = int(np.argmin(holds))
            values = ", ".join(f"{name} {_shown_value(name, c[name][row])}" for name in shown)
            raise TraceError(f'Row {row} breaks the rule "{text}" ({values})')

    rule(f"workers are 0 to {header.workers - 1}", (c["worker"] >= 0) & (c["worker"] < header.workers), "worker")
    rule(f"groups are 0 to {len(header.groups) - 1}", (c["group"] >= -1) & (c["group"] < len(header.groups)), "group")
    rule("a status is one of " + ", ".join(STATUSES), (c["status"] >= -1) & (c["status"] < len(STATUSES)), "status")
    # An arrival of 0 means "never arrived", a status of -1 "in flight": the last entry of `has_arrived` answers for -1.
    arrived = c["arrival"] != 0
    has_arrived = np.array([status in ARRIVED for status in STATUSES] + [False])[c["status"]]
    rule(
        "a ticket is applied, zero, dropped or held if and only if it arrived",
        arrived == has_arrived,
        "arrival",
        "status",
    )
    rule("a ticket that arrived has a group", (c["group"] >= 0) | ~arrived, "arrival", "group")
    rule("tickets are issued in order", np.diff(c["seen"], prepend=0) >= 0, "ticket", "seen")
    steps = int(arrived.sum())
    rule(f"arrivals are 1 to {steps}", (c["arrival"] >= 0) & (c["arrival"] <= steps), "arrival")
    # Rows that share their arrival with an earlier row; the many rows with arrival 0 are let through by ~arrived.
    first = np.zeros(n, dtype=bool)
    first[np.unique(c["arrival"], return_index=True)[1]] = True
    rule("no two tickets have the same arrival", first | ~arrived, "ticket", "arrival")
    rule("a ticket arrives after it was issued", (c["seen"] < c["arrival"]) | ~arrived, "seen", "arrival")
    rule("nothing is issued after the last arrival", c["seen"] <= steps, "seen")
    valid = (c["ended"] == -1) | ((c["ended"] >= c["seen"]) & (c["ended"] <= steps))
    rule("a ticket ends after it was issued", valid, "seen", "ended")
    ended = np.isin(c["status"], [STATUSES.index("cancelled"), STATUSES.index("lost")])
    rule("ended is set if and only if a ticket is lost or cancelled", (c["ended"] >= 0) == ended, "status", "ended")

    updates = _check_updates(header, c, rule, arrived)
    _check_tickets(header, c, rule, updates)
    _check_workers(header, c, rule, steps)
    if header.clock != "none":
        _check_clock(c, rule)


def _check_updates(header: Header, c: Columns, rule: Any, arrived: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Check which arrivals are updates; return the number of updates after 0, 1, 2, ... arrivals."""
    # Dropped arrivals are in neither list: one that the optimizer drops is an update, one that the policy drops is not.
    always, never = np.isin(c["status"], [0, 1]), ~arrived | (c["status"] == STATUSES.index("held"))
    made = c["update"] != 0
    rule("an applied or zero arrival is an update", made | ~always, "status", "update")
    rule("a held ticket, or one that never arrived, is not an update", ~made | ~never, "status", "update")
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
    """Check that tickets count up, start from the newest iterate, and are the same job when issued again."""
    # A lost ticket has one row per issue. It keeps its number, version and sample, so that its bits do not change.
    reissued, before, after = _pairs(c["ticket"])
    in_sequence = reissued | (c["ticket"] == np.cumsum(~reissued) - 1)
    rule("tickets count 0, 1, 2, ...", in_sequence, "ticket")
    # The worker of a new ticket gets the parameters as they are: the iterate after all updates made so far.
    newest = reissued | (c["version"] == updates[c["seen"]] + 1)
    rule("a ticket starts from the newest iterate", newest, "version", "seen")
    lost = np.ones(len(reissued), dtype=bool)
    lost[after] = (c["status"][before] == STATUSES.index("lost")) & (c["ended"][before] <= c["seen"][after])
    rule("a ticket is issued again only after it was lost", lost, "ticket", "seen")
    same = np.ones(len(reissued), dtype=bool)
    same[after] = (c["version"][before] == c["version"][after]) & (c["sample"][before] == c["sample"][after])
    rule("a ticket that is issued again is the same job", same, "ticket", "version", "sample")
    # Samples are not free data: they follow from seed and ticket, so a trace cannot be paired with other samples.
    drawn = sample_seeds(header.seed, int(c["ticket"].max()) + 1)[c["ticket"]]
    rule("the sample is the one of the trace's seed and the ticket", c["sample"] == drawn, "ticket", "sample")


def _check_workers(header: Header, c: Columns, rule: Any, steps: int) -> None:
    """Check that workers have one ticket at a time, while they are there, and that a strict trace has no pauses."""
    joined, left = _presence(header, c["worker"], steps)
    rule(
        "a worker gets tickets between joining and leaving",
        (joined <= c["seen"]) & (c["seen"] <= left),
        "worker",
        "seen",
    )
    # Arrivals counted when a ticket left its worker; a ticket still in flight is later than everything.
    end = np.where(c["arrival"] > 0, c["arrival"], np.where(c["ended"] >= 0, c["ended"], np.iinfo(np.int64).max))
    rule(
        "a worker that leaves has returned or lost its ticket",
        (end <= left) | (left > steps),
        "worker",
        "arrival",
        "ended",
    )
    _, before, after = _pairs(c["worker"])
    free = np.ones(len(c["worker"]), dtype=bool)
    free[after] = end[before] <= c["seen"][after]
    rule("a worker has one ticket at a time", free, "ticket", "worker", "seen")
    if header.strict:
        # A strict trace has no pauses: the next ticket is issued right after the arrival of the one before, the first
        # at 0.
        immediate = c["seen"] == 0
        immediate[after] = c["seen"][after] == c["arrival"][before]
        rule("a worker continues from the iterate that its last arrival made", immediate, "ticket", "worker", "seen")
        rule("a strict trace has no lost or cancelled tickets", c["ended"] < 0, "ticket", "status")


def _presence(header: Header, worker: NDArray[Any], steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for every row when its worker joined and left, counted in arrivals."""
    first = header.workers - len(header.joined)
    times = [time for time, _ in header.joined]
    if first < 1 or [who for _, who in header.joined] != list(range(first, header.workers)) or times != sorted(times):
        raise TraceError("Invalid header: workers that joined must be numbered in the order in which they joined")
    leaving = {who: time for time, who in header.left}
    valid = all(
        0 <= who < header.workers and time >= (times[who - first] if who >= first else 0)
        for who, time in leaving.items()
    )
    if len(leaving) < len(header.left) or not valid or any(not 0 <= t <= steps for t in [*times, *leaving.values()]):
        raise TraceError("Invalid header: a worker leaves at most once, and after it joined")
    joined, left = np.zeros(len(worker), dtype=np.int64), np.full(len(worker), steps + 1, dtype=np.int64)
    late = worker >= first
    joined[late] = np.array([*times, 0], dtype=np.int64)[worker[late] - first]
    if leaving:
        leavers = np.array(sorted(leaving), dtype=np.int64)
        at = np.minimum(np.searchsorted(leavers, worker), len(leavers) - 1)
        leaves = leavers[at] == worker
        left[leaves] = np.array([leaving[int(who)] for who in leavers], dtype=np.int64)[at[leaves]]
    return joined, left


def _pairs(key: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Return which rows have an earlier row with the same key, and the two rows of each such pair."""
    order = np.argsort(key, kind="stable")
    same = key[order][1:] == key[order][:-1]
    before, after = order[:-1][same], order[1:][same]
    repeated = np.zeros(len(key), dtype=bool)
    repeated[after] = True
    return repeated, before, after


def _check_clock(c: Columns, rule: Any) -> None:
    # A loss ends a ticket without a time, so only arrivals have one to be in order.
    rule("with a clock every ticket has a start", ~np.isnan(c["start"]), "start")
    rule("a ticket starts before it ends", ~(c["end"] < c["start"]), "start", "end")
    in_order = np.ones(len(c["end"]), dtype=bool)
    arrived = np.flatnonzero(c["arrival"])
    rows = arrived[np.argsort(c["arrival"][arrived])]
    ends = c["end"][rows]
    in_order[rows[1:]] = ends[1:] >= ends[:-1]
    in_order[rows] &= ~np.isnan(ends)
    rule("arrivals are in the order of their clock", in_order, "arrival", "end")
    # A ticket starts between the last arrival it has seen and the next one, and not before the ticket issued before it.
    clock = np.concatenate([[-np.inf], ends, [np.inf]])
    between = (clock[c["seen"]] <= c["start"]) & (c["start"] <= clock[c["seen"] + 1])
    between[1:] &= np.diff(c["start"]) >= 0
    rule("tickets start in the order of their clock", between, "seen", "start")


def _shown_value(name: str, value: Any) -> str:
    if name == "status":
        return "none" if value == -1 else STATUSES[value] if 0 <= value < len(STATUSES) else str(value)
    if (name in ("arrival", "update") and value == 0) or (name == "ended" and value == -1):
        return "none"
    return f"{value}"
