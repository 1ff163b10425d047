"""``latecomer bench``: a soak under random kills, and how far one server goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.checks import AT_LEAST_ZERO
from .._util.files import writable
from ._options import Imports, import_all
from ._output import Json, print_text, show

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["CapacityCommand", "SoakCommand"]


@dataclass(frozen=True)
class SoakCommand:
    """Kill workers at random during training, then check that nothing was lost and nothing counted twice.

    Example: latecomer bench soak --kills 1000 --out results
    """

    kills: int = 100
    """Number of workers to kill; the published table has 1,000."""
    every: int = 8
    """Contributions between kills, on average, counted while all workers are up."""
    workers: int = 3
    """Number of workers."""
    method: str = "catch-up"
    """Name of the method."""
    imports: Imports = ()
    """A Python file that registers methods of your own; may be repeated."""
    seed: int = 0
    """Draws which worker is killed when."""
    out: Path | None = None
    """Folder for the table."""
    json: Json = False
    """Print the table as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Soak, print, write."""
        import_all(self.imports)
        if self.out is not None:
            writable(self.out)
        from ..bench import soak
        from ._progress import counting

        with counting("kills", console) as on_progress:
            found = soak(
                self.kills,
                every=self.every,
                workers=self.workers,
                method=self.method,
                seed=self.seed,
                on_kill=lambda done: on_progress(done, self.kills),
            )
        shown = {
            "workers killed": f"{found.kills:,}",
            "contributions counted": f"{found.arrivals:,}",
            "of these late by an update or more": f"{found.late:,}",
            "tickets issued": f"{found.tickets:,}",
            "tickets lost by a kill and issued again": f"{found.lost:,}",
            "every ticket counted exactly once": "yes" if found.exactly_once else "NO",
            "difference of the replay": "none, the same bits" if found.difference == 0 else f"{found.difference:g}",
            "seconds": f"{found.seconds:.1f}",
        }
        title = f"soak: {self.method}, {self.workers} workers, seed {self.seed}"
        data = asdict(found)
        _show(console, title, ["what", "measured"], [list(pair) for pair in shown.items()], {"rows": [data]})
        command = f"latecomer bench soak --kills {self.kills} --every {self.every} --workers {self.workers}"
        _write(console, self.out, "soak", title, ["what", "measured"], shown.items(), command, data)
        if not found.good:
            raise ValueError("the soak failed: see the table")


@dataclass(frozen=True)
class CapacityCommand:
    """Compute how many workers one server can keep busy, by the size of the model; more would only make delays longer.

    Example: latecomer bench capacity --gigabits 10 --gradient 0.1
    """

    gigabits: float = 10.0
    """Bandwidth of the server's network, in gigabits per second in each direction."""
    gradient: float = 0.1
    """Seconds per gradient on a worker."""
    sizes: tuple[int, ...] = (100_000, 1_000_000, 10_000_000, 100_000_000)
    """Numbers of parameters."""
    points: int = 1
    """Points at which a ticket evaluates a gradient: 2 for methods such as mu2."""
    update_ns: float | None = None
    """Nanoseconds per parameter of an update on the server; measured if left out."""
    wire_ns: float | None = None
    """Nanoseconds per byte of the server's encryption; measured if left out, 0 where memory is shared."""
    fixed_us: float = 200.0
    """Microseconds per update, whatever its size."""
    seed: int = 0
    """Draws the durations of gradients in the simulated queue."""
    out: Path | None = None
    """Folder for the table."""
    json: Json = False
    """Print the table as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Measure, compute, print."""
        given = {"--update-ns": self.update_ns, "--wire-ns": self.wire_ns, "--fixed-us": self.fixed_us}
        for name, value in given.items():
            if value is not None:
                AT_LEAST_ZERO.check(name, value)
        if self.out is not None:
            writable(self.out)
        from ..bench import Costs, capacity, measure_costs, simulated_rate
        from ._progress import working

        if self.update_ns is None or self.wire_ns is None:
            with working("measuring an update and the encryption", console):
                costs = measure_costs(fixed=self.fixed_us * 1e-6)
        else:
            costs = Costs(0.0, 0.0, self.fixed_us * 1e-6)
        costs = Costs(
            costs.update if self.update_ns is None else self.update_ns * 1e-9,
            costs.wire if self.wire_ns is None else self.wire_ns * 1e-9,
            costs.fixed,
        )
        heads = [
            "parameters",
            "wire",
            "updates per second",
            "limited by",
            "workers",
            "mean delay",
            "with twice as many",
        ]
        cells, rows = [], []
        for row in capacity(costs, self.sizes, self.gigabits, self.gradient, self.points):
            workers = max(1, round(row.workers))
            transfer = row.workers / row.rate - self.gradient - 1 / row.rate
            ends = [
                simulated_rate(many, self.gradient, 1 / row.rate, max(0.0, transfer), seed=self.seed)
                for many in (workers, 2 * workers)
            ]
            queue = {"mean_delay": ends[0][1], "rate_of_twice": ends[1][0], "mean_delay_of_twice": ends[1][1]}
            rows.append({**asdict(row), "workers": workers, **queue})
            numbers = [f"{row.size:,}", "bf16" if row.bf16 else "fp32", f"{row.rate:,.1f}", row.limit, f"{workers:,}"]
            cells.append([*numbers, f"{ends[0][1]:,.1f}", f"{ends[1][0]:,.1f}/s, delay {ends[1][1]:,.1f}"])
        title = (
            f"one server: {self.gigabits:g} Gbit/s, {self.gradient:g} s per gradient, {1e9 * costs.update:.2f} ns per "
            f"parameter, {1e9 * costs.wire:.2f} ns per byte, {1e6 * costs.fixed:.0f} us per update"
        )
        _show(console, title, heads, cells, {"rows": rows, "costs": asdict(costs)})
        command = f"latecomer bench capacity --gigabits {self.gigabits:g} --gradient {self.gradient:g}"
        command += f" --sizes {' '.join(map(str, self.sizes))} --points {self.points}"
        command += (
            f" --update-ns {1e9 * costs.update:.4g} --wire-ns {1e9 * costs.wire:.4g} --fixed-us {self.fixed_us:g}"
        )
        command += f" --seed {self.seed}" if self.seed else ""
        _write(
            console,
            self.out,
            "capacity",
            title,
            heads,
            cells,
            command,
            [dict(zip(heads, c, strict=True)) for c in cells],
        )


def _show(console: Console, title: str, heads: list[str], rows: Any, data: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=title)
    for head in heads:
        table.add_column(head, no_wrap=head in ("what", "parameters"))
    for row in rows:
        table.add_row(*row)
    if not console.is_terminal:
        console.width = 140
    show(console, table, data)


def _write(
    console: Console, out: Path | None, name: str, title: str, heads: list[str], rows: Any, command: str, data: Any
) -> None:
    if out is None:
        return
    from ..report.markdown import write_table

    write_table(out, name, title, heads, rows, command, data)
    print_text(console, f"Table written to {out / name}.md, rows to {out / name}.json")
