"""Sequences of uneven length: not waiting against waiting for the slowest, by the wall clock and by a virtual one."""

from __future__ import annotations

import copy
import heapq
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from latecomer._util.checks import POSITIVE, whole_number
from latecomer._util.files import atomic, writable
from latecomer._util.intervals import Interval, mean
from latecomer._util.seeds import uniforms
from latecomer.cli._entry import run
from latecomer.cli._progress import watched
from latecomer.core.flat import FlatModule
from latecomer.core.gradient import evaluated
from latecomer.delays import SampleCost
from latecomer.delays.base import groups_from
from latecomer.optim import AsyncSGD
from latecomer.policy import Synchronous, Ticket
from latecomer.problems import Problem, Text
from latecomer.report.markdown import write_table
from latecomer.server import Server
from latecomer.simulation import simulate
from latecomer.trace import Trace
from latecomer.training import Callback, fit

__all__ = ["Straggler", "synchronous_trace"]

METHODS: Mapping[str, dict[str, Any]] = {
    "synchronous momentum": {"method": "momentum", "beta": 0.1},
    "async-sgd": {"method": "async-sgd"},
    "ordered-momentum": {"method": "ordered-momentum", "beta": 0.1},
    "catch-up": {"method": "catch-up", "beta": 0.1},
}
"""What is compared: the first waits for all workers before every update."""
SYNCHRONOUS = "synchronous momentum"
_CLOCKS = ("real", "virtual")


