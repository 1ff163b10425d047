"""What a second core brings to a sweep: runs per second on 2 processes over 1, one torch thread each.

    python benchmarks/sweep.py [--problem digits] [--runs 24] [--steps 4000] [--rounds 1]

Both do the same runs into fresh stores, in turn. Starting processes and importing torch is counted: a longer sweep
hides it better.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from latecomer.experiments import Grid, Store, Sweep, run_sweep


def wall(sweep: Sweep, processes: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = list(run_sweep(sweep, Store(Path(folder)), processes))
        seconds = time.perf_counter() - start
    if len(done) != len(sweep.runs()):
        raise RuntimeError(f"{len(done)} runs were done")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="digits")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    sweep = Sweep(
        "benchmark",
        args.problem,
        "data-dependent",
        steps=args.steps,
        seeds=tuple(range(args.runs)),
        grids=(Grid("ordered-momentum", {"lr": [0.01]}),),
        evaluate_every=args.steps,
        delay_options={"workers": 7, "slow_share": 0.1},
    )
    wall(replace(sweep, steps=20, seeds=(0,)), 1)  # data and caches
    one, two = [], []
    for _ in range(args.rounds):
        one.append(wall(sweep, 1))
        two.append(wall(sweep, 2))
    ratio = statistics.median(a / b for a, b in zip(one, two, strict=True))
    table = Table("processes", "seconds", title=f"{args.runs} runs of {args.steps} updates on {args.problem}")
    table.add_row("1", f"{statistics.median(one):.1f}")
    table.add_row("2", f"{statistics.median(two):.1f}")
    Console().print(table)
    Console().print(f"2 processes are {ratio:.2f} times as fast as 1")


if __name__ == "__main__":
    main()
