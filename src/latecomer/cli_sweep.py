"""``latecomer run``, ``sweep`` and ``runs``: make runs, many runs, and look at those that are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .cli_words import pairs
from .files import writable

__all__ = ["One", "Runs", "SweepCommand"]


@dataclass(frozen=True)
class One:
    """Simulate one run and keep it; a run that is in the store already is shown, not made again.

    Example: latecomer run --problem mnist --method ordered-momentum --set lr=0.02 beta=0.05 --steps 500

    Examples:
        >>> One().method
        'ordered-momentum'
    """

    problem: str = "digits"
    """Name of the problem."""
    method: str = "ordered-momentum"
    """Name of the method."""
    set: tuple[str, ...] = ("lr=0.02",)
    """Hyper-parameters of the method, as name=value."""
    problem_set: tuple[str, ...] = ()
    """Arguments of the problem, as name=value."""
    workers: int = 7
    """Number of workers."""
    slow_share: float = 0.1
    """Share of slow samples in the paper's delay model."""
    steps: int = 1000
    """Arrivals."""
    seed: int = 0
    """Initialises the model and draws the schedule."""
    evaluate_every: int = 100
    """Arrivals between evaluations."""
    store: Path = Path("runs")
    """Folder of the store."""

    def run(self, console: Console) -> None:
        """Run, keep, print."""
        from .experiments import RunSpec, Store
        from .experiments.sweep import run_one

        spec = RunSpec(
            self.problem,
            self.method,
            "data-dependent",
            self.steps,
            self.seed,
            self.evaluate_every,
            problem_options=pairs(self.problem_set),
            options=pairs(self.set),
            delay_options={"workers": self.workers, "slow_share": self.slow_share},
        )
        spec.check()
        store = Store(self.store)
        writable(self.store)
        if spec.key in store:
            console.print("This run is in the store already.")
        else:
            with console.status(f"{self.method} on {self.problem}, {self.steps:,} arrivals ..."):
                run_one(spec.as_dict(), str(self.store))
        history = store.history(spec.key)
        shown = [
            c for c in ("update", "loss", "f1", "f1_slow", "f1_fast", "accuracy", "excess") if c in history.columns
        ]
        table = Table(*shown, title=f"{self.method} on {self.problem}, seed {self.seed}")
        for row in history.select(shown).iter_rows():
            table.add_row(*(f"{value:,}" if isinstance(value, int) else f"{value:.4g}" for value in row))
        console.print(table)
        diverged = store.record(spec.key)["outcome"]["diverged_at"]
        if diverged is not None:
            console.print(f"It diverged at arrival {diverged:,}.")
        console.print(f"Kept in {self.store} as {spec.key[:12]}", soft_wrap=True)


@dataclass(frozen=True)
class SweepCommand:
    """Run what is missing of a sweep, side by side; kill it at any time and start it again.

    Example: latecomer sweep mnist --size quick --store runs

    Examples:
        >>> SweepCommand("mnist").size
        'standard'
    """

    spec: tyro.conf.Positional[str]
    """A preset (mnist, lr-sensitivity, cifar10, delay-model) or a TOML file."""
    size: Literal["quick", "standard", "paper"] = "standard"
    """Size of a preset."""
    store: Path = Path("runs")
    """Folder of the store."""
    processes: int = 2
    """Runs at a time, one thread each."""
    dry_run: bool = False
    """Only say how many runs there are and how long they take."""
    show: bool = False
    """Only print the spec as TOML, to be changed and run from a file."""

    def run(self, console: Console) -> None:
        """Run, with progress and the time that is left."""
        from .experiments import PRESETS, Store, Sweep, estimate_seconds, missing, preset, run_sweep

        sweep = preset(self.spec, self.size) if self.spec in PRESETS else Sweep.load(Path(self.spec))
        if self.show:
            console.print(sweep.to_toml(), soft_wrap=True, highlight=False, markup=False)
            return
        store = Store(self.store)
        todo, total = missing(sweep, store), len(sweep.runs())
        console.print(f"{sweep.name}: {total:,} runs, {total - len(todo):,} are in {self.store}", soft_wrap=True)
        if self.dry_run:
            with console.status("measuring ..."):
                seconds = estimate_seconds(todo)
            each = seconds / max(1, self.processes)
            words = f"about {_duration(seconds)} of CPU time, {_duration(each)} on {self.processes} processes"
            console.print(f"{len(todo):,} to run: {words}")
            return
        writable(self.store)
        diverged = 0
        columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(sweep.name, total=len(todo))
            for done in run_sweep(sweep, store, self.processes):
                diverged += done.diverged_at is not None
                bar.update(task, advance=1, description=f"{done.method} ({diverged} diverged)")
        table = store.table([run.key for run in sweep.runs()])
        console.print(_best(table))
        console.print(
            f"{total:,} runs in {self.store}; `latecomer runs --store {self.store}` lists them", soft_wrap=True
        )


