"""The counter-example to Theorem 1 at growing M: mean squared gradient over the theorem's explicit bound.

    python benchmarks/counter_example.py [--workers 51 101 201] [--seeds 1]

Everything is within the theorem's assumptions, with its own beta and lr. A ratio above one is a violation. T grows with
(M - 1)², so each further row takes four times as long: 201 workers are 512,000 updates a run.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from rich.console import Console
from rich.table import Table

import latecomer as lc

METHODS = ("ordered-momentum", "catch-up", "momentum", "async-sgd")
SIGMA = 0.3  # noise +0.9 with probability 0.1, else -0.1


def over_bound(workers: int, method: str, dependent: bool, seed: int) -> float:
    m, steps = workers - 1, 32_000 * ((workers - 1) // 50) ** 2
    delta = SIGMA**2 * steps / (1280 * m**2)
    beta = min(1 / (16 * m), math.sqrt(5 * delta) / (SIGMA * math.sqrt(steps)))
    lr = min(1 / (32 * math.sqrt(2) * m), math.sqrt(5 * delta) / (2 * SIGMA * math.sqrt(2 * steps)))
    bound = 640 * delta * m / steps + 16 * SIGMA * math.sqrt(5 * delta) / math.sqrt(steps)
    trace = lc.delays.SampleCost(workers, (1.0, 100.0), 0.1, dependent=dependent).trace(steps, seed)
    start = math.sqrt(2 * delta)
    problem = lc.problems.quadratic(1, (1.0, 1.0), centres=(0.1, -0.9), shares=(0.9, 0.1), start=start, noise=0.0)
    total, last = 0.0, start**2

    def watch(server: lc.Server) -> None:
        nonlocal total, last
        total += last
        last = server.optimizer.param_groups[0]["params"][0].item() ** 2

    options = {} if method == "async-sgd" else {"beta": beta}
    lc.simulate(problem, method, trace, lr=lr, evaluate_every=steps, watch=watch, **options)
    return total / steps / bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[51, 101])
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    table = Table("M", "delays", *METHODS, title="Mean squared gradient / bound of Theorem 1")
    console = Console()
    for workers in args.workers:
        for dependent in (True, False):
            cells = []
            for method in METHODS:
                console.print(f"[dim]M = {workers}, {method} ...[/dim]")
                values = [over_bound(workers, method, dependent, seed) for seed in range(args.seeds)]
                cells.append(f"{np.mean(values):.3f}")
            table.add_row(str(workers), "by sample" if dependent else "independent", *cells)
    console.print(table)


if __name__ == "__main__":
    main()
