"""``latecomer run``, ``sweep`` and ``runs``: make runs, many runs, and look at those that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from .._util.files import atomic, writable
from ._options import Imports, Pairs, hyper_parameters, import_all, pairs
from ._output import Json, print_text, show
from .data import look_in

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from rich.table import Table

    from ..experiments import FinishedRun, Store

__all__ = ["ListRuns", "One", "SweepCommand"]


@dataclass(frozen=True)
class One:
    """Simulate one run and keep it in a store; a run that is in the store already is shown, not repeated.

    Example: latecomer run --problem mnist --method ordered-momentum --set lr=0.02 beta=0.05 --steps 500
    """

    problem: str = "digits"
    """Name of the problem."""
    method: str = "ordered-momentum"
    """Name of the method."""
    set: Pairs = ()
    """Hyper-parameters of the method, as name=value; lr is 0.02 if left out, the others are the method's defaults."""
    imports: Imports = ()
    """A Python file that registers methods of your own; may be repeated."""
    problem_set: Pairs = ()
    """Arguments of the problem, as name=value."""
    weights: str = ""
    """Where the network of cifar10 starts: none, imagenet or a file."""
    workers: int = 7
    """Number of workers."""
    slow_share: float = 0.1
    """Share of slow samples in the paper's delay model."""
    steps: int = 1000
    """Number of arrivals."""
    seed: int = 0
    """Initialises the model and draws the schedule."""
    evaluate_every: int = 100
    """Arrivals between evaluations."""
    store: Path = Path("runs")
    """Folder of the store."""
    data_dir: Path | None = None
    """Where the data is; $LATECOMER_DATA or the user's cache if left out."""
    json: Json = False
    """Print the evaluations as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Run, keep, print."""
        from rich.table import Table

        from ..experiments import RunSpec, Store
        from ..experiments.sweep import run_one

        import_all(self.imports)
        spec = RunSpec(
            self.problem,
            self.method,
            "data-dependent",
            self.steps,
            self.seed,
            self.evaluate_every,
            problem_options={
                **pairs(self.problem_set, "--problem-set"),
                **({"weights": self.weights} if self.weights else {}),
            },
            options=hyper_parameters(self.method, self.set),
            delay_options={"workers": self.workers, "slow_share": self.slow_share},
        )
        look_in(self.data_dir)
        spec.check()
        store = Store(self.store)
        writable(self.store)
        if spec.key in store:
            print_text(console, "This run is in the store already.")
        else:
            print_text(console, f"{self.method} on {self.problem}, {self.steps:,} arrivals")
            run_one(spec.as_dict(), str(self.store), progress=console)
        history = store.history(spec.key)
        shown = [
            c for c in ("update", "loss", "f1", "f1_slow", "f1_fast", "accuracy", "excess") if c in history.columns
        ]
        table = Table(*shown, title=f"{self.method} on {self.problem}, seed {self.seed}")
        for row in history.select(shown).iter_rows():
            table.add_row(*(f"{value:,}" if isinstance(value, int) else f"{value:.4g}" for value in row))
        diverged = store.record(spec.key)["outcome"]["diverged_at"]
        found = {"spec": spec.as_dict(), "diverged_at": diverged, "store": self.store, "key": spec.key}
        show(console, table, {"rows": history.to_dicts(), **found})
        if diverged is not None:
            print_text(console, f"It diverged at arrival {diverged:,}.")
        print_text(console, f"Kept in {self.store} as {spec.key[:12]}")


