"""Updates per second of the Ray engine with two workers, against Ray's documented asynchronous parameter server.

    python benchmarks/ray_engine.py [--sizes 100000 1000000] [--updates 400] [--rounds 5] [--ways shared zeromq ...]
                                    [--out docs/results]

All of them run on one Ray, in turns, and the median of the ratios of a round counts. The gradient is a copy of the
parameters everywhere. *shared* is the engine as it is on the server's own machine; the other rows are what a
worker on another machine gets, without the network itself: encrypted ZeroMQ, the same with bfloat16, and Ray's object
store.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import latecomer as lc
from engine import Copy, ray_example
from latecomer.engines.ray.cluster import Cluster
from latecomer.engines.ray.engine import RayEngine
from latecomer.report.markdown import write_table

WAYS: dict[str, dict[str, Any]] = {
    "shared": {},
    "zeromq": {"shared": False},
    "bf16": {"shared": False, "bf16": True},
    "objects": {"data_plane": "object-store"},
}
BARS = {100_000: 5.0, 1_000_000: 2.0}
PEER = "Ray's parameter server"
WARM = 10  # updates that are not timed, as with the peer


def ours(size: int, updates: int, options: dict[str, Any]) -> float:
    """Seconds per update."""
    clock = Clock()
    lc.fit(
        Copy(size), method="ordered-momentum", lr=1e-4, beta=0.1, workers=2, min_workers=2,
        engine=RayEngine(**options), steps=updates + WARM, callbacks=[clock],
    )  # fmt: skip
    return clock.seconds


class Clock(lc.training.Callback):
    """Times a run from its tenth arrival."""

    seconds = start = float("nan")

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == WARM:
            self.start = run.now
        elif outcome.arrival == run.steps:
            self.seconds = (run.now - self.start) / (run.steps - WARM)


TITLE = "Ray engine, two workers, on one machine"
HEADS = ["parameters", "what", "updates per second", "over Ray's", "lowest to highest", "bar"]


def measured(size: int, updates: int, count: int, ways: list[str]) -> list[dict[str, Any]]:
    """Let all take turns, and return a row for each."""
    rounds: dict[str, list[float]] = {name: [] for name in (*ways, PEER)}
    for _ in range(count):
        for name in ways:
            rounds[name].append(ours(size, updates, WAYS[name]))
        rounds[PEER].append(ray_example(size, max(20, updates // 4)))
    rows = []
    for name, times in rounds.items():
        ratios = [peer / ours for peer, ours in zip(rounds[PEER], times, strict=True)]
        row = {"size": size, "what": name, "rate": 1 / statistics.median(times), "ratio": statistics.median(ratios)}
        rows.append(row | {"ratios": ratios, "bar": BARS.get(size) if name == "shared" else None})
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    spread = "" if row["what"] == PEER else f"{min(row['ratios']):.1f} to {max(row['ratios']):.1f}"
    bar = "" if row["bar"] is None else f">= {row['bar']:g}x: {'met' if row['ratio'] >= row['bar'] else 'missed'}"
    return [f"{row['size']:,}", row["what"], f"{row['rate']:,.0f}", f"{row['ratio']:.1f}x", spread, bar]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--out", type=Path, help="folder for the table, ray_engine.md, and the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cluster = Cluster(cpus=4)
    cluster.connect()
    rows = []
    try:
        for size in given.sizes:
            found = measured(size, given.updates, given.rounds, given.ways)
            table = Table(*HEADS, title=TITLE)
            for row in found:
                table.add_row(*cells(row))
            Console().print(table)
            rows += found
    finally:
        cluster.close()
    if given.out is not None:
        command = shlex.join(["python", "benchmarks/ray_engine.py", *sys.argv[1:]])
        write_table(given.out, "ray_engine", TITLE, HEADS, [cells(row) for row in rows], command, rows)


if __name__ == "__main__":
    main()
