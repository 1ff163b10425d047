"""Runs of a plan, sweep by sweep: what is missing is run, and finished runs are added to the committed ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from .._util.checks import POSITIVE, whole_number
from .._util.files import writable
from ._output import print_text
from .data import look_in

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments import FinishedRun, RunSet, Store, Sweep
    from ..experiments.pieces import Pieces

__all__ = ["Runner", "RunsCommand"]


@dataclass
class Runner:
    """Runs what is missing until all is there, or the time is up.

    Args:
        store: Where the runs are.
        pieces: The committed runs, which are imported first; None if there are none.
        export: Whether new runs are added to the committed ones now and then.
        processes: Runs at a time.
        hours: Stop after so many hours.
        every: Minutes between additions to the committed runs.
        dry_run: Only print how many runs the next sweep has.
    """

    store: Store
    pieces: Pieces | None
    export: bool
    processes: int
    hours: float
    every: float
    dry_run: bool

    def __post_init__(self) -> None:
        whole_number("--processes", self.processes, least=1)
        POSITIVE.check("--hours", self.hours)
        POSITIVE.check("--every", self.every)
        self._begun = self._exported = time.monotonic()

    def prepare(self, out: Path, datasets: Iterable[str], console: Console) -> None:
        """Fail now and not after hours if a folder cannot be written; import the committed runs, download data.

        Args:
            out: Where the results will go.
            datasets: Datasets that runs need.
            console: Where to print.
        """
        from .. import data
        from ._progress import downloading

        exported = [self.pieces.folder] if self.pieces is not None and self.export else []
        for folder in (out, self.store.folder, *exported):
            writable(folder)
        self.fill(console)
        for dataset in datasets:
            with downloading(dataset, console) as on_progress:
                data.get(dataset, progress=on_progress)

    def fill(self, console: Console) -> None:
        """Import the committed runs into the store."""
        if self.pieces is not None:
            new, folder = self.pieces.fill(self.store), self.store.folder
            words = f"{new:,} runs imported from {self.pieces.folder}, {len(self.store.keys()):,} are in {folder}"
            print_text(console, words)

    def run(
        self,
        sweeps: Iterator[tuple[str, Sweep | RunSet]],
        run: Callable[[dict[str, Any], str], FinishedRun],
        console: Console,
    ) -> None:
        """Run the missing runs of sweeps, each of which may follow from the one before.

        Args:
            sweeps: Sweeps with what to call them.
            run: Runs a spec and stores the result.
            console: Where to print.
        """
        try:
            for title, sweep in sweeps:
                if not self._all_of(title, sweep, run, console):
                    return
        finally:
            if self.pieces is not None and self.export and not self.dry_run:
                path = self.pieces.export(self.store)
                print_text(console, f"New runs are in {path}" if path else "There are no new runs")

    def _all_of(self, title: str, sweep: Sweep | RunSet, run: Any, console: Console) -> bool:
        """Run one sweep; return whether to go on."""
        from ..experiments import missing, run_sweep
        from ._progress import watched

        todo, total = missing(sweep, self.store), len(sweep.runs())
        print_text(console, f"{title}: {total:,} runs, {len(todo):,} are missing")
        if self.dry_run and todo:
            return False
        done = ((each.method, each) for each in run_sweep(sweep, self.store, self.processes, run=run))
        for _ in watched(done, len(todo), console, sweep.name):
            now = time.monotonic()
            if self.pieces is not None and self.export and now - self._exported > 60 * self.every:
                self._exported = now
                self.pieces.export(self.store)
            if now - self._begun > 3600 * self.hours:
                print_text(console, "The time is up: the same command goes on from here")
                return False
        return True


@dataclass(frozen=True, kw_only=True)
class RunsCommand:
    """What commands have in common that make many runs, and go on where they were killed."""

    from_store: tyro.conf.FlagCreatePairsOff[bool] = False
    """Run nothing: write the results from runs that are there; those of size standard are the committed ones."""
    processes: int = 2
    """Runs at a time, one thread each."""
    hours: float = 1000.0
    """Stop after so many hours."""
    every: float = 20.0
    """Minutes between additions to the committed runs."""
    data_dir: Path | None = None
    """Where the data is; $LATECOMER_DATA or the user's cache if left out."""

    def runner(self, store: Store, pieces: Pieces | None, *, export: bool, dry_run: bool) -> Runner:
        """Return what makes the runs; data is looked for where the user says."""
        look_in(self.data_dir)
        return Runner(store, pieces, export, self.processes, self.hours, self.every, dry_run)
