"""``python -m studies.theory``: the measurements behind docs/theory.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import tyro
from rich.console import Console
from rich.table import Table

from latecomer._util.files import atomic, writable
from latecomer.cli._entry import run
from latecomer.cli._progress import watched
from latecomer.theory import CounterExample, diagnose
from latecomer.theory.counter_example import METHODS

from . import figures, jobs
from .rates import fitted

FIGURES: dict[str, dict[str, Callable[[pl.DataFrame], str]]] = {
    "counter-example": {"counter-example": figures.counter_example},
    "rates": {"rates": figures.rates, "learning-rates": figures.learning_rates},
    "error-parts": {"error-parts": figures.error_parts},
}
"""What is drawn from the rows of each study, which are in a CSV file of this name."""


@dataclass(frozen=True)
class Counter:
    """Replay the counter-example to Theorem 1 at growing M: table, figure, rows.

    Example: python -m studies.theory counter-example --workers 11 21 51 --out theory
    """

    out: Path = Path("theory")
    """Folder for the figure and the rows."""
    workers: tuple[int, ...] = (11, 21, 51, 101)
    """Numbers of workers; T grows with their square."""
    seeds: int = 2
    """How many seeds."""
    processes: int = 2
    """Runs at a time."""

    def run(self, console: Console) -> None:
        """Run, print, draw."""
        writable(self.out)
        rows = _run(jobs.counter_example_jobs(self.workers, self.seeds), self.processes, console)

        ratio = (pl.col("measured") / pl.col("bound")).mean()
        means = rows.group_by("workers", "dependent", "method").agg(ratio.alias("ratio"))
        table = Table("M", "delays", *METHODS, "proved bound", title="Mean squared gradient / bound of Theorem 1")
        for m in sorted(self.workers):
            own = rows.filter(pl.col("workers") == m)
            repaired = own["repaired"][0] / own["bound"][0]
            for dependent in (True, False):
                here = means.filter((pl.col("workers") == m) & (pl.col("dependent") == dependent))
                found = dict(zip(here["method"], here["ratio"], strict=True))
                cells = [f"[bold]{found[k]:.3f}[/bold]" if found[k] > 1 else f"{found[k]:.3f}" for k in METHODS]
                table.add_row(str(m), "data-dependent" if dependent else "data-independent", *cells, f"{repaired:.1f}")
        console.print(table)
        broken = means.filter(pl.col("ratio") > 1)["ratio"].to_list()
        if broken:
            console.print(
                f"The published bound is exceeded in {len(broken)} rows, by a factor of up to {max(broken):.2f}."
            )
        _print_closest(rows, console)
        _write(self.out, "counter-example", rows, console)


@dataclass(frozen=True)
class Rates:
    """Measure rates in T and M and over the learning rate, with fitted powers: table, figures, rows.

    Example: python -m studies.theory rates --scale 0.25 --out theory
    """

    out: Path = Path("theory")
    """Folder for figures and rows."""
    scale: float = 1.0
    """Multiplies every number of updates."""
    seeds: int = 3
    """How many seeds."""
    processes: int = 2
    """Runs at a time."""

    def run(self, console: Console) -> None:
        """Run, fit, print, draw."""
        writable(self.out)
        rows = _run(jobs.rate_jobs(self.scale, self.seeds), self.processes, console)

        table = Table("study", "delays", "fitted power", "declared", "no slower", title="Rates, with 95 % intervals")
        for study, x, _, _, _, declared in figures.PANELS:
            for dependent in (False, True):
                own = rows.filter((pl.col("study") == study) & (pl.col("dependent") == dependent))
                if own.height:
                    found, _ = fitted(own.with_columns(pl.col("workers") - 1), x)  # M - 1 is what the bounds have
                    verdict = "yes" if found.no_slower_than(declared) else "no"
                    name = "data-dependent" if dependent else "data-independent"
                    table.add_row(study, name, str(found), f"{declared:g}", verdict)
        console.print(table)
        _print_closest(rows, console)
        _write(self.out, "rates", rows, console)


@dataclass(frozen=True)
class Parts:
    """Measure the parts of the momentum's error along a run: figure and rows.

    Example: python -m studies.theory diagnose --workers 51 --out theory
    """

    out: Path = Path("theory")
    """Folder for the figure and the rows."""
    workers: int = 51
    """Number of workers of the counter-example."""

    def run(self, console: Console) -> None:
        """Run, print, draw."""
        writable(self.out)
        example = CounterExample(self.workers)
        with console.status("running ..."):
            promised = example.promised
            rows = diagnose(example.problem, example.trace(), lr=promised.lr, beta=promised.beta)
        means = {name: float(rows[name].mean()) for name in rows.columns}  # type: ignore[arg-type]
        for name in ("gradient", "error", "virtual", "expected", "delay_bias", "delay_limit", "selection"):
            console.print(f"mean {name:<12} {means[name]:.5f}", highlight=False)
        _write(self.out, "error-parts", figures.block_means(rows), console)


@dataclass(frozen=True)
class Draw:
    """Draw all figures again from the rows in a folder, without running anything.

    Example: python -m studies.theory draw --out docs/theory
    """

    out: Path = Path("theory")
    """Folder with the rows, as the other commands wrote them; the figures are written beside them."""

    def run(self, console: Console) -> None:
        """Read and draw."""
        found = [name for name in FIGURES if (self.out / f"{name}.csv").is_file()]
        if not found:
            names = ", ".join(f"{name}.csv" for name in FIGURES)
            raise ValueError(f"There are no rows in {self.out} (expected {names}): run a study first")
        for name in found:
            _draw(self.out, name, console)


@dataclass(frozen=True)
class Time:
    """Choose how many of the fastest workers to use, and compare the predicted time with the simulated one.

    Example: python -m studies.theory time
    """

    processes: int = 2
    """Runs at a time."""

    def run(self, console: Console) -> None:
        """Run and print."""
        rows = _run(jobs.time_jobs(), self.processes, console).sort("workers")
        title = f"Time to a mean squared gradient of {jobs.EPSILON:g}, durations {list(jobs.DURATIONS)}"
        table = Table("fastest m", "updates", "predicted s", "simulated s", "reached after s", "", title=title)
        for row in rows.iter_rows(named=True):
            times = [f"{row[k]:,.0f}" for k in ("predicted", "simulated", "reached")]
            table.add_row(str(row["workers"]), f"{row['steps']:,}", *times, "best by Theorem 1" if row["best"] else "")
        console.print(table)


@dataclass(frozen=True)
class Search:
    """Search for schedules that bring a method close to its proved bound.

    Example: python -m studies.theory adversary --tries 100
    """

    tries: int = 100
    """Schedules to try in each search."""
    seeds: int = 2
    """Searches for each method and size."""
    processes: int = 2
    """Searches at a time."""

    def run(self, console: Console) -> None:
        """Search and print."""
        rows = _run(jobs.adversary_jobs(self.tries, self.seeds), self.processes, console)
        table = Table("method", "M", "T", "largest measured / proved bound", title="The worst schedules found")
        for row in rows.sort("method", "workers", "seed").iter_rows(named=True):
            table.add_row(row["method"], str(row["workers"]), f"{row['steps']:,}", f"{row['ratio']:.3f}")
        console.print(table)
        worst = rows.sort("ratio").row(-1, named=True)
        console.print(f"Worst: {worst['method']}, {worst['schedule']}, start {worst['start']:.3g}", soft_wrap=True)


Command = (
    Annotated[Counter, tyro.conf.subcommand("counter-example")]
    | Annotated[Rates, tyro.conf.subcommand("rates")]
    | Annotated[Parts, tyro.conf.subcommand("diagnose")]
    | Annotated[Time, tyro.conf.subcommand("time")]
    | Annotated[Search, tyro.conf.subcommand("adversary")]
    | Annotated[Draw, tyro.conf.subcommand("draw")]
)


def _run(todo: Sequence[Any], processes: int, console: Console) -> pl.DataFrame:
    """Run the jobs of a study with a bar, and return their rows in a fixed order."""
    named = ((row["study"], row) for row in jobs.run(todo, processes))
    table = pl.DataFrame(list(watched(named, len(todo), console, "theory")), infer_schema_length=None)
    keys = [k for k in ("study", "workers", "steps", "method", "dependent", "position", "seed") if k in table.columns]
    return table.sort(keys)


def _print_closest(rows: pl.DataFrame, console: Console) -> None:
    """Compare all measurements with the proved bound."""
    ratios = (rows["measured"] / rows["repaired"]).to_list()
    over = sum(ratio > 1 for ratio in ratios)
    word = "no row exceeds it" if not over else f"{over} rows EXCEED it"
    console.print(f"Proved bound: {word}, the largest measured value is {max(ratios):.3f} of it.")


def _write(out: Path, name: str, rows: pl.DataFrame, console: Console) -> None:
    """Write the rows of a study, then draw its figures from the file."""
    with atomic(out / f"{name}.csv") as temporary:
        rows.write_csv(temporary)
    console.print(f"Written to {out}: {name}.csv", soft_wrap=True)
    _draw(out, name, console)


def _draw(out: Path, name: str, console: Console) -> None:
    """Draw the figures of a study from its rows."""
    rows = pl.read_csv(out / f"{name}.csv", infer_schema_length=None)
    for figure, draw in FIGURES[name].items():
        with atomic(out / f"{figure}.svg") as temporary:
            temporary.write_text(draw(rows), encoding="utf-8")
    console.print(f"Drawn in {out}: {', '.join(f'{figure}.svg' for figure in FIGURES[name])}", soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a study and return the exit code."""
    return run(Command, "python -m studies.theory", "The measurements behind docs/theory.md.", argv)


if __name__ == "__main__":
    sys.exit(main())