@dataclass(frozen=True)
class Runs:
    """List the runs of a store, filtered and sorted.

    Example: latecomer runs --store runs --method momentum --sort f1 --csv runs.csv

    Examples:
        >>> Runs().sort
        'f1'
    """

    store: Path = Path("runs")
    """Folder of the store."""
    method: str = ""
    """Only this method."""
    problem: str = ""
    """Only this problem."""
    sort: str = "f1"
    """Column to sort by, largest first."""
    top: int = 20
    """How many to show."""
    csv: Path | None = None
    """Also write all of them to this file."""

    def run(self, console: Console) -> None:
        """Read, filter, print."""
        from .experiments import Store

        if not self.store.is_dir():
            raise ValueError(f"There is no store in {self.store}")
        table = Store(self.store).table()
        for column, wanted in (("method", self.method), ("problem", self.problem)):
            if wanted and table.height:
                table = table.filter(pl.col(column) == wanted)
        if table.height == 0:
            raise ValueError(f"There are no such runs in {self.store}")
        if self.sort in table.columns:
            table = table.sort(self.sort, descending=True, nulls_last=True)
        wanted_columns = ("problem", "method", *_OPTIONS, "seed", "steps", "diverged_at")
        present = [c for c in wanted_columns if c in table.columns]
        shown = [c for c in present if c == "method" or table[c].n_unique() > 1]
        same = [f"{c} {_cell(table[c][0])}" for c in present if c not in shown and table[c][0] is not None]
        shown += [c for c in ("loss", "f1", "f1_slow", "f1_fast") if c in table.columns]
        console.print("all: " + ", ".join(same), soft_wrap=True, highlight=False)
        out = Table(*shown)
        for row in table.select(shown).head(self.top).iter_rows():
            out.add_row(*(_cell(value) for value in row))
        console.print(out)
        console.print(f"{table.height:,} runs" + (f", {self.top} shown" if table.height > self.top else ""))
        if self.csv is not None:
            from .files import atomic

            with atomic(self.csv) as temporary:
                table.write_csv(temporary)
            console.print(f"Written to {self.csv}", soft_wrap=True)


_CLIPPING = ("clip", "clip_rate", "clip_scale", "clip_norm", "feedback")
_OPTIONS = ("lr", "beta", "gamma", "threshold", *_CLIPPING, "rho", "fill_rate", "beta2", "eps")
"""Hyper-parameters that tell one configuration from another."""


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.1f} minutes"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _best(table: pl.DataFrame) -> Table:
    """Each method's best configuration by the mean over seeds of the final F1, or of the loss where there is none."""
    score, most = ("f1", True) if "f1" in table.columns else ("loss", False)
    options = [c for c in _OPTIONS if c in table.columns]
    means = table.group_by("method", *options).agg(
        pl.col(score).mean(), pl.len().alias("runs"), pl.col("diverged_at").is_not_null().sum().alias("diverged")
    )
    best = means.sort(score, descending=most, nulls_last=True).group_by("method", maintain_order=True).first()
    out = Table("method", *options, f"best mean {score}", "seeds", "diverged", title="Best configurations")
    for row in best.sort("method").iter_rows(named=True):
        numbers = [_cell(row[k]) for k in (*options, score, "runs", "diverged")]
        out.add_row(row["method"], *numbers)
    return out
