"""``python -m studies.stable_and_fair``: the search for a method that is both stable and fair, run and drawn again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from latecomer import data
from latecomer._util.checks import whole_number
from latecomer._util.files import atomic, writable
from latecomer.cli._entry import run
from latecomer.cli._progress import downloading, watched
from latecomer.cli.data import look_in
from latecomer.experiments import Store, Sweep, missing, run_sweep
from latecomer.report.markdown import write_page
from latecomer.report.style import svg

from . import (
    CANDIDATES,
    METRICS,
    adamw_curves,
    adamw_plan,
    adamw_table,
    board,
    hard_plan,
    hard_table,
    over_rates,
    plan,
    real,
    run_measured,
    size_of,
)
from .figures import NAMES, adamw_figure, plane, rate_curves
from .tables import adamw_parts, hard_parts, number, pareto_parts, real_parts

Size = Literal["quick", "standard", "full"]


@dataclass(frozen=True)
class Pareto:
    """Run the missing runs of the sweeps, then draw stability against fairness; can be killed and started again.

    Writes two figures (the plane, and how candidates end by learning rate), their numbers as CSV, the tables as
    Markdown, and the specs as TOML.

    Example: python -m studies.stable_and_fair pareto --size quick
    """

    size: Size = "quick"
    """quick: minutes, one seed, no data to fetch; standard: six hours of one core, data is fetched; full: days."""
    store: Path = Path("runs")
    """Folder of the runs."""
    out: Path = Path("research")
    """Folder for figures, tables and specs."""
    processes: int = 2
    """Runs at a time, one thread each."""
    as_is: bool = False
    """Run nothing: draw the runs in the store, and print how many are missing."""
    data_dir: Path | None = None
    """Where the data is; $LATECOMER_DATA or the user's cache if left out."""

    def run(self, console: Console) -> None:
        """Run, score, print, draw."""
        writable(self.out)
        look_in(self.data_dir)
        store, sweeps = Store(self.store), plan(self.size)
        _fill(store, sweeps, self, console)
        size, who = size_of(self.size), list(CANDIDATES.values())
        table = board(size, store, who)
        problems = _problems(table)
        if not problems:
            raise ValueError(f"There are no runs of size {self.size} in {self.store}: leave --as-is out")
        if not console.is_terminal:
            console.width = 140
        console.print(_scores(table, problems))
        if any((table[f"stable_{name}"] != table[f"stable_kind_{name}"]).any() for name in problems):
            console.print(_scores(table, problems, kind="kind_"))
        _csv(self.out, f"pareto-{self.size}", table)
        _csv(self.out, f"curves-{self.size}", over_rates(size, store, who))
        _draw(self.out, self.size)
        name, command = f"pareto-{self.size}", f"python -m studies.stable_and_fair pareto --size {self.size} --as-is"
        write_page(self.out, name, f"Stable and fair, size {self.size}", pareto_parts(table), command)
        for sweep in sweeps:
            with atomic(self.out / f"{sweep.name}.toml") as temporary:
                temporary.write_text(sweep.to_toml(), encoding="utf-8")
        files = f"{name}.svg, .csv and .md, curves-{self.size}.svg and .csv, and the specs"
        console.print(f"Written to {self.out}: {files}", soft_wrap=True)


@dataclass(frozen=True)
class Hard:
    """Put the candidates into harder settings, on other seeds: a table as CSV and as Markdown.

    Example: python -m studies.stable_and_fair hard --size quick
    """

    size: Size = "quick"
    """quick: minutes, one seed; standard: an hour and a half of one core; full: hours."""
    store: Path = Path("runs")
    """Folder of the runs."""
    out: Path = Path("research")
    """Folder for the table."""
    processes: int = 2
    """Runs at a time, one thread each."""
    as_is: bool = False
    """Run nothing: show the runs in the store, and print how many are missing."""

    def run(self, console: Console) -> None:
        """Run, print, write."""
        writable(self.out)
        size, store = size_of(self.size), Store(self.store)
        sweeps = [sweep for pair in hard_plan(size).values() for sweep in pair if sweep is not None]
        _fill(store, sweeps, self, console)
        table = hard_table(size, store)
        if table.is_empty():
            raise ValueError(f"There are no runs of size {self.size} in {self.store}: leave --as-is out")
        if not console.is_terminal:
            console.width = 140
        drawn = Table("setting", "candidate", box=box.SIMPLE_HEAD, title="Harder settings")
        for name in ("stable", "F1 or loss", "slow", "worst seed", "excess, far", "influence, far"):
            drawn.add_column(name, justify="right", no_wrap=True)
        last = ""
        for row in table.iter_rows(named=True):
            cells = [number(row[name]) for name in ("stable", "best", "slow", "worst", "excess", "influence")]
            drawn.add_row(row["setting"] if row["setting"] != last else "", row["candidate"], *cells)
            last = row["setting"]
        console.print(drawn)
        name, command = f"hard-{self.size}", f"python -m studies.stable_and_fair hard --size {self.size} --as-is"
        _csv(self.out, name, table)
        write_page(self.out, name, f"Harder settings, size {self.size}", hard_parts(table), command)
        console.print(f"Written to {self.out}: {name}.csv and .md", soft_wrap=True)


