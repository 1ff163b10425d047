"""How the demo's learning rates were chosen: mean final F1 over a grid, on seeds that the demo does not use.

python benchmarks/demo_rates.py [--steps 800] [--seeds 8]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from latecomer import simulate
from latecomer.demo.runs import runs as demo

RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
FIRST_SEED = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("method", *(f"lr {rate:g}" for rate in RATES), "best", title="Mean final F1")
    for method, options in demo.METHOD_OPTIONS.items():
        means = []
        for rate in RATES:
            f1 = []
            for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
                trace = demo.make_trace(args.steps, seed)
                changed = {**options, "lr": rate}
                run = simulate(demo.problem(), method, trace, seed=seed, evaluate_every=args.steps, **changed)
                f1.append(run.final["f1"])
            means.append(float(np.mean(f1)))
        table.add_row(method, *(f"{mean:.3f}" for mean in means), f"{RATES[int(np.argmax(means))]:g}")
    Console().print(table)


if __name__ == "__main__":
    main()
