"""``latecomer reproduce`` and ``report``: the paper's experiments, run again, with a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from .._util.files import writable
from ._output import Json, print_text, show
from .data import look_in

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..experiments import Store, Sweep
    from ..paper import Study
    from ..paper.sections import Section

__all__ = ["ReportCommand", "ReproduceCommand"]

Name = Literal["mnist", "cifar10", "delay-model", "lr-sensitivity", "all"]
Size = Literal["quick", "standard", "paper"]
ALL = ("delay-model", "mnist", "lr-sensitivity", "cifar10")


@dataclass(frozen=True)
class ReproduceCommand:
    """Run the paper's experiments and write figures, tables and a verdict; can be killed and started again.

    Every method's configuration is chosen on a validation split, then run on fresh seeds and judged on the test set.
    Missing data is downloaded. Runs that are in the store already are not repeated. There is no --seed: the size fixes
    all seeds, so that everybody's verdicts come from the same runs.

    Example: latecomer reproduce mnist --size quick
    """

    name: tyro.conf.Positional[Name]
    """Which experiment."""
    size: Size = "quick"
    """quick: minutes; standard: hours; paper: the full grids."""
    store: Path = Path("runs")
    """Folder of the runs."""
    out: Path = Path("reproduction")
    """Folder for the page, figures, tables and specs."""
    processes: int = 2
    """Runs at a time, one thread each."""
    data_dir: Path | None = None
    """Where the data is; $LATECOMER_DATA or the user's cache if left out."""
    weights: str = ""
    """Where the network of cifar10 starts: none, imagenet or a file; that of the size if left out."""
    json: Json = False
    """Print the verdicts as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Fetch, run, choose, run, draw."""
        _reproduce(self.name, self.size, self.store, self.out, self.data_dir, console, self.weights, self.processes)


@dataclass(frozen=True)
class ReportCommand:
    """Draw an experiment again from the runs in the store, without running anything.

    There is no --seed: the size fixes all seeds.

    Example: latecomer report mnist --size quick --out reproduction
    """

    name: tyro.conf.Positional[Name]
    """Which experiment."""
    size: Size = "quick"
    """Its size."""
    store: Path = Path("runs")
    """Folder of the runs."""
    out: Path = Path("reproduction")
    """Folder for the page, figures, tables and specs."""
    data_dir: Path | None = None
    """Where the data is; $LATECOMER_DATA or the user's cache if left out."""
    weights: str = ""
    """Where the network of cifar10 started, if not where the size says."""
    json: Json = False
    """Print the verdicts as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Read and draw."""
        _reproduce(self.name, self.size, self.store, self.out, self.data_dir, console, self.weights, None)


def _reproduce(
    name: str,
    size: str,
    folder: Path,
    out: Path,
    data_dir: Path | None,
    console: Console,
    weights: str,
    processes: int | None,
) -> None:
    """Do one experiment or all; without processes nothing may be missing."""
    from .. import data, experiments, paper
    from .._util.extras import needs
    from ..paper.page import write_reproduction
    from ._progress import downloading

    with needs("report", "scipy", "A verdict on the paper's claims"):  # raise before hours of runs, not after them
        import_module("scipy.stats")

    store = experiments.Store(folder)
    writable(out)
    look_in(data_dir)
    if processes is not None:
        writable(folder)
        for dataset in ("mnist", "cifar10") if name == "all" else ("cifar10",) if name == "cifar10" else ("mnist",):
            with downloading(dataset, console) as on_progress:
                data.get(dataset, progress=on_progress)
    studies = [paper.make_study(each, size, weights) for each in (ALL if name == "all" else (name,))]
    if processes is not None:
        for made in studies:  # raise for one that cannot be made before hours of the others
            _images(made.grid)
    sections: list[Section] = []
    try:
        for made in studies:
            sections.append(_section(made, store, processes, console))
    finally:  # what is done has its page, whatever becomes of the rest; a figure is drawn once, or it shifts
        if sections:
            commands = {done.name: done.command for done in studies[: len(sections)]}
            page = write_reproduction(sections, out, size, commands)
    show(console, _verdicts(sections), {"rows": _rows(sections), "page": page})
    print_text(console, f"Figures, tables and specs in {out}, page: {page}")


def _section(made: Study, store: Store, processes: int | None, console: Console) -> Section:
    from .. import paper
    from ..paper import sections

    if made.name == "delay-model":
        return sections.delay_section(made, _images(made.grid))
    _complete(made.grid, store, processes, console)
    if made.name == "lr-sensitivity":
        return sections.sensitivity_section(made, store)
    chosen = paper.choose(made.grid, store)
    final = paper.chosen_sweep(made, chosen)
    _complete(final, store, processes, console)
    return sections.training_section(made, chosen, _images(final), store)


def _complete(sweep: Sweep, store: Store, processes: int | None, console: Console) -> None:
    """Run the missing runs, or raise if some are missing."""
    from ..experiments import missing, run_sweep
    from ._progress import watched

    todo, total = missing(sweep, store), len(sweep.runs())
    if processes is None:
        if todo:
            raise ValueError(
                f"{len(todo):,} of the {total:,} runs of {sweep.name} are not in {store.folder}: latecomer reproduce "
                "makes them"
            )
        return
    print_text(console, f"{sweep.name}: {total:,} runs, {total - len(todo):,} are in {store.folder}")
    done = ((run.method, run) for run in run_sweep(sweep, store, processes))
    for _ in watched(done, len(todo), console, sweep.name):
        pass


def _images(sweep: Sweep) -> Any:
    from ..experiments.sweep import problem_of

    return problem_of(sweep.runs()[0])


def _rows(sections: list[Section]) -> list[dict[str, Any]]:
    return [
        {
            "experiment": section.id,
            "claim": row.claim,
            "ours": row.ours,
            "difference": row.difference.value,
            "half_interval": row.difference.half,
            "verdict": row.verdict,
        }
        for section in sections
        for row in section.verdicts
    ]


def _verdicts(sections: list[Section]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("claim", title="Verdict", box=box.SIMPLE_HEAD)
    table.add_column("difference, half of its 95 % interval", justify="right")
    table.add_column("verdict", no_wrap=True)
    for section in sections:
        table.add_row(f"[bold]{section.title}[/bold]", "", "")
        for row in section.verdicts:
            claim = f"{row.claim} (ours)" if row.ours else row.claim
            table.add_row(claim, f"{row.difference.value:+.4f} ± {row.difference.half:.4f}", row.verdict)
    return table
