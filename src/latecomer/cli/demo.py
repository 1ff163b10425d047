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
        title = f"digits, {demo.WORKERS} workers, nines take {demo.COST:g} times as long, {self.seeds} seeds"
        table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        texts = [cells(row)[:-1] for row in found]  # learning rates are on the page
        for name, *column in zip(COLUMNS, *texts, strict=False):
            longest = max(len(word) for text in (name, *column) for word in text.split())
            table.add_column(name, justify="left" if name == "method" else "right", min_width=longest)
        for text in texts:
            table.add_row(*text)
        command = f"latecomer demo --seed {self.seed} --seeds {self.seeds} --steps {self.steps}"
        waiting, late = (demo.make_trace(name, self.steps, self.seed) for name in (demo.SYNCHRONOUS, "momentum"))
        page = write_demo(results, waiting, late, self.out, command)
        words = story(results)
        show(console, table, {"rows": [asdict(row) for row in found], "story": words, "page": page})
        for paragraph in words:
            print_text(console, paragraph.replace("**", "").replace("`", ""))
        print_text(console, f"Figures in {self.out}, page: {page}")
