"""Gradients a CPU second on the paper's problems: a bare loop, the same loop with channels last, the simulator.

    python benchmarks/gradients.py [--problem mnist] [--width 1.0] [--batches 40] [--rounds 7]

Convolutions are nearly all of a run's time, so this is where a run can be made faster. The bare loop is the peer: a
forward, backward and step of torch's fused SGD on batches that are in memory, in torch's usual layout. All take turns
in blocks on one thread; a ratio is the median over rounds. An evaluation is given in gradients of the bare loop.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import latecomer as lc
from latecomer.problems.base import Problem
from latecomer.simulation import Simulation

LAYOUTS = {"usual": torch.contiguous_format, "channels last": torch.channels_last}


def bare(problem: Problem, layout: torch.memory_format) -> Callable[[], None]:
    model = problem.model(0).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    batches = [problem.batch(i, 0) for i in range(50)]
    at = iter(range(1_000_000_000))

    def step() -> None:
        optimizer.zero_grad()
        problem.loss(model, batches[next(at) % 50]).backward()
        optimizer.step()

    return step


def simulated(problem: Problem, updates: int) -> Callable[[], None]:
    trace = lc.delays.DataDependent(workers=7, slow_share=0.1).trace(steps=updates, seed=0)
    return Simulation(problem, "ordered-momentum", trace, {"lr": 1e-4}).advance


def cpu(function: Callable[[], Any], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - start) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=("mnist", "cifar10"), default="mnist")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--batches", type=int, default=40, help="gradients a block")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = {"weights": "none"} if args.problem == "cifar10" else {}
    problem: Problem = lc.problems.PROBLEMS[args.problem](width=args.width, split="validation", **options)
    loops = {f"bare loop, {name} layout": bare(problem, layout) for name, layout in LAYOUTS.items()}
    loops["simulator, ordered-momentum"] = simulated(problem, args.batches * args.rounds + 10)
    for loop in loops.values():
        cpu(loop, 5)
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(args.rounds):
        for name, loop in loops.items():
            times[name].append(cpu(loop, args.batches))
    floor = times["bare loop, usual layout"]
    title = f"{args.problem}, width {args.width:g}, batch 16, one thread"
    table = Table("", "gradients a CPU second", "over the bare loop", title=title)
    for name, values in times.items():
        ratio = statistics.median(f / v for f, v in zip(floor, values, strict=True))
        table.add_row(name, f"{1 / statistics.median(values):.0f}", f"{ratio:.2f}")
    model = problem.model(0)
    model.eval()
    with torch.no_grad():
        evaluation = min(cpu(lambda: problem.evaluate(model), 1) for _ in range(3))
    table.add_row("evaluation on 5,000 images", f"{evaluation / statistics.median(floor):.0f} gradients' time", "")
    Console().print(table)


if __name__ == "__main__":
    main()
