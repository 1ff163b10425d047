"""``latecomer research``: the search for a method that is both stable and fair, run and drawn again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from .cli_data import look_in
from .cli_progress import downloading, watched
from .files import atomic, writable

if TYPE_CHECKING:
    import polars as pl

    from .experiments import Store, Sweep

__all__ = ["ResearchCommand"]

Size = Literal["quick", "standard", "full"]


@dataclass(frozen=True)
class Pareto:
    """Run what is missing of the sweeps, then draw stability against fairness; kill it at any time and start it again.

    Example: latecomer research pareto --size quick
    """

    size: Size = "quick"
    """quick: minutes, one seed, no data to fetch; standard: about three hours of one core; full: days."""
    store: Path = Path("runs")
    """Folder of the runs."""
    out: Path = Path("research")
    """Folder for figures, tables and specs."""
    processes: int = 2
    """Runs at a time, one thread each."""
    as_is: bool = False
    """Run nothing: draw the runs that are there, and say how many are not."""
    data_dir: Path | None = None
    """Where the data is; $LATECOMER_DATA or the user's cache if left out."""

    def run(self, console: Console) -> None:
        """Run, score, print, draw."""
        from . import experiments, report, research

        writable(self.out)
        look_in(self.data_dir)
        store, sweeps = experiments.Store(self.store), research.plan(self.size)
        if self.as_is:
            _say_what_is_missing(sweeps, store, console)
        else:
            writable(self.store)
            _complete(sweeps, store, self.processes, console)
        size = research.size_of(self.size)
        everyone = list(research.CANDIDATES.values())
        table = research.board(size, store, everyone, [research.CANDIDATES[name] for name in research.SHORTLIST])
        if "stable_digits" not in table.columns:
            raise ValueError(f"There are no runs of size {self.size} in {self.store}: leave --as-is out")
        console.print(_scores(table))
        problems = [name for name in ("digits", "mnist", "cifar10") if f"stable_{name}" in table.columns]
        _save(self.out, f"pareto-{self.size}", report.svg(report.plane(table, problems)), table, console)
        for sweep in sweeps:
            (self.out / f"{sweep.name}.toml").write_text(sweep.to_toml(), encoding="utf-8")


@dataclass(frozen=True)
class Hard:
    """Put the few that lead into harder settings, on seeds that nothing was chosen on: one table.

    Example: latecomer research hard --size quick
    """

    size: Size = "quick"
    """quick: minutes, one seed; standard: under an hour of one core; full: hours."""
    store: Path = Path("runs")
    """Folder of the runs."""
    out: Path = Path("research")
    """Folder for the table."""
    processes: int = 2
    """Runs at a time, one thread each."""
    as_is: bool = False
    """Run nothing: show the runs that are there, and say how many are not."""

    def run(self, console: Console) -> None:
        """Run, print, write."""
        from . import experiments, research

        writable(self.out)
        size, store = research.size_of(self.size), experiments.Store(self.store)
        sweeps = [sweep for pair in research.hard_plan(size).values() for sweep in pair]
        if self.as_is:
            _say_what_is_missing(sweeps, store, console)
        else:
            writable(self.store)
            _complete(sweeps, store, self.processes, console)
        table = research.hard_table(size, store)
        if table.is_empty():
            raise ValueError(f"There are no runs of size {self.size} in {self.store}: leave --as-is out")
        drawn = Table("setting", "candidate", box=box.SIMPLE_HEAD, title="Harder settings")
        for name in ("stable", "F1", "worst seed", "slow F1", "excess, far", "say, far"):
            drawn.add_column(name, justify="right", no_wrap=True)
        last = ""
        for row in table.iter_rows(named=True):
            cells = [_cell(name, row[name]) for name in ("stable", "f1", "worst", "f1_slow", "excess", "say")]
            drawn.add_row(row["setting"] if row["setting"] != last else "", row["candidate"], *cells)
            last = row["setting"]
        console.print(drawn)
        with atomic(self.out / f"hard-{self.size}.csv") as temporary:
            table.write_csv(temporary)
        console.print(f"Written to {self.out}: hard-{self.size}.csv", soft_wrap=True)


