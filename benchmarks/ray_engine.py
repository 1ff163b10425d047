"""Updates a second of the Ray engine with two workers, against Ray's documented asynchronous parameter server.

    python benchmarks/ray_engine.py [--sizes 100000 1000000] [--updates 400] [--rounds 5] [--ways shared zeromq ...]

All of them run on one Ray, in turns, and the median of the ratios of a round counts. The gradient is a copy of the
parameters everywhere. *shared* is the engine as it is on the server's own machine; the other rows are what a
worker on another machine gets, without the network itself: encrypted ZeroMQ, the same with bfloat16, and Ray's object
store.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import latecomer as lc
from engine import Copy, rays
from latecomer.engines.cluster import Cluster
from latecomer.engines.ray import RayEngine

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
    """Seconds an update."""
    clock = Clock()
    lc.fit(
        Copy(size), optimizer="ordered-momentum", lr=1e-4, beta=0.1, workers=2, min_workers=2,
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    cluster = Cluster(cpus=4)
    cluster.connect()
    try:
        for size in given.sizes:
            rounds: dict[str, list[float]] = {name: [] for name in (*given.ways, PEER)}
            for _ in range(given.rounds):
                for name in given.ways:
                    rounds[name].append(ours(size, given.updates, WAYS[name]))
                rounds[PEER].append(rays(size, max(20, given.updates // 4)))
            table = Table("what", "updates a second", "over Ray's", "bar", title=f"Ray engine, {size:,} parameters")
            for name, times in rounds.items():
                ratio = statistics.median(peer / ours for peer, ours in zip(rounds[PEER], times, strict=True))
                bar = f">= {BARS[size]:g}" if size in BARS and name == "shared" else ""
                table.add_row(name, f"{1 / statistics.median(times):,.0f}", f"{ratio:.1f}x", bar)
            Console().print(table)
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
