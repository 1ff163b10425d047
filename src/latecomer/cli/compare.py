"""``latecomer compare``: methods x problems x delay models on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from .._util.files import writable
from ._options import Imports, import_all
from ._output import Json, print_text, show, widen
from ._runs import Runner, RunsCommand

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from rich.table import Table

    from ..comparison.plan import Comparison
    from ..experiments import RunSet, RunSpec, Store
    from ..experiments.pieces import FinishedRuns

__all__ = ["Compare"]

_DATASETS = ("mnist", "cifar10")
_ROUNDS = 15
"""Arrivals per worker from which the time is estimated: after fewer, hardly any slow sample has arrived."""
_PIECES = Path("docs/results/compare/runs")


@dataclass(frozen=True)
class Compare(RunsCommand):
    """Compare methods by the time to a target, on problems and delay models; can be killed and started again.

    Every method is tuned with as many configurations, then run on fresh seeds. Writes a page, a table and figures.

    Example: latecomer compare --size quick --methods momentum balanced-catch-up --problems quadratic
    """

    size: Literal["quick", "standard"] = "quick"
    """quick: minutes, ranks nothing; standard: the study of docs/compare.md, about three CPU-hours."""
    methods: tuple[str, ...] = ()
    """Only these methods; all that are known if left out."""
    problems: tuple[str, ...] = ()
    """Only these problems: quadratic, digits, mnist, text, cifar10."""
    delays: tuple[str, ...] = ()
    """Only these delay models; docs/compare.md lists them."""
    seeds: tuple[int, ...] = ()
    """Seeds to judge on, instead of those of the size."""
    imports: Imports = ()
    """A Python file that registers methods of your own; may be repeated."""
    out: Path = Path("comparison")
    """Folder for the page, the tables and the figures."""
    store: Path | None = None
    """Folder of the runs; OUT/runs if left out."""
    pieces: Path = _PIECES
    """Folder of the committed runs: in size standard read first. Without --import new runs are added now and then."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Only print how many runs there are, how many are missing, and about how long they take."""
    json: Json = False
    """Print the table as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Tune, judge, write."""
        from ..comparison import page  # noqa: F401 - raise for a missing extra before hours of runs, not after
        from ..comparison.plan import planned
        from ..experiments import Store
        from ..experiments.pieces import Pieces

        import_all(self.imports)
        plan = planned(
            self.size, methods=self.methods, problems=self.problems, delays=self.delays, seeds=self.seeds,
            imports=[str(file) for file in self.imports],
        )  # fmt: skip
        standard = self.size == "standard"
        committed = Pieces(self.pieces) if standard else None
        store = Store(self.store or self.out / "runs")
        if standard and not self.from_store and store.folder.resolve() == self.pieces.resolve():
            raise ValueError(f"--store and --pieces are the same folder, {store.folder}: pass another --store or --out")
        of_study = standard and not self.imports  # runs of somebody's own rules are not committed with it
        runner = self.runner(store, committed, export=of_study, dry_run=False)
        if self.dry_run:
            self._estimate(plan, [store, *([] if committed is None else [committed])], console)
            return
        if not self.from_store:
            self._make_runs(plan, runner, console)
        self._write(plan, committed if of_study and committed is not None else store, console)

    def _make_runs(self, plan: Comparison, runner: Runner, console: Console) -> None:
        from ..comparison.runs import run_compared

        runner.prepare(self.out, [each.problem for each in plan.problems if each.problem in _DATASETS], console)
        runner.run(_stages(plan, runner.store), run_compared, console)

    def _estimate(self, plan: Comparison, known: Sequence[FinishedRuns], console: Console) -> None:
        """Print the CPU time of the missing runs by problem, from some updates per method.

        Before the tuning is done, judging runs count as missing.
        """
        from ..experiments import estimate_seconds
        from ._progress import working

        def missing(several: Iterable[RunSpec]) -> list[RunSpec]:
            return [run for run in several if not any(run.key in runs for runs in known)]

        tuning = missing(plan.tuning().runs())
        seconds: dict[str, float] = {}
        with working("Measuring", console):
            for problem in plan.problems:
                cells = [cell for cell in plan.cells if cell.problem == problem.problem]
                todo = missing(run for cell in cells for run in plan.expected(cell))
                seconds[problem.problem] = estimate_seconds(todo, updates=_ROUNDS * plan.workers)
        each = ", ".join(f"{name} {own / 3600:.2f}" for name, own in seconds.items())
        total = sum(seconds.values())
        words = f"{len(tuning):,} tuning runs are missing; with the judging runs about {total / 3600:.2f} CPU-hours"
        show(console, f"{words} ({each})", {"missing": len(tuning), "cpu_seconds": total, "by_problem": seconds})

    def _write(self, plan: Comparison, runs: FinishedRuns, console: Console) -> None:
        from ..comparison.page import write_comparison
        from ..comparison.results import collect
        from ..experiments.pieces import Pieces
        from ._progress import working

        goes_on = self._command()
        with working("Reading the runs that are there", console):
            found = collect(plan, runs)
            if found.runs.is_empty() and self.from_store and isinstance(runs, Pieces) and not self.pieces.is_dir():
                raise ValueError(
                    f"There is no folder {self.pieces}: run this in a clone of Latecomer, or pass --pieces"
                )
            if found.runs.is_empty() and self.from_store:
                raise ValueError(f"There are no judging runs of this comparison: `{goes_on}` makes them")
            if found.runs.is_empty():  # the time was up before
                print_text(console, f"There are no judging runs to write about yet: `{goes_on}` goes on")
                return
            writable(self.out)
            page = write_comparison(found, self.out, f"{goes_on} --from-store", goes_on)
        summary = found.summary()
        data = {"rows": summary.to_dicts(), "page": page, "complete": found.complete}
        widen(console)
        show(console, _table(summary), data)
        if not found.complete:
            there, known = sum(found.there.values()), sum(found.planned.values())
            print_text(console, f"Runs are missing: {there:,} of {known:,} known so far are there")
        if self.size == "quick":
            print_text(console, "The quick size ranks nothing: docs/compare.md has the study")
        print_text(console, f"{self.out / 'comparison.csv'}, {self.out / 'comparison.md'} and {page} have been written")

    def _command(self) -> str:
        words = [f"latecomer compare --size {self.size}"]
        for name in ("methods", "problems", "delays", "seeds"):
            given = getattr(self, name)
            words += [f"--{name} {' '.join(map(str, given))}"] if given else []
        words += [f"--import {file}" for file in self.imports]
        words += [f"--store {self.store}"] if self.store is not None else []
        words += [f"--pieces {self.pieces}"] if self.pieces != _PIECES else []
        return " ".join([*words, f"--out {self.out}"])


def _stages(plan: Comparison, store: Store) -> Iterator[tuple[str, RunSet]]:
    """Yield the tuning runs of a problem, then its judging runs, which follow from them, problem by problem."""
    for problem in plan.problems:
        own = replace(plan, problems=(problem,))
        yield f"{problem.problem}, tuning on the validation split", own.tuning()
        yield f"{problem.problem}, judging on fresh seeds", own.judging(store)


def _table(summary: pl.DataFrame) -> Table:
    """Return the three fastest methods of every problem and delay model."""
    from rich import box
    from rich.table import Table

    from ..report.html import cell

    columns = ("problem", "delays", "method", "reached", "time", "updates", "wasted", "idle")
    table = Table(title="The three fastest to the target", box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="left" if name in columns[:3] else "right", no_wrap=True)
    for row in summary.group_by("problem", "delays", maintain_order=True).head(3).iter_rows(named=True):
        shares = (f"{100 * row[name]:.0f} %" for name in ("wasted", "idle"))
        reached = f"{row['reached']} of {row['runs']}"
        table.add_row(*(row[name] for name in columns[:3]), reached, cell(row["time"]), cell(row["updates"]), *shares)
    return table