@dataclass(frozen=True)
class SweepCommand:
    """Run the missing runs of a sweep, several at a time; can be killed and started again.

    Example: latecomer sweep mnist --size quick --store runs
    """

    spec: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SPEC")]
    """A preset (mnist, lr-sensitivity, cifar10) or a TOML file."""
    size: Literal["quick", "standard", "paper"] = "standard"
    """Size of a preset."""
    imports: Imports = ()
    """A Python file that registers methods of your own; may be repeated. A spec may name such files too."""
    store: Path = Path("runs")
    """Folder of the store."""
    processes: int = 2
    """Runs at a time, one thread each."""
    engine: Literal["local", "ray"] = "local"
    """Processes of this machine, or tasks on a Ray cluster; then all nodes must have access to the store."""
    address: str | None = None
    """Address of the cluster, or auto; Ray on this machine if left out."""
    data_dir: Path | None = None
    """Where the data is; $LATECOMER_DATA or the user's cache if left out."""
    dry_run: bool = False
    """Only print how many runs there are and how long they take."""
    show: bool = False
    """Only print the spec as TOML, to be changed and run from a file."""
    seed: int = 0
    """Added to every seed of the spec: other samples, schedules and initial models."""
    json: Json = False
    """Print the best configurations as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Run, with progress and the time that is left."""
        from .._util.checks import whole_number
        from ..experiments import Store, Sweep, estimate_seconds, missing, run_sweep
        from ..paper import PRESETS, preset
        from ._progress import watched, working

        look_in(self.data_dir)
        sweep = preset(self.spec, self.size) if self.spec in PRESETS else Sweep.load(Path(self.spec))
        sweep = replace(sweep, seeds=tuple(seed + whole_number("seed", self.seed) for seed in sweep.seeds))
        sweep = replace(sweep, imports=(*sweep.imports, *map(str, self.imports)))
        if self.show:
            show(console, sweep.to_toml(), sweep.as_dict())
            return
        store = Store(self.store)
        runs = sweep.runs()
        todo, total = missing(sweep, store), len(runs)
        print_text(console, f"{sweep.name}: {total:,} runs, {total - len(todo):,} are in {self.store}")
        if self.dry_run:
            with working("measuring", console):
                seconds = estimate_seconds(todo)
            each = seconds / max(1, self.processes)
            words = f"about {_duration(seconds)} of CPU time, {_duration(each)} on {self.processes} processes"
            data = {"runs": total, "missing": len(todo), "cpu_seconds": seconds, "processes": self.processes}
            show(console, f"{len(todo):,} to run: {words}", data)
            return
        writable(self.store)
        done = ((_what(run), run) for run in run_sweep(sweep, store, self.processes, self.engine, self.address))
        diverged = sum(run.diverged_at is not None for run in watched(done, len(todo), console, sweep.name))
        if diverged:
            print_text(console, f"{diverged:,} runs diverged, ended early and are recorded as such")
        own = dict.fromkeys(name for run in runs for name in run.options if name not in _OPTIONS)
        best = _best(store.table([run.key for run in runs]), (*_OPTIONS, *own))
        show(console, _best_table(best), {"rows": best.to_dicts(), "store": self.store})
        print_text(console, f"{total:,} runs in {self.store}; `latecomer runs --store {self.store}` lists them")


