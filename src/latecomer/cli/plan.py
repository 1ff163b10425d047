"""``latecomer plan``: what asynchrony would bring on a task of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from .._util.defaults import DEFAULT_METHOD
from .._util.files import atomic, writable_file
from ._options import Imports, import_all
from ._output import Json, print_text, show, widen

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..planning import Plan

__all__ = ["HEADS", "PlanCommand", "cells"]

_FEW = 5  # with fewer jobs, the mean of a group says little
_IN_RECORD = ("are in the record", "record a longer run")
_SYNCHRONOUS = ("synchronous", "synchronous, buckets")
HEADS = ("workers", "scheme", "updates/s", "samples/s", "x sync", "wasted", "idle", "delay", "time")
"""Columns of the table that is printed."""


@dataclass(frozen=True)
class PlanCommand:
    """Time some jobs of your task, and predict synchronous and asynchronous training for numbers of workers.

    Example: latecomer plan path/to/script.py:task --workers 4 8 16 64 --network 10
    """

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """A Python file and the name of a Task, a problem, or a function that returns one: script.py:task."""
    workers: tuple[int, ...] = (4, 8, 16)
    """Numbers of workers."""
    record: Path | None = None
    """A recorded run of this task: its durations are used instead of timed ones. They contain its transfers."""
    network: float | None = None
    """Bandwidth of each machine in Gbit/s; left out, server and workers share memory."""
    latency: float = 0.0
    """Latency of a message in microseconds; it matters if jobs take milliseconds."""
    jobs: int = 40
    """Number of jobs to time."""
    samples: int = 1_000_000
    """Number of samples that the last column is about."""
    method: str = DEFAULT_METHOD
    """The method, for the server's work per contribution."""
    policies: tuple[str, ...] | None = None
    """Policies to predict besides async, by name; all but the synchronous one if left out."""
    all_policies: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the rows of every policy, not only of async and synchronous training; --csv and --json have them all."""
    imports: Imports = ()
    """A Python file that registers methods of your own; may be repeated."""
    seed: int = 0
    """Draws the samples and the simulations."""
    csv: Path | None = None
    """Also write the table to this file."""
    json: Json = False
    """Print the table as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Time, simulate, print."""
        from ..planning import plan
        from ._progress import counting
        from .train import load_task

        import_all(self.imports)
        if self.csv is not None:
            writable_file(self.csv)
        task = load_task(self.task)
        named = None if self.policies is None else {name: name for name in self.policies}
        with counting("jobs timed and schemes predicted", console) as on_progress:
            found = plan(
                task, self.workers, record=self.record, network=self.network, latency=self.latency, jobs=self.jobs,
                samples=self.samples, method=self.method, policies=named, seed=self.seed, on_progress=on_progress,
            )  # fmt: skip
        times = found.times
        groups: list[dict[str, Any]] = [
            {"group": name, "share": share, "jobs": len(own), "seconds": sum(own) / len(own)}
            for name, share, own in zip(times.names, times.shares, times.seconds, strict=True)
        ]
        for row in groups:
            jobs, share = ("1 job" if row["jobs"] == 1 else f"{row['jobs']} jobs"), 100 * row["share"]
            print_text(console, f"{row['group']}: {jobs}, {_seconds(row['seconds'])} each, {share:.3g} % of all")
            if row["jobs"] < _FEW:
                where, remedy = ("were timed", "raise --jobs") if self.record is None else _IN_RECORD
                print_text(console, f"Few jobs of {row['group']} {where} ({row['jobs']}): {remedy}")
        link = "shared memory" if self.network is None else f"{_seconds(found.network.seconds(times.size))} per copy"
        link += f", {_seconds(found.network.latency_seconds)} per message" if self.latency else ""
        words = f"{times.size / 1e6:,.3g} MB of parameters, {link}; server {_seconds(times.server)} per contribution"
        print_text(console, words)
        data = {
            "rows": found.table.to_dicts(),
            "advice": list(found.advice),
            "caution": found.caution,
            "groups": groups,
        }
        widen(console)
        show(
            console,
            _table(found, self.all_policies or self.policies is not None),
            data | {"server": times.server, "size": times.size},
        )
        for sentence in filter(None, (*found.advice, found.caution)):
            print_text(console, sentence)
        if self.csv is not None:
            with atomic(self.csv) as temporary:
                found.table.write_csv(temporary)
            print_text(console, f"Written to {self.csv}")


def _table(found: Plan, every: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=f"Predictions; time for {found.samples:,} samples")
    for name in HEADS:
        table.add_column(name, justify="left" if name == "scheme" else "right", no_wrap=True)
    for row in cells(found, every):
        table.add_row(*row)
    return table


def cells(found: Plan, every: bool) -> list[tuple[str, ...]]:
    """Return the rows of the printed table, of every scheme or of async and synchronous training only."""
    from polars import col

    rows: list[tuple[str, ...]] = []
    shown = found.table if every else found.table.filter(col("scheme").is_in(["async", *_SYNCHRONOUS]))
    for row in shown.iter_rows(named=True):
        faster = f"{row['faster']:.2f}"
        faster += "" if row["low"] is None else f" ({row['low']:.2f}-{row['high']:.2f})"
        rows.append((
            f"{row['workers']}", row["scheme"], _rate(row["updates"]), _rate(row["samples"]), faster,
            f"{row['wasted']:.0%}", f"{row['idle']:.0%}", f"{row['delay']:.1f}", _seconds(row["seconds"]),
        ))  # fmt: skip
    return rows


def _rate(rate: float) -> str:
    """Return a rate with three digits, or as a whole number."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _seconds(seconds: float) -> str:
    """Return a duration as people read it."""
    for limit, unit, factor in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3), (120.0, "s", 1.0), (7200.0, "min", 1 / 60)):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"