class Straggler:
    """Synchronous and asynchronous training on the same data: how long each takes to the same validation loss.

    Every method gets its best learning rate of the list, by its last validation loss with the first seed; what counts
    is measured with the seeds after it. The target is what synchronous training reached at the end, with the same seed
    on the same clock. The real clock is that of processes on this machine, which evaluate nothing meanwhile: snapshots
    are taken as they train, and evaluated afterwards. The virtual clock has more workers than the machine has cores;
    what a gradient of each length costs was measured here just before.

    Args:
        problem: What to train, with groups that cost unevenly; the text problem by default.
        steps: Contributions of a synchronous run.
        lrs: Learning rates to try.
        seeds: How many seeds to measure with, after the one that chooses learning rates.
        workers: Real workers.
        virtual_workers: Workers of the virtual clock.
        engine: Where the real ones are, by name.
        budget: How many times as many contributions the others may use: it is time that counts, not contributions.
        evaluations: Evaluations of a synchronous run.
        seed: The first seed: draws the samples, initialises the model.
        keep: A file for what is done, from which a comparison that was interrupted goes on.

    Examples:
        >>> small = Text(width=8, layers=1, heads=2, lengths=(8, 32), shares=(0.8, 0.2), evaluated=64, limit=200_000)
        >>> options = {"lrs": (0.1,), "seeds": 1, "engine": "inline", "evaluations": 2, "virtual_workers": 3}
        >>> comparison = Straggler(small, steps=24, **options)
        >>> len(list(comparison.runs())) == comparison.total
        True
        >>> comparison.table()["clock"].unique(maintain_order=True).to_list(), comparison.table().height
        (['real', 'virtual'], 8)
    """

    def __init__(
        self,
        problem: Problem | None = None,
        *,
        steps: int = 2000,
        lrs: Sequence[float] = (0.1, 0.3, 1.0),
        seeds: int = 3,
        workers: int = 2,
        virtual_workers: int = 8,
        engine: str = "local",
        budget: float = 2.0,
        evaluations: int = 20,
        seed: int = 0,
        keep: Path | None = None,
    ) -> None:
        if not lrs:
            raise ValueError("Invalid lrs value: there is no learning rate to try")
        self.problem, self.lrs = problem or Text(), [POSITIVE.check("lrs", lr) for lr in lrs]
        self.steps, self.seeds = whole_number("steps", steps, least=1), whole_number("seeds", seeds, least=1)
        self.workers, self.virtual_workers = workers, whole_number("virtual_workers", virtual_workers, least=1)
        self.engine, self.seed = engine, whole_number("seed", seed)
        self.every = max(1, self.steps // whole_number("evaluations", evaluations, least=1))
        self.longer = max(self.steps, int(POSITIVE.check("budget", budget) * self.steps))
        self._rows: dict[str, dict[str, Any]] = {}
        self._keep = keep
        self._costs: list[float] = []

    @property
    def total(self) -> int:
        """How many runs there are."""
        return len(_CLOCKS) * len(METHODS) * (len(self.lrs) + self.seeds)

    def runs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Do all runs, one after the other, and yield each with a word on it."""
        self._begin()
        for clock in _CLOCKS:
            for name in METHODS:
                for lr in self.lrs:
                    yield f"{name}, lr {lr:g}, {clock}", self._run(clock, name, lr, self.seed)
                best = self._best(clock, name)
                for seed in self._fresh:
                    yield f"{name}, seed {seed}, {clock}", self._run(clock, name, best, seed)

    @property
    def _fresh(self) -> range:
        return range(self.seed + 1, self.seed + 1 + self.seeds)

    def _best(self, clock: str, name: str) -> float:
        return min(self.lrs, key=lambda lr: _last(self._rows[_key(clock, name, lr, self.seed)]))

    # ---- what is kept --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take over what an earlier process has done, or measure what gradients cost and start."""
        about = [repr(self.problem), self.steps, self.every, self.longer, self.workers, self.virtual_workers]
        head = {"about": [*about, self.engine]}
        if self._keep is not None and self._keep.exists():
            lines = [_parsed(line) for line in self._keep.read_text().splitlines()]
            if lines and lines[0] is not None and lines[0].get("about") == head["about"]:
                self._costs = lines[0]["costs"]
                self._rows = {row["key"]: row for row in lines[1:] if row is not None}
        if not self._costs:
            measured = self.problem.costs() if isinstance(self.problem, Text) else (1.0,) * self.problem.groups
            self._costs = [float(cost) for cost in measured]
        if self._keep is not None:
            text = "".join(json.dumps(line) + "\n" for line in [head | {"costs": self._costs}, *self._rows.values()])
            with atomic(self._keep) as temporary:
                temporary.write_text(text)

    def _run(self, clock: str, name: str, lr: float, seed: int) -> dict[str, Any]:
        key = _key(clock, name, lr, seed)
        if key not in self._rows:
            history, delay = (self._real if clock == "real" else self._virtual)(name, lr, seed)
            self._rows[key] = {"key": key, "delay": delay, "history": history}
            if self._keep is not None:
                with self._keep.open("a") as file:
                    file.write(json.dumps(self._rows[key]) + "\n")
        return self._rows[key]

    def _real(self, name: str, lr: float, seed: int) -> tuple[list[dict[str, Any]], float]:
        given, waits = dict(METHODS[name]), name == SYNCHRONOUS
        training = copy.copy(self.problem)
        training.evaluates = False  # type: ignore[attr-defined]
        snapshots = _Snapshots(self.every)
        result = fit(
            training, method=given.pop("method"), workers=self.workers, engine=self.engine, sync=waits,
            steps=self.steps if waits else self.longer, callbacks=[snapshots], seed=seed, lr=lr, **given,
        )  # fmt: skip
        flat = FlatModule(self.problem.model(seed))
        rows = [{"time": at, **evaluated(self.problem, flat, x)} for at, x in snapshots.taken]
        return rows, float(result.trace.delay.mean())

    def _virtual(self, name: str, lr: float, seed: int) -> tuple[list[dict[str, Any]], float]:
        given, waits, shares = dict(METHODS[name]), name == SYNCHRONOUS, self.problem.shares
        policy = None
        if waits:
            trace = synchronous_trace(self.virtual_workers, self.steps, self._costs, shares, seed)
            policy = Synchronous(self.virtual_workers)
        else:
            trace = SampleCost(self.virtual_workers, cost=self._costs, shares=shares).trace(self.longer, seed)
        method = given.pop("method")
        options: dict[str, Any] = {"seed": seed, "policy": policy, "evaluate_every": self.every, "lr": lr, **given}
        result = simulate(self.problem, method, trace, **options)
        return result.history.to_dicts(), float(trace.delay.mean())

    # ---- what came of it -----------------------------------------------------------------------------------------

    def table(self) -> pl.DataFrame:
        """Return one row a method and clock, once all runs are done.

        ``faster`` is the synchronous run's time to the target over the method's, the geometric mean over seeds that
        reached it, with Student's 95 % interval of the logarithms; ``reached`` says how many did.
        """
        found = []
        for clock in _CLOCKS:
            waiting = self._best(clock, SYNCHRONOUS)
            for name in METHODS:
                lr = self._best(clock, name)
                rows = [self._rows[_key(clock, name, lr, seed)] for seed in self._fresh]
                peers = [self._rows[_key(clock, SYNCHRONOUS, waiting, seed)] for seed in self._fresh]
                times = [_reached(row, _last(peer)) for row, peer in zip(rows, peers, strict=True)]
                waited = [_reached(peer, _last(peer)) for peer in peers]
                met = [(w, t) for w, t in zip(waited, times, strict=True) if math.isfinite(t) and t > 0]
                faster = _ratio([w / t for w, t in met])
                ends = [row["history"][-1] for row in rows]
                by_group = [key for key in ends[0] if key.startswith("loss_")]
                found.append(
                    {
                        "clock": clock,
                        "method": name,
                        "lr": lr,
                        "seconds": _mean([t for _, t in met]),
                        "reached": len(met),
                        "faster": faster.value,
                        "faster_low": faster.low,
                        "faster_high": faster.high,
                        "total": _mean([end["time"] for end in ends]),
                        "loss": _mean([end["loss"] for end in ends]),
                        "shortest": _mean([end[by_group[0]] for end in ends]) if by_group else math.nan,
                        "longest": _mean([end[by_group[-1]] for end in ends]) if by_group else math.nan,
                        "delay": _mean([row["delay"] for row in rows]),
                    }
                )
        return pl.DataFrame(found)


class _Snapshots(Callback):
    """Copies the parameters every so many arrivals, with the time."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.taken: list[tuple[float, Tensor]] = []

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival % self.every == 0 or outcome.arrival == run.steps:
            self.taken.append((run.now, run.state.flat.x.detach().clone()))


def _key(clock: str, name: str, lr: float, seed: int) -> str:
    return f"{clock}/{name}/{lr!r}/{seed}"


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # the line that a killed process was writing
        return None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _ratio(values: Sequence[float]) -> Interval:
    if not values:
        return Interval(math.nan, math.nan, math.nan)
    found = mean([math.log(value) for value in values])
    high = math.exp(found.high) if found.high < 700 else math.inf
    return Interval(math.exp(found.value), math.exp(found.low), high)


def _last(row: dict[str, Any]) -> float:
    loss = float(row["history"][-1]["loss"])
    return loss if math.isfinite(loss) else math.inf


def _reached(row: dict[str, Any], target: float) -> float:
    """Return when a run was first at the target, infinity if never."""
    return next((float(entry["time"]) for entry in row["history"] if entry["loss"] <= target), math.inf)


def synchronous_trace(
    workers: int, steps: int, costs: Sequence[float], shares: Sequence[float], seed: int = 0
) -> Trace:
    """Make the schedule of workers that wait for each other before every update, with what a job costs by its group.

    Examples:
        >>> trace = synchronous_trace(3, 12, costs=(1.0, 10.0), shares=(0.5, 0.5))
        >>> int(trace.delay.max()), trace.header.policy
        (0, 'synchronous')
    """
    x = torch.nn.Parameter(torch.zeros(1))
    names = tuple(f"group {i}" for i in range(len(costs)))
    server = Server(
        AsyncSGD([x], lr=0.0), workers=workers, policy=Synchronous(workers), seed=seed, groups=names, clock="virtual"
    )
    now, nothing = 0.0, torch.zeros(1)
    while server.arrivals < steps:
        out: list[tuple[float, int, int, Ticket]] = []
        for worker in range(workers):
            ticket = server.issue(worker, at=now)
            group = int(groups_from(uniforms(np.array([ticket.sample], dtype=np.uint64)), tuple(shares))[0])
            heapq.heappush(out, (now + costs[group], worker, group, ticket))
        while out and server.arrivals < steps:
            now, _, group, ticket = heapq.heappop(out)
            server.receive(ticket, nothing, finite=True, group=group, at=now)
    return server.trace("synchronous, by cost")


@dataclass(frozen=True)
class Command:
    """Compare training that never waits with training that waits for the slowest, on sequences of uneven length.

    Interrupted, it goes on where it was when called again with the same --out.

    Example: python benchmarks/straggler.py --steps 2000 --lrs 0.1 0.3 1.0 --out results
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
        table = Table(title=title)
        for head in heads:
            table.add_column(head, no_wrap=head in ("clock", "method", "times as fast", "reached"))
        for row in cells:
            table.add_row(*row)
        if not console.is_terminal:
            console.width = 140
        console.print(table)
        given = {"steps": self.steps, "lrs": " ".join(f"{lr:g}" for lr in self.lrs), "seeds": self.seeds}
        given |= {"workers": self.workers, "virtual-workers": self.virtual_workers, "width": self.width}
        given |= {"layers": self.layers, "lengths": " ".join(map(str, self.lengths)), "evaluations": self.evaluations}
        given |= {"seed": self.seed}
        command = "python benchmarks/straggler.py " + " ".join(f"--{name} {value}" for name, value in given.items())
        if self.out is not None and keep is not None:
            write_table(self.out, "straggler", title, heads, cells, command, rows.to_dicts())
            console.print(f"Table written to {self.out / 'straggler'}.md, rows to {self.out / 'straggler'}.json")
            keep.unlink(missing_ok=True)

    def _cells(self, row: dict[str, Any]) -> list[str]:
        times = ["never", ""]
        if row["reached"]:
            spread = f" ({row['faster_low']:.2f} to {row['faster_high']:.2f})" if row["reached"] > 1 else ""
            times = [f"{row['seconds']:.2f}", f"{row['faster']:.2f}{spread}"]
        losses = [f"{row[key]:.3f}" for key in ("loss", "shortest", "longest")]
        start = [row["clock"], row["method"], f"{row['lr']:g}", *times, f"{row['reached']} of {self.seeds}"]
        return [*start, f"{row['total']:.2f}", *losses, f"{row['delay']:.2f}"]


if __name__ == "__main__":
    sys.exit(run(Command, "python benchmarks/straggler.py", __doc__ or ""))
