"""``python -m studies.rate_free``: the study of the method without a learning rate, run and written again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import tyro
from rich.console import Console

from latecomer import data
from latecomer._util.files import atomic, writable
from latecomer.cli._entry import run
from latecomer.cli._output import print_text
from latecomer.cli._progress import downloading
from latecomer.cli._runs import Runner
from latecomer.experiments import Store
from latecomer.experiments.pieces import Pieces
from latecomer.report.markdown import write_page

from .counter_example import measured_ratios
from .judging import logistic_minimum, verdicts
from .limits import LIMITS, limit_table
from .measured import run_measured
from .plan import plan
from .tables import parts

PROG, TITLE = "python -m studies.rate_free", "Training without a learning rate: verdicts"
MINIMUM, COUNTER_EXAMPLE = "logistic-minimum.json", "counter-example.json"


@dataclass(frozen=True)
class Study:
    """Run what is missing of the plan in docs/rate-free.md, then write verdicts; can be killed and started again.

    There is no --seed: the plan fixes all seeds.

    Example: python -m studies.rate_free --from-store --out docs/results/rate-free
    """

    problems: tuple[str, ...] = ()
    """Only these problems; all in their order, and the harder settings, if left out."""
    out: Path = Path("rate-free")
    """Folder for verdicts.csv, methods.csv, rates.csv, limits.csv and index.md."""
    from_store: tyro.conf.FlagCreatePairsOff[bool] = False
    """Run nothing: write them from the committed runs."""
    store: Path = Path("runs-rate-free")
    """Folder of the runs."""
    pieces: Path = Path("docs/results/rate-free/runs")
    """Folder of the committed runs: read first, and new runs are added now and then."""
    processes: int = 2
    """Runs at a time, one thread each."""
    hours: float = 1000.0
    """Stop after so many hours."""
    every: float = 10.0
    """Minutes between additions to the committed runs."""

    def run(self, console: Console) -> None:
        """Run and write."""
        sweeps, committed = plan(self.problems), Pieces(self.pieces)
        harder = {} if self.problems else {limit.name: limit.sweep() for limit in LIMITS}
        if not self.from_store:
            for folder in (self.store, self.pieces):
                writable(folder)
            for name in sorted({"mnist" if name == "logistic" else name for name in sweeps} & {"mnist", "cifar10"}):
                with downloading(name, console) as on_progress:
                    data.get(name, progress=on_progress)
            runner = Runner(Store(self.store), committed, True, self.processes, self.hours, self.every, False)
            runner.fill(console)
            runner.run(iter({**sweeps, **harder}.items()), run_measured, console)
        self._write(committed, console)

    def _write(self, committed: Pieces, console: Console) -> None:
        writable(self.out)
        found, best, every = verdicts(committed, {"logistic": self._minimum(console)})
        if found.is_empty():
            raise ValueError(f"No problem has all of its runs: `{PROG}` makes them")
        limits = limit_table(committed)
        tables: dict[str, pl.DataFrame] = {"verdicts": found, "methods": best, "rates": every, "limits": limits}
        for name, table in tables.items():
            with atomic(self.out / f"{name}.csv") as temporary:
                table.write_csv(temporary)
        ratios = self._kept(COUNTER_EXAMPLE, "Measuring the counter-example to Theorem 1", measured_ratios, console)
        made = parts(found, best, limits, ratios, committed)
        write_page(self.out, "index", TITLE, made, f"{PROG} --from-store --out {self.out}")
        print_text(console, f"Written to {self.out}: {', '.join(f'{name}.csv' for name in tables)} and index.md")

    def _minimum(self, console: Console) -> float:
        words = "Computing the minimum of the logistic problem by L-BFGS"
        return float(self._kept(MINIMUM, words, lambda: {"minimum": logistic_minimum()}, console)["minimum"])

    def _kept(self, name: str, words: str, compute: Callable[[], dict[str, Any]], console: Console) -> dict[str, Any]:
        """Return what takes minutes to compute, and is kept beside the results."""
        file = self.out / name
        if not file.exists():
            print_text(console, f"{words}, a few minutes")
            with atomic(file) as temporary:
                temporary.write_text(json.dumps(compute()) + "\n")
        return dict(json.loads(file.read_text()))


if __name__ == "__main__":
    sys.exit(run(Study, PROG, "The method without a learning rate, against every method at its best of seven."))
