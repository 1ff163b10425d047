"""``python -m latecomer.cli.evidence``: run the plan behind docs/evidence.md, in pieces, and say how far it is."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from .. import data
from .._util.files import writable
from ..experiments import Store, missing, run_sweep
from ..experiments.pieces import Pieces
from ..paper.plan import run_planned
from ..paper.stages import STAGES, stage_sweeps
from ..paper.weights import install, read_list
from ._entry import run as run_command
from ._progress import working


@dataclass(frozen=True)
class Evidence:
    """Run what is missing of the plan; kill it at any time and start it again.

    Finished runs are read from the pieces first, and written to a new piece now and then and at the end.

    Example: python -m latecomer.cli.evidence --stages choose judge --hours 2
    """

    stages: tuple[str, ...] = STAGES
    """Which stages, in this order."""
    store: Path = Path("runs")
    """Folder of the runs."""
    pieces: Path = Path("docs/results/paper/runs")
    """Folder of the committed pieces."""
    weights: Path = Path("docs/results/paper/weights")
    """Folder of the weights to fine-tune from, for the stage cifar10."""
    processes: int = 2
    """Runs at a time, one thread each."""
    hours: float = 1000.0
    """Stop after so many hours."""
    every: float = 20.0
    """Minutes between pieces."""
    dry_run: bool = False
    """Only print how many runs the next sweep has, and how many are missing."""
    write: Path | None = None
    """Run nothing: write the verdicts, tables, figures and a page from the pieces into this folder."""

    def run(self, console: Console) -> None:
        """Import, run, export; or write what the pieces say."""
        if self.write is not None:
            self._write(self.write, console)
            return
        writable(self.store)
        writable(self.pieces)
        store = Store(self.store)
        pieces = Pieces(self.pieces)
        console.print(
            f"{pieces.fill(store):,} runs imported from {self.pieces}, {len(store.keys()):,} are in {self.store}"
        )
        if not self.dry_run:
            data.get("mnist")
            if "cifar10" in self.stages:
                data.get("cifar10")
                install(self.weights)
        begun = exported = time.monotonic()
        try:
            for stage in self.stages:
                for sweep in stage_sweeps(stage, store, read_list(self.weights)):
                    todo, total = missing(sweep, store), len(sweep.runs())
                    console.print(f"{stage}, {sweep.name}: {total:,} runs, {len(todo):,} are missing", soft_wrap=True)
                    if self.dry_run:
                        return
                    for done, _ in enumerate(run_sweep(sweep, store, self.processes, run=run_planned), start=1):
                        now = time.monotonic()
                        if done % 10 == 0 or done == len(todo):
                            hours = (now - begun) / 3600
                            console.print(f"{sweep.name}: {done:,} of {len(todo):,} after {hours:.2f} h")
                        if now - exported > 60 * self.every:
                            exported = now
                            pieces.export(store)
                        if now - begun > 3600 * self.hours:
                            console.print("The time is up: the same command goes on from here")
                            return
        finally:
            if not self.dry_run:
                path = pieces.export(store)
                console.print(f"New runs are in {path}" if path else "There are no new runs", soft_wrap=True)

    def _write(self, folder: Path, console: Console) -> None:
        from ..paper.evidence_page import write_evidence
        from ..paper.verdicts import collect

        writable(folder)
        pieces = Pieces(self.pieces)
        with working(f"Judging the claims by {len(pieces):,} runs of {self.pieces}", console):
            found = collect(pieces, read_list(self.weights))
            page = write_evidence(found, folder, f"python -m latecomer.cli.evidence --write {folder}")
        if found.missing:
            console.print(f"Not run yet, and marked so: {', '.join(found.missing)}", soft_wrap=True)
        console.print(f"{folder / 'verdicts.csv'} and {page} have been written", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run_command(Evidence, "python -m latecomer.cli.evidence", "Run the plan behind docs/evidence.md."))
