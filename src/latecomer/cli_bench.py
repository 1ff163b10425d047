"""``latecomer bench``: a soak under random kills, and stragglers against waiting for them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from .files import writable

__all__ = ["BenchCommand"]


@dataclass(frozen=True)
class SoakCommand:
    """Kill workers at random during training, then prove that nothing was lost and nothing counted twice.

    Example: latecomer bench soak --kills 1000 --out results
    """

    kills: int = 100
    """How many; 1,000 is full size."""
    every: int = 8
    """Contributions between kills, on average, counted while all workers are up."""
    workers: int = 3
    """Number of workers."""
    method: str = "catch-up"
    """Name of the method."""
    seed: int = 0
    """Draws who is killed when."""
    out: Path | None = None
    """Folder for the table."""

    def run(self, console: Console) -> None:
        """Soak, print, write."""
        if self.out is not None:
            writable(self.out)
        from .bench import soak
        from .cli_progress import counting

        with counting("kills", self.kills, console) as told:
            found = soak(
                self.kills, every=self.every, workers=self.workers, method=self.method, seed=self.seed, told=told
            )
        shown = {
            "workers killed": f"{found.kills:,}",
            "contributions counted": f"{found.arrivals:,}",
            "of these late by an update or more": f"{found.late:,}",
            "tickets issued": f"{found.tickets:,}",
            "tickets that a kill took along": f"{found.lost:,}",
            "every ticket counted exactly once": "yes" if found.exactly_once else "NO",
            "difference of the replay": "none, the same bits" if found.difference == 0 else f"{found.difference:g}",
            "seconds": f"{found.seconds:.1f}",
        }
        title = f"soak: {self.method}, {self.workers} workers, seed {self.seed}"
        _show(console, title, ["what", "measured"], [list(pair) for pair in shown.items()])
        command = f"latecomer bench soak --kills {self.kills} --every {self.every} --workers {self.workers}"
        _write(console, self.out, "soak", title, ["what", "measured"], shown.items(), command, asdict(found))
        if not found.good:
            raise ValueError("the soak failed: see the table")


@dataclass(frozen=True)
class StragglerCommand:
    """Compare training that never waits with training that waits for the slowest, on sequences of uneven length.

    Interrupted, it goes on where it was when called again with the same --out.

    Example: latecomer bench straggler --steps 2000 --lrs 0.1 0.3 1.0 --out results
    """

    steps: int = 1000
    """Contributions of a synchronous run; the others may use twice as many, since it is time that counts."""
    lrs: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    """Learning rates to try; each method gets its best one with the first seed."""
    seeds: int = 3
    """Seeds to measure with, after the first."""
    workers: int = 2
    """Real workers."""
    virtual_workers: int = 8
    """Workers of the virtual clock."""
    width: int = 32
    """Width of the transformer."""
    layers: int = 1
    """Its layers."""
    lengths: tuple[int, ...] = (32, 64, 128, 256)
    """Bytes a window of each group."""
    evaluations: int = 20
    """Evaluations of a synchronous run."""
    seed: int = 0
    """The first seed: draws the samples."""
    out: Path | None = None
    """Folder for the table."""

    def run(self, console: Console) -> None:
        """Run all, print, write."""
        if self.out is not None:
            writable(self.out)
        from .bench import Straggler
        from .cli_progress import watched
        from .problems import Text

        shares = tuple(2.0 ** -(i + 1) for i in range(len(self.lengths) - 1))
        problem = Text(
            width=self.width, layers=self.layers, lengths=self.lengths, shares=(*shares, 1.0 - sum(shares)),
            evaluated=4096, limit=1_000_000,
        )  # fmt: skip
        keep = None if self.out is None else self.out / "straggler.runs"
        comparison = Straggler(
            problem, steps=self.steps, lrs=self.lrs, seeds=self.seeds, workers=self.workers,
            virtual_workers=self.virtual_workers, evaluations=self.evaluations, seed=self.seed, keep=keep,
        )  # fmt: skip
        for _ in watched(comparison.runs(), comparison.total, console, "straggler"):
            pass
        rows = comparison.table()
        heads = ["clock", "method", "lr", "s to target", "times as fast", "reached", "s in all", "loss"]
        heads += [f"loss at {self.lengths[0]}", f"loss at {self.lengths[-1]}", "delay"]
        title = (
            f"straggler: {self.steps:,} synchronous contributions, {self.workers} real and {self.virtual_workers} "
            f"virtual workers, windows of {', '.join(map(str, self.lengths))} bytes, "
            f"{self.seeds} seed{'s' * (self.seeds != 1)}"
        )
        cells = [self._cells(row) for row in rows.iter_rows(named=True)]
        _show(console, title, heads, cells)
        given = {"steps": self.steps, "lrs": " ".join(f"{lr:g}" for lr in self.lrs), "seeds": self.seeds}
        given |= {"workers": self.workers, "virtual-workers": self.virtual_workers, "width": self.width}
        given |= {"layers": self.layers, "lengths": " ".join(map(str, self.lengths)), "evaluations": self.evaluations}
        given |= {"seed": self.seed}
        command = "latecomer bench straggler " + " ".join(f"--{name} {value}" for name, value in given.items())
        _write(console, self.out, "straggler", title, heads, cells, command, rows.to_dicts())
        if keep is not None:
            keep.unlink(missing_ok=True)

    def _cells(self, row: dict[str, Any]) -> list[str]:
        times = ["never", ""]
        if row["reached"]:
            spread = f" ({row['faster_low']:.2f} to {row['faster_high']:.2f})" if row["reached"] > 1 else ""
            times = [f"{row['seconds']:.2f}", f"{row['faster']:.2f}{spread}"]
        losses = [f"{row[key]:.3f}" for key in ("loss", "shortest", "longest")]
        start = [row["clock"], row["method"], f"{row['lr']:g}", *times, f"{row['reached']} of {self.seeds}"]
        return [*start, f"{row['total']:.2f}", *losses, f"{row['delay']:.2f}"]


@dataclass(frozen=True)
class BenchCommand:
    """Measure what real workers do.

    Example: latecomer bench soak --kills 100
    """

    command: (
        Annotated[SoakCommand, tyro.conf.subcommand("soak")]
        | Annotated[StragglerCommand, tyro.conf.subcommand("straggler")]
    )

    def run(self, console: Console) -> None:
        """Pass it on."""
        self.command.run(console)


def _show(console: Console, title: str, heads: list[str], rows: Any) -> None:
    table = Table(title=title)
    for head in heads:
        table.add_column(head, no_wrap=head in ("clock", "method", "times as fast", "reached"))
    for row in rows:
        table.add_row(*row)
    if not console.is_terminal:
        console.width = 140
    console.print(table)


def _write(
    console: Console, out: Path | None, name: str, title: str, heads: list[str], rows: Any, command: str, data: Any
) -> None:
    if out is None:
        return
    from .bench.tables import write_table

    write_table(out, name, title, heads, rows, command, data)
    console.print(f"Table written to {out / name}.md, rows to {out / name}.json", soft_wrap=True)