@dataclass(frozen=True)
class Real:
    """Train the few that lead on real processes, with a class of digits that really takes longer: one table.

    Example: latecomer research real --steps 1000 --workers 3
    """

    steps: int = 1000
    """Contributions a run."""
    workers: int = 3
    """Processes; while one is late it needs no core."""
    pause: float = 0.02
    """Seconds that a slow batch takes longer."""
    rates: tuple[float, ...] = (0.03, 0.06, 0.1)
    """Learning rates."""
    seed: int = 100
    """Draws the samples, initialises the model."""
    out: Path = Path("research")
    """Folder for the table."""

    def run(self, console: Console) -> None:
        """Train, print, write."""
        from . import research

        writable(self.out)
        with console.status("") as status:
            table = research.real(
                rates=self.rates,
                steps=self.steps,
                workers=self.workers,
                pause=self.pause,
                seed=self.seed,
                told=status.update,
            )
        drawn = Table("candidate", "lr", box=box.SIMPLE_HEAD, title=f"{self.workers} real processes")
        for name in ("F1", "slow F1", "delay, slow", "delay, fast"):
            drawn.add_column(name, justify="right")
        for row in table.iter_rows(named=True):
            cells = (_cell(name, row[name]) for name in ("f1", "f1_slow", "slow", "fast"))
            drawn.add_row(row["candidate"], f"{row['lr']:g}", *cells)
        console.print(drawn)
        with atomic(self.out / "real.csv") as temporary:
            table.write_csv(temporary)
        console.print(f"Written to {self.out}: real.csv", soft_wrap=True)


@dataclass(frozen=True)
class ResearchCommand:
    """Stable and fair: candidates on one plane, and the few that lead in harder settings and on real processes.

    Example: latecomer research pareto --size quick
    """

    command: (
        Annotated[Pareto, tyro.conf.subcommand("pareto")]
        | Annotated[Hard, tyro.conf.subcommand("hard")]
        | Annotated[Real, tyro.conf.subcommand("real")]
    )

    def run(self, console: Console) -> None:
        """Hand on."""
        self.command.run(console)


def _complete(sweeps: list[Sweep], store: Store, processes: int, console: Console) -> None:
    """Run what is missing, sweep by sweep."""
    from . import data
    from .experiments import missing, run_sweep
    from .research import run_measured

    for name in sorted({sweep.problem for sweep in sweeps} & {"mnist", "cifar10"}):
        with downloading(name, console) as tell:
            data.get(name, progress=tell)
    for sweep in sweeps:
        todo, total = missing(sweep, store), len(sweep.runs())
        console.print(f"{sweep.name}: {total:,} runs, {total - len(todo):,} are in {store.folder}", soft_wrap=True)
        done = ((run.method, run) for run in run_sweep(sweep, store, processes, run_measured))
        for _ in watched(done, len(todo), console, sweep.name):
            pass


def _say_what_is_missing(sweeps: list[Sweep], store: Store, console: Console) -> None:
    from .experiments import missing

    for sweep in sweeps:
        todo, total = len(missing(sweep, store)), len(sweep.runs())
        if todo:
            console.print(f"{sweep.name}: {todo:,} of {total:,} runs are not there", soft_wrap=True)


def _scores(table: pl.DataFrame) -> Table:
    shown = {
        "stable_digits": "digits",
        "stable_mnist": "MNIST",
        "stable_cifar10": "CIFAR-10",
        "f1_digits": "F1 digits",
        "f1_mnist": "F1 MNIST",
        "excess_near": "near",
        "excess_far": "far",
        "excess_loud": "loud",
        "excess_heavy-tailed": "heavy",
        "say_far": "say, far",
        "theorem": "theorem",
    }
    columns = [name for name in shown if name in table.columns]
    drawn = Table("candidate", box=box.SIMPLE_HEAD, title="Share of learning rates that work; F1; excess losses; say")
    for name in columns:
        drawn.add_column(shown[name], justify="right", no_wrap=True)
    for row in table.sort("stable_digits", descending=True, nulls_last=True).iter_rows(named=True):
        drawn.add_row(row["candidate"], *(_cell(name, row[name]) for name in columns))
    return drawn


def _cell(name: str, value: float | None) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.1e}" if name.startswith("excess") else f"{value:.3f}"


def _save(out: Path, name: str, svg: str, table: pl.DataFrame, console: Console) -> None:
    with atomic(out / f"{name}.svg") as temporary:
        temporary.write_text(svg, encoding="utf-8")
    with atomic(out / f"{name}.csv") as temporary:
        table.write_csv(temporary)
    console.print(f"Written to {out}: {name}.svg, {name}.csv, and the specs", soft_wrap=True)