@dataclass(frozen=True)
class Adamw:
    """Compare AdamW rules over learning rates, on seeds that nothing was chosen on: tables and a figure.

    Example: python -m studies.stable_and_fair adamw --size quick
    """

    size: Size = "quick"
    """quick: digits alone, one seed; standard: half an hour of one core, MNIST is fetched; full: hours."""
    store: Path = Path("runs")
    """Folder of the runs."""
    out: Path = Path("research")
    """Folder for tables and figure."""
    processes: int = 2
    """Runs at a time, one thread each."""
    as_is: bool = False
    """Run nothing: show the runs in the store, and print how many are missing."""
    data_dir: Path | None = None
    """Where the data is; $LATECOMER_DATA or the user's cache if left out."""

    def run(self, console: Console) -> None:
        """Run, print, write."""
        writable(self.out)
        look_in(self.data_dir)
        size, store = size_of(self.size), Store(self.store)
        sweeps = list(adamw_plan(size).values())
        _fill(store, sweeps, self, console)
        table, curves = adamw_table(size, store), adamw_curves(size, store)
        if table.is_empty():
            raise ValueError(f"There are no runs of size {self.size} in {self.store}: leave --as-is out")
        if not console.is_terminal:
            console.width = 180
        parts = adamw_parts(table)
        for part in parts:
            drawn = Table(*part.heads, box=box.SIMPLE_HEAD, title=part.title)
            for cells in part.rows:
                drawn.add_row(*cells)
            console.print(drawn)
        name, command = f"adamw-{self.size}", f"python -m studies.stable_and_fair adamw --size {self.size}"
        _csv(self.out, name, table)
        _csv(self.out, f"adamw-curves-{self.size}", curves)
        write_page(self.out, name, f"AdamW under delays, size {self.size}", parts, command)
        _draw_adamw(self.out, self.size)
        files = f"{name}.svg, .csv and .md, and adamw-curves-{self.size}.csv"
        console.print(f"Written to {self.out}: {files}", soft_wrap=True)


@dataclass(frozen=True)
class Draw:
    """Draw the figures again from their numbers in a folder, without the store of runs.

    Example: python -m studies.stable_and_fair draw --size standard --out docs/research
    """

    size: Size = "standard"
    """Size whose numbers are drawn."""
    out: Path = Path("research")
    """Folder with the numbers as CSV, as `pareto` and `adamw` wrote them; the figures are written beside them."""

    def run(self, console: Console) -> None:
        """Read and draw."""
        if not (self.out / f"pareto-{self.size}.csv").is_file():
            raise ValueError(f"There is no pareto-{self.size}.csv in {self.out}: run pareto --size {self.size} first")
        _draw(self.out, self.size)
        files = [f"pareto-{self.size}.svg", f"curves-{self.size}.svg"]
        if (self.out / f"adamw-curves-{self.size}.csv").is_file():
            _draw_adamw(self.out, self.size)
            files.append(f"adamw-{self.size}.svg")
        console.print(f"Drawn in {self.out}: {', '.join(files)}", soft_wrap=True)


@dataclass(frozen=True)
class Real:
    """Train the candidates on real processes, with a class of digits that really takes longer: one table.

    Example: python -m studies.stable_and_fair real --steps 1000 --workers 3
    """

    steps: int = 1000
    """Contributions per run."""
    workers: int = 3
    """Number of processes; a slow batch sleeps and needs no core."""
    pause: float = 0.02
    """Seconds that a slow batch takes longer."""
    rates: tuple[float, ...] = (0.003, 0.03, 0.06, 0.1)
    """Learning rates; the first is for AdamW."""
    seed: int = 100
    """Draws the samples, initialises the model."""
    out: Path = Path("research")
    """Folder for the table."""

    def run(self, console: Console) -> None:
        """Train, print, write."""
        writable(self.out)
        given: dict[str, Any] = {"steps": self.steps, "workers": self.workers, "pause": self.pause, "seed": self.seed}
        rows: list[dict[str, Any]] = []
        made = ((f"{row['candidate']}, lr {row['lr']:g}", row) for row in real(rates=self.rates, **given))
        for row in watched(made, len(CANDIDATES) * len(self.rates), console, "real"):
            rows.append(row)
            _csv(self.out, "real", pl.DataFrame(rows, infer_schema_length=None))  # what is done is not lost
        table = pl.DataFrame(rows, infer_schema_length=None)
        drawn = Table("candidate", "lr", box=box.SIMPLE_HEAD, title=f"{self.workers} real processes")
        for name in ("F1", "slow F1", "delay, slow", "delay, fast"):
            drawn.add_column(name, justify="right")
        for row in rows:
            cells = (number(row[name]) for name in ("f1", "f1_slow", "slow", "fast"))
            drawn.add_row(row["candidate"], f"{row['lr']:g}", *cells)
        console.print(drawn)
        rates = " ".join(f"{rate:g}" for rate in self.rates)
        how = f"--steps {self.steps} --workers {self.workers} --pause {self.pause:g} --rates {rates} --seed {self.seed}"
        title = f"{self.workers} real processes"
        write_page(self.out, "real", title, real_parts(table), f"python -m studies.stable_and_fair real {how}")
        console.print(f"Written to {self.out}: real.csv and real.md", soft_wrap=True)


