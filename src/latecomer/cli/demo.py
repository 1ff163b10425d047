"""``latecomer demo``: the main job on embedded data, with a table and a page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.files import writable
from ._output import Json, print_text, show

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Demo"]


@dataclass(frozen=True)
class Demo:
    """Train the paper's methods and catch-up on bundled digits with one slow class; table, figures, page.

    Example: latecomer demo --out demo --seed 0
    """

    out: Path = Path("demo")
    """Folder for the page and its figures."""
    seed: int = 0
    """First seed."""
    seeds: int = 3
    """How many seeds; all methods share the schedule of a seed."""
    steps: int = 800
    """Updates per run."""
    processes: int = 2
    """Runs at a time."""
    json: Json = False
    """Print the table as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Train, print, draw."""
        from rich.table import Table

        from ..demo import runs as demo
        from ..demo.page import write_demo
        from ..demo.tables import rows
        from ._progress import watched

        runs = demo.run_all(self.steps, self.seeds, self.seed, self.processes)
        writable(self.out)
        named = ((f"{result.method}, seed {result.seed}", result) for result in runs)
        results = list(watched(named, self.seeds * len(demo.METHOD_OPTIONS), console, "training"))
        results.sort(key=lambda result: (result.seed, result.method))
        trace = demo.make_trace(self.steps, self.seed)
        setting = f"{demo.WORKERS} workers, nines are slow, {self.steps:,} updates, {self.seeds} seeds"
        table = Table(title=f"digits, {setting}")
        table.add_column("method", no_wrap=True)
        for name in ("F1", "slow F1", "fast F1", "influence\nof slow", "dropped", "diverged"):
            table.add_column(name, justify="right")
        found = rows(results)
        for row in found:
            scores = [f"{value:.3f}" for value in (row.f1, row.slow, row.fast)]
            numbers = [*scores, f"{row.influence:.2f}", f"{row.dropped:.0f}"]
            table.add_row(row.method, *numbers, f"{row.diverged} of {row.runs}")
        command = f"latecomer demo --seed {self.seed} --seeds {self.seeds} --steps {self.steps}"
        page = write_demo(results, trace, self.out, command)
        show(console, table, {"rows": [asdict(row) for row in found], "page": page})
        print_text(console, f"Figures in {self.out}, page: {page}")
