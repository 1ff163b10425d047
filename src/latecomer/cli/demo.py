"""``latecomer demo``: what waiting costs and what dropping late work costs, on embedded data."""

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
    """What waiting costs, what dropping late work costs, what the default does: five methods on one virtual clock.

    Example: latecomer demo --out demo --seed 0
    """

    out: Path = Path("demo")
    """Folder for the page and its figures."""
    seed: int = 0
    """First seed."""
    seeds: int = 5
    """How many seeds; the asynchronous methods share the schedule of a seed."""
    steps: int = 1600
    """Updates per asynchronous run; synchronous training has the same time on the clock."""
    processes: int = 2
    """Runs at a time."""
    json: Json = False
    """Print the table as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Train, print, draw."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        from ..demo import runs as demo
        from ..demo.page import write_demo
        from ..demo.tables import COLUMNS, cells, rows, story
        from ._progress import watched

        runs = demo.run_all(self.steps, self.seeds, self.seed, self.processes)
        writable(self.out)
        total = len(demo.planned(self.steps, self.seeds, self.seed))
        named = ((f"{result.method}, seed {result.seed}", result) for result in runs)
        results = list(watched(named, total, console, "training"))
        found = rows(results)
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        title = f"digits, {demo.WORKERS} workers, nines take {demo.COST:g} times as long, {seeds}"
        table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name in COLUMNS[:-1]:  # learning rates are on the page
            table.add_column("\n".join(name.split()), justify="left" if name == "method" else "right")
        for row in found:
            table.add_row(*cells(row)[:-1])
        command = f"latecomer demo --seed {self.seed} --seeds {self.seeds} --steps {self.steps}"
        waiting, late = (demo.make_trace(name, self.steps, self.seed) for name in (demo.SYNCHRONOUS, "momentum"))
        page = write_demo(results, waiting, late, self.out, command)
        words = story(results)
        show(console, table, {"rows": [asdict(row) for row in found], "story": words, "page": page})
        for paragraph in words:
            print_text(console, paragraph.replace("**", "").replace("`", ""))
        print_text(console, f"Figures in {self.out}, page: {page}")