Command = (
    Annotated[Pareto, tyro.conf.subcommand("pareto")]
    | Annotated[Hard, tyro.conf.subcommand("hard")]
    | Annotated[Adamw, tyro.conf.subcommand("adamw")]
    | Annotated[Real, tyro.conf.subcommand("real")]
    | Annotated[Draw, tyro.conf.subcommand("draw")]
)


def _fill(store: Store, sweeps: list[Sweep], command: Pareto | Hard | Adamw, console: Console) -> None:
    """Run what is missing in the store, or only say how much that is."""
    if command.as_is:
        _print_missing(sweeps, store, console)
    else:
        writable(command.store)
        _complete(sweeps, store, command.processes, console)


def _complete(sweeps: list[Sweep], store: Store, processes: int, console: Console) -> None:
    """Run what is missing, sweep by sweep."""
    whole_number("processes", processes, least=1)
    for name in sorted({sweep.problem for sweep in sweeps} & {"mnist", "cifar10"}):
        with downloading(name, console) as on_progress:
            data.get(name, progress=on_progress)
    for sweep in sweeps:
        todo, total = missing(sweep, store), len(sweep.runs())
        console.print(f"{sweep.name}: {total:,} runs, {total - len(todo):,} are in {store.folder}", soft_wrap=True)
        done = ((run.method, run) for run in run_sweep(sweep, store, processes, run=run_measured))
        for _ in watched(done, len(todo), console, sweep.name):
            pass


def _print_missing(sweeps: list[Sweep], store: Store, console: Console) -> None:
    for sweep in sweeps:
        todo, total = len(missing(sweep, store)), len(sweep.runs())
        if todo:
            console.print(f"{sweep.name}: {todo:,} of {total:,} runs are not there", soft_wrap=True)


def _scores(table: pl.DataFrame, problems: list[str], kind: str = "") -> Table:
    """Draw shares of learning rates with the number of runs, and three measures of fairness."""
    drawn = Table(
        box=box.SIMPLE_HEAD,
        title=f"Share of learning rates near {'the best of its kind' if kind else 'the best'} (runs), and fairness",
    )
    drawn.add_column("candidate", min_width=20)
    for head in (*(NAMES[name] for name in problems), "excess, far", "influence, far", "theorem"):
        drawn.add_column(head, justify="right", no_wrap=True)
    for row in table.sort(f"stable_{problems[0]}", descending=True, nulls_last=True).iter_rows(named=True):
        shares = (_of_runs(row[f"stable_{kind}{name}"], row[f"runs_{name}"]) for name in problems)
        fair = (number(row[name]) for name in ("excess_far", "influence_far", "theorem"))
        drawn.add_row(row["candidate"], *shares, *fair)
    return drawn


def _of_runs(share: float | None, runs: int | None) -> str:
    return "" if share is None else f"{share:.2f} ({runs})"


def _problems(table: pl.DataFrame) -> list[str]:
    """Return the problems that have runs over learning rates."""
    return [name for name in METRICS if f"stable_{name}" in table.columns]


def _draw(out: Path, size: str) -> None:
    """Draw both figures from their CSV files."""
    table, curves = (pl.read_csv(out / f"{name}-{size}.csv", infer_schema_length=None) for name in ("pareto", "curves"))
    figures = {f"pareto-{size}": plane(table, _problems(table)), f"curves-{size}": rate_curves(curves)}
    for name, figure in figures.items():
        with atomic(out / f"{name}.svg") as temporary:
            temporary.write_text(svg(figure), encoding="utf-8")


def _draw_adamw(out: Path, size: str) -> None:
    """Draw the figure of the AdamW rules from its CSV file."""
    curves = pl.read_csv(out / f"adamw-curves-{size}.csv", infer_schema_length=None)
    with atomic(out / f"adamw-{size}.svg") as temporary:
        temporary.write_text(svg(adamw_figure(curves)), encoding="utf-8")


def _csv(out: Path, name: str, table: pl.DataFrame) -> None:
    with atomic(out / f"{name}.csv") as temporary:
        table.write_csv(temporary)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a study and return the exit code."""
    about = "Stability and fairness of the candidates: on one plane, in harder settings and on real processes."
    return run(Command, "python -m studies.stable_and_fair", about, argv)


if __name__ == "__main__":
    sys.exit(main())
