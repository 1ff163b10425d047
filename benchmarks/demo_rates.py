"""How the demo's learning rates were chosen: the lowest mean loss at the end of a run, among eight per method.

The seeds are not those of the demo, and the loss is that of validation images, which the demo trains on. Synchronous
training, which updates with the mean of eight gradients, has eight times the rates of the others.

python benchmarks/demo_rates.py --out docs/demo/rates.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from latecomer._util.parallel import in_parallel
from latecomer.demo.runs import METHOD_OPTIONS, SYNCHRONOUS, WORKERS, run_method

RATES = (0.003125, 0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
FIRST_SEED = 100


def final_loss(method: str, seed: int, steps: int, rate: float) -> tuple[str, float, float]:
    """Return the last loss of a run at a learning rate."""
    factor = rate / METHOD_OPTIONS[method]["lr"]
    return method, rate, float(run_method(method, seed, steps, factor, split="validation").history["loss"][-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    methods = [method for method, options in METHOD_OPTIONS.items() if "lr" in options]
    scale = {method: WORKERS if method == SYNCHRONOUS else 1 for method in methods}
    seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)
    jobs = [(method, seed, args.steps, rate * scale[method]) for method in methods for seed in seeds for rate in RATES]
    found: dict[tuple[str, float], list[float]] = {}
    for method, rate, loss in in_parallel(final_loss, jobs, args.processes):
        found.setdefault((method, rate), []).append(loss)
    lines = [
        f"# Learning rates of the demo: {args.steps:,} arrivals, seeds {seeds[0]} to {seeds[-1]}",
        "",
        "Mean loss on validation images at the end of a run, by learning rate. The learning rates of "
        f"`{SYNCHRONOUS}` are {WORKERS} times those of the heading.",
        "",
        f"| method | {' | '.join(f'{rate:g}' for rate in RATES)} | chosen |",
        f"|---|{'---|' * len(RATES)}---|",
    ]
    for method in methods:
        means = [float(np.mean(found[method, rate * scale[method]])) for rate in RATES]
        best = RATES[int(np.nanargmin(means))] * scale[method]
        lines.append(f"| {method} | {' | '.join(f'{mean:.3f}' for mean in means)} | {best:g} |")
    text = "\n".join([*lines, "", "`python benchmarks/demo_rates.py --out docs/demo/rates.md`", ""])
    print(text)
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