@dataclass(frozen=True)
class ListRuns:
    """List the runs of a store, filtered and sorted.

    Example: latecomer runs --store runs --method momentum --sort f1 --csv runs.csv
    """

    store: Path = Path("runs")
    """Folder of the store."""
    method: str = ""
    """Only this method."""
    problem: str = ""
    """Only this problem."""
    sort: str = "f1"
    """Column to sort by, best first: the smallest loss or excess, the largest of anything else."""
    top: int = 20
    """How many to show."""
    csv: Path | None = None
    """Also write all of them, with all columns, to this file."""
    json: Json = False
    """Print the runs, with all columns, as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Read, filter, print."""
        import polars as pl

        from .._util.checks import whole_number
        from ..experiments import Store

        whole_number("top", self.top, least=1)
        if not self.store.is_dir():
            raise ValueError(f"There is no store in {self.store}")
        table = _readable(Store(self.store), console)
        if table.height == 0:
            raise ValueError(f"There are no runs in {self.store}")
        for column, wanted in (("method", self.method), ("problem", self.problem)):
            if wanted:
                table = table.filter(pl.col(column) == wanted)
        if table.height == 0:
            raise ValueError(f"None of the runs in {self.store} is of that method and problem")
        table = table.select(column for column in table if column.null_count() < table.height)
        table = self._sorted(table)
        self._show(table, console)
        if self.csv is not None:
            with atomic(self.csv) as temporary:
                table.write_csv(temporary)
            print_text(console, f"Written to {self.csv}")

    def _sorted(self, table: pl.DataFrame) -> pl.DataFrame:
        if self.sort not in table.columns:
            if self.sort == "f1":  # nobody asked for it
                return table
            raise ValueError(f"There is no column {self.sort!r} to sort by (there are {', '.join(table.columns)})")
        smallest_first = self.sort.startswith(("loss", "excess", "bits", "squared"))
        return table.sort(self.sort, descending=not smallest_first, nulls_last=True)

    def _show(self, table: pl.DataFrame, console: Console) -> None:
        from rich import box
        from rich.table import Table

        spec = [c for c in table.columns if c.startswith(("problem", "delays"))]
        wanted = ("method", *_OPTIONS, *spec, "seed", "steps", "diverged_at")
        present = [c for c in wanted if c in table.columns]
        shown = [c for c in present if c == "method" or table[c].n_unique() > 1]
        same = [f"{c} {_cell(table[c][0])}" for c in present if c not in shown and table[c][0] is not None]
        shown += [c for c in ("loss", "f1", "f1_slow", "f1_fast") if c in table.columns]
        if same:
            print_text(console, "all: " + ", ".join(same))
        top = table.head(self.top)
        room = console.width if console.is_terminal else 240
        dropped = []
        for name in (*reversed(spec), "steps", "f1_fast", "f1_slow", "diverged_at", "loss"):
            if name in shown and _width(top, shown) > room:
                shown.remove(name)
                dropped.append(name)
        out = Table("run", box=box.SIMPLE_HEAD)
        for name in shown:
            out.add_column(name, no_wrap=True)
        for row in top.select("key", *shown).iter_rows():
            out.add_row(row[0][:8], *(_cell(value) for value in row[1:]))
        if not console.is_terminal:
            console.width = room
        show(console, out, {"rows": top.to_dicts(), "runs": table.height})
        if dropped:
            print_text(console, f"No room for {', '.join(dropped)}: --csv writes all columns")
        print_text(console, f"{table.height:,} runs" + (f", {self.top} shown" if table.height > self.top else ""))


def _width(table: pl.DataFrame, columns: list[str]) -> int:
    """Return how wide a table would be with the run's address in front."""
    return 12 + sum(3 + max(len(c), *(len(_cell(value)) for value in table[c])) for c in columns)


def _readable(store: Store, console: Console) -> pl.DataFrame:
    """Return the runs that can be read, and say which cannot."""
    import polars as pl

    rows = []
    for key in store.keys():  # noqa: SIM118 - a store is no dict
        try:
            rows += list(store.rows([key]))
        except ValueError as error:
            print_text(console, f"Left out: {error}")
    return pl.DataFrame(rows, infer_schema_length=None)


def _what(done: FinishedRun) -> str:
    return done.method if done.diverged_at is None else f"{done.method} (diverged)"


_OPTIONS = ("lr", "beta", "gamma", "threshold", "clip", "clip_rate", "clip_at", "beta2", "eps")
"""Hyper-parameters that tell one configuration from another."""


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.1f} minutes"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _best(table: pl.DataFrame, options: Sequence[str]) -> pl.DataFrame:
    """Each method's best configuration by the mean over seeds of the final F1, or of the loss where there is none."""
    import polars as pl

    score, most = ("f1", True) if "f1" in table.columns else ("loss", False)
    means = table.group_by("method", *(c for c in options if c in table.columns)).agg(
        pl.col(score).mean().alias(f"best mean {score}"),
        pl.len().alias("seeds"),
        pl.col("diverged_at").is_not_null().sum().alias("diverged"),
    )
    best = means.sort(f"best mean {score}", descending=most, nulls_last=True).group_by("method", maintain_order=True)
    return best.first().sort("method")


def _best_table(best: pl.DataFrame) -> Table:
    from rich.table import Table

    out = Table(*best.columns, title="Best configurations")
    for row in best.iter_rows():
        out.add_row(*map(_cell, row))
    return out
