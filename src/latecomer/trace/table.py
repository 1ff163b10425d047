"""The trace of a run: one row per ticket, with its worker, version, sample, arrival and status.

A trace has everything about a schedule and nothing about parameters. It is kept as numpy columns, saved as Parquet with
a versioned header, and checked against every rule of its policy when it is made or loaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .rules import check_trace
from .schema import COLUMNS, NULLS, STATUSES, Header, TraceError
from .summary import describe

__all__ = ["Trace"]


class Trace:
    """The table of all tickets of a run.

    The properties `arrival`, `ticket`, `worker`, `version`, `update`, `delay`, `group`, `sample`, `start`, `end` and
    `status` have one entry per arrival, in order of arrival. `columns` has one row per ticket, arrived or not, and
    another row each time a lost ticket is issued again.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.Constant(workers=3).trace(steps=6, seed=0)
        >>> trace.worker.tolist(), trace.version.tolist(), trace.delay.tolist()
        ([0, 1, 2, 0, 1, 2], [1, 1, 1, 2, 3, 4], [0, 1, 2, 2, 2, 2])
    """

    def __init__(self, header: Header, columns: Mapping[str, NDArray[Any]]) -> None:
        missing = [name for name in COLUMNS if name not in columns]
        if missing:
            raise TraceError(f"A trace needs the columns {', '.join(missing)}")
        self._set(header, columns)
        check_trace(self.header, self.columns)

    @classmethod
    def unchecked(cls, header: Header, columns: Mapping[str, NDArray[Any]]) -> Trace:
        """Return rows that a server has just recorded as a trace, without the checks: for a look at a run in progress.

        Samples and times may be missing, because nobody will replay it.
        """
        trace = cls.__new__(cls)
        count = len(columns["ticket"])
        no_times = np.full(count, np.nan)
        trace._set(header, {"sample": np.zeros(count, np.uint64), "start": no_times, "end": no_times, **columns})
        return trace

    def _set(self, header: Header, columns: Mapping[str, NDArray[Any]]) -> None:
        self.header = header
        self.columns: dict[str, NDArray[Any]] = {}
        for name, dtype in COLUMNS.items():
            column: NDArray[Any] = np.ascontiguousarray(
                columns[name], dtype=dtype
            ).view()  # read-only here, not for the caller
            column.setflags(write=False)
            self.columns[name] = column

    # ---- one entry per arrival ----------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Index into `columns` of every arrival, in order."""
        arrival = self.columns["arrival"]
        arrived = np.flatnonzero(arrival)
        order: NDArray[np.int64] = arrived[np.argsort(arrival[arrived], kind="stable")]
        return order

    def __len__(self) -> int:
        return len(self.rows)

    def _arrived(self, name: str) -> NDArray[Any]:
        return self.columns[name][self.rows]

    @cached_property
    def arrival(self) -> NDArray[np.int64]:
        """1, 2, ..., T."""
        return self._arrived("arrival")

    @cached_property
    def ticket(self) -> NDArray[np.int64]:
        """Number of the ticket that arrived."""
        return self._arrived("ticket")

    @cached_property
    def worker(self) -> NDArray[np.int32]:
        """Worker that returned it."""
        return self._arrived("worker")

    @cached_property
    def version(self) -> NDArray[np.int64]:
        """Index of the iterate it was computed at."""
        return self._arrived("version")

    @cached_property
    def delay(self) -> NDArray[np.int64]:
        """Updates since that iterate. Under policies that hold or drop not every arrival is an update."""
        made = np.cumsum(self.update > 0)
        delay: NDArray[np.int64] = np.concatenate([[0], made[:-1]]) + 1 - self.version
        return delay

    @cached_property
    def update(self) -> NDArray[np.int64]:
        """Index of the update it made, 0 if none."""
        return self._arrived("update")

    @cached_property
    def group(self) -> NDArray[np.int16]:
        """Group of its sample, 0 for the fastest."""
        return self._arrived("group")

    @cached_property
    def sample(self) -> NDArray[np.uint64]:
        """Seed of its sample."""
        return self._arrived("sample")

    @cached_property
    def start(self) -> NDArray[np.float64]:
        """Time at which it was issued, NaN without a clock."""
        return self._arrived("start")

    @cached_property
    def end(self) -> NDArray[np.float64]:
        """Time at which it arrived, NaN without a clock."""
        return self._arrived("end")

    @cached_property
    def status(self) -> NDArray[np.str_]:
        """Its status, by name."""
        names: NDArray[np.str_] = np.array(STATUSES)[self._arrived("status")]
        return names

    @property
    def given_up(self) -> dict[int, int]:
        """Sample seeds of tickets that no worker could compute and that count with weight zero, by ticket."""
        tickets, samples = self.columns["ticket"], self.columns["sample"]
        return {number: int(samples[tickets == number][0]) for number in self.header.given_up}

    @cached_property
    def in_flight(self) -> NDArray[np.int64]:
        """Number of other tickets in flight at each arrival: the size of the paper's T(t)."""
        c, steps = self.columns, len(self)
        fresh = np.diff(np.maximum.accumulate(c["ticket"]), prepend=-1) > 0  # a lost ticket is still in flight
        cancelled = c["status"] == STATUSES.index("cancelled")
        return _counted(c["seen"][fresh], steps) - _counted(c["ended"][cancelled], steps) - self.arrival

    @cached_property
    def workers(self) -> NDArray[np.int64]:
        """Number of workers at each arrival, the paper's M."""
        first, steps = self.header.workers - len(self.header.joined), len(self)
        joined, left = (
            np.array([at for at, _ in changes], dtype=np.int64) for changes in (self.header.joined, self.header.left)
        )
        return first + _counted(joined, steps) - _counted(left, steps)

    # ---- the same schedule -------------------------------------------------------------------------------------

    def head(self, steps: int) -> Trace:
        """Return the trace of the first ``steps`` arrivals; later ones are in flight, with unknown groups.

        Examples:
            >>> import latecomer as lc
            >>> len(lc.delays.Constant(workers=3).trace(steps=6, seed=0).head(4))
            4
        """
        if not 1 <= steps <= len(self):
            raise TraceError(f"Invalid steps value: {steps} (the trace has {len(self)} arrivals)")
        keep = self.columns["seen"] < steps
        columns = {name: column[keep].copy() for name, column in self.columns.items()}
        late = columns["arrival"] > steps
        late |= columns["ended"] >= steps
        for name, null in {**NULLS, "end": np.nan}.items():
            columns[name][late] = null
        joined, left = (
            tuple(change for change in changes if change[0] < steps)
            for changes in (self.header.joined, self.header.left)
        )
        workers = self.header.workers - len(self.header.joined) + len(joined)
        arrived = set(columns["ticket"][columns["arrival"] > 0].tolist())
        given_up = tuple(number for number in self.header.given_up if number in arrived)
        header = replace(self.header, workers=workers, joined=joined, left=left, given_up=given_up)
        return Trace(header, columns)

    @cached_property
    def digest(self) -> str:
        """Fingerprint of schedule and samples: equal for traces that give equal runs."""
        h = self.header
        sha = hashlib.sha256(f"{h.policy} {h.workers} {h.joined} {h.left}".encode())
        if h.given_up:
            sha.update(f"{h.given_up}".encode())
        for name in sorted(COLUMNS.keys() - {"start", "end"}):
            sha.update(self.columns[name].tobytes())
        return sha.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        same = all(np.array_equal(self.columns[n], other.columns[n], equal_nan=n in ("start", "end")) for n in COLUMNS)
        return same and replace(self.header, versions={}) == replace(other.header, versions={})

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Trace of {len(self)} arrivals, {self.header.workers} workers, {self.header.model or 'recorded'}>"

    def describe(self) -> str:
        """Return a summary for people: delays by group and by worker, shares, tickets in flight."""
        return describe(self)

    # ---- files --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace as Parquet; an existing file is replaced atomically.

        Examples:
            >>> import latecomer as lc, tempfile
            >>> trace = lc.delays.Constant(workers=3).trace(steps=6, seed=0)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     lc.Trace.load(trace.save(f"{folder}/run.parquet")) == trace
            True
        """
        from .parquet import write

        return write(self.header, self.columns, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a trace and check every rule of its policy."""
        from .parquet import checksum, read

        header, columns, stated = read(Path(path))
        try:
            trace = cls(header, columns)
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from None
        if checksum(trace.header, trace.columns) != stated:
            raise TraceError(f"{path} does not match its checksum: it is damaged, or was changed after it was written")
        return trace


def _counted(times: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
    """Return for each of the arrivals 1 to ``steps`` how many of these times, counted in arrivals, came before it."""
    return np.cumsum(np.bincount(times, minlength=steps + 1))[:steps]
