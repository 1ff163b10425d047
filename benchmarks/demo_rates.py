"""How the demo's learning rates were chosen: the lowest mean loss at the end of a run, among eight per method.

The seeds are not those of the demo, and the loss is that of validation images, which the demo trains on. Synchronous
training, which updates with the mean of eight gradients, has eight times the rates of the others, and four values of
beta to choose from: what the others are measured against is tuned the most.

python benchmarks/demo_rates.py --out docs/demo/rates.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from latecomer._util.parallel import in_parallel
from latecomer.demo.runs import METHOD_OPTIONS, SYNCHRONOUS, WORKERS, run_method

SYNCHRONOUS_BETAS = (0.1, 0.2, 0.5, 1.0)
RATES = (0.003125, 0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
FIRST_SEED = 100


def final_loss(method: str, seed: int, steps: int, rate: float, beta: float | None) -> tuple[str, float, float]:
    """Return the name of a row, the learning rate and the last loss of a run."""
    factor, other = rate / METHOD_OPTIONS[method]["lr"], {} if beta is None else {"beta": beta}
    run = run_method(method, seed, steps, factor, split="validation", **other)
    return _row(method, beta), rate, float(run.history["loss"][-1])


def _row(method: str, beta: float | None) -> str:
    return method if beta is None else f"{method}, beta {beta:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    methods = [method for method, options in METHOD_OPTIONS.items() if "lr" in options]
    choices = [(m, beta) for m in methods for beta in (SYNCHRONOUS_BETAS if m == SYNCHRONOUS else (None,))]
    scale = {_row(*choice): WORKERS if choice[0] == SYNCHRONOUS else 1 for choice in choices}
    seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)
    jobs = [
        (method, seed, args.steps, rate * scale[_row(method, beta)], beta)
        for method, beta in choices for seed in seeds for rate in RATES
    ]  # fmt: skip
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
    for method in scale:
        means = [float(np.mean(found[method, rate * scale[method]])) for rate in RATES]
        best = RATES[int(np.nanargmin(means))] * scale[method]
        lines.append(f"| {method} | {' | '.join(f'{mean:.3f}' for mean in means)} | {best:g} |")
    text = "\n".join([*lines, "", "`python benchmarks/demo_rates.py --out docs/demo/rates.md`", ""])
    print(text)
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
