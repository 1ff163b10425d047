"""The ``latecomer`` command: parse, call, print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import __version__, demo
from .optim import METHODS

__all__ = ["main"]


@dataclass(frozen=True)
class Demo:
    """Train with every method under data-dependent delays and show who got how much say.

    Example: latecomer demo --out demo --seed 0
    """

    out: Path = Path("demo")
    """Folder to write the figure to."""
    seed: int = 0
    """Seeds the schedule and the noise."""
    steps: int = 20_000
    """Number of updates."""

    def run(self, console: Console) -> None:
        """Measure, print, draw."""
        runs = demo.measure(self.steps, self.seed)
        self.out.mkdir(parents=True, exist_ok=True)
        results = []
        count = TextColumn("{task.completed}/{task.total} methods")
        bar = Progress(TextColumn("{task.description:<20}"), BarColumn(), count, TimeElapsedColumn(), console=console)
        bar.live.transient = True
        with bar:
            names = [*METHODS, "drawing"]
            task = bar.add_task(names[0], total=len(METHODS))
            for done, result in enumerate(runs, start=1):
                results.append(result)
                bar.update(task, completed=done, description=names[done])
        title = f"{demo.WORKERS} workers, one sample in ten is slow, {self.steps:,} updates, seed {self.seed}"
        table = Table("method", "rule", title=title)
        table.add_column("say of a slow\ngradient, fast = 1", justify="right")
        table.add_column("loss above\nthe optimum", justify="right")
        for result in results:
            say, excess = f"{result.slow_say:.3f}", f"{result.excess:.4f}"
            table.add_row(result.method, METHODS[result.method].source, say, excess)
        console.print(table)
        figure = self.out / "influence.svg"
        demo.draw(results, figure)
        console.print(f"Figure written to {figure}", soft_wrap=True)


COMMANDS = {"demo": Demo}


def _commands() -> Any:
    """Build the type that tyro reads the subcommands from."""
    defaults = {name: kind() for name, kind in COMMANDS.items()}
    texts = {name: cleandoc(kind.__doc__ or "") for name, kind in COMMANDS.items()}
    return tyro.extras.subcommand_type_from_defaults(defaults, descriptions=texts)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 with one sentence on bad input.

    Examples:
        >>> main(["--version"])
        latecomer 0.1.0
        0
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv == ["--version"]:
        print(f"latecomer {__version__}")
        return 0
    try:
        command = tyro.cli(
            _commands(),
            prog="latecomer",
            description="Asynchronous training in which every late gradient gets its place.",
            args=argv or ["--help"],
            config=(tyro.conf.OmitSubcommandPrefixes,),
        )
        command.run(Console())
    except OSError as error:
        print(f"latecomer: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except (ValueError, TypeError) as error:
        print(f"latecomer: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("latecomer: interrupted", file=sys.stderr)
        return 130
    return 0
