"""CPU seconds of a gradient on windows of text by their length, and how often as much as on the shortest.

    python benchmarks/text_costs.py [--width 64] [--layers 2] [--lengths 64 128 256 512] [--repeats 9]

This is what makes a sample slow in `latecomer.problems.text`. One thread, as a worker on a shared machine has.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table

from latecomer.problems.text import Text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    problem = Text(
        width=args.width,
        layers=args.layers,
        heads=args.heads,
        lengths=args.lengths,
        shares=[1 / len(args.lengths)] * len(args.lengths),
        batch_size=args.batch_size,
    )
    parameters = sum(p.numel() for p in problem.model(0).parameters())
    title = f"{parameters:,} parameters, {args.batch_size} windows a batch, median of {args.repeats}"
    table = Table("length", "CPU milliseconds", "ratio to the shortest", title=title)
    costs = problem.costs(args.repeats)
    for length, cost in zip(problem.lengths, costs, strict=True):
        table.add_row(str(length), f"{1000 * cost:.1f}", f"{cost / costs[0]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
