"""What one simulated arrival costs besides its gradient and its update: microseconds, Python calls, files.

    python benchmarks/arrival.py [--method momentum] [--arrivals 2000] [--rounds 15]

The problem is the quadratic, whose gradient is a formula, so the simulator's own work is what shows. The floor is the
same gradient and the same optimizer's step in a bare loop, in the same run; both take turns, and each figure is the
median over rounds. Calls are Python functions entered per arrival, as ``sys.setprofile`` counts them: those of the
package, in so many of its files, and all, with those of torch and numpy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import latecomer as lc


def simulated(method: str, arrivals: int) -> Callable[[], float]:
    """Return a function that simulates once and returns seconds per arrival, start and end not counted."""
    problem = lc.problems.quadratic()
    traces = [lc.delays.DataDependent(workers=7, slow_share=0.1).trace(steps=n, seed=0) for n in (1, arrivals + 1)]

    def run() -> float:
        seconds = []
        for trace in traces:
            start = time.process_time()
            lc.simulate(problem, method, trace, lr=1e-3, evaluate_every=len(trace))
            seconds.append(time.process_time() - start)
        return (seconds[1] - seconds[0]) / arrivals

    return run


def bare(method: str, arrivals: int) -> Callable[[], float]:
    """Return a function that computes and applies as many gradients in a loop of its own."""
    problem = lc.problems.quadratic()
    x = torch.nn.Parameter(next(problem.model(0).parameters()).detach().clone())
    gradient = torch.zeros_like(x, requires_grad=False)
    optimizer = lc.optim.METHODS[method]([x], lr=1e-3)

    def run() -> float:
        start = time.process_time()
        for sample in range(arrivals):
            batch = problem.batch(sample * 7919, 0)
            problem.gradient(x.detach(), batch, gradient)
            x.grad = gradient
            optimizer.step()
        return (time.process_time() - start) / arrivals

    return run


def calls(method: str, arrivals: int) -> tuple[float, float, int]:
    """Return Python calls per arrival, those of them in the package, and in how many of its files they are."""
    counts: list[Counter[str]] = []
    for n in (200, 200 + arrivals):
        counter: Counter[str] = Counter()

        def note(frame: FrameType, event: str, _: Any, counter: Counter[str] = counter) -> None:
            if event == "call":
                counter[frame.f_code.co_filename] += 1

        trace = lc.delays.DataDependent(workers=7, slow_share=0.1).trace(steps=n, seed=0)
        sys.setprofile(note)
        try:
            lc.simulate(lc.problems.quadratic(), method, trace, lr=1e-3, evaluate_every=n)
        finally:
            sys.setprofile(None)
        counts.append(counter)
    short, long = counts
    often = {file: (long[file] - short[file]) / arrivals for file in long}
    here = str(Path(lc.__file__).parent)
    own = [per_arrival for file, per_arrival in often.items() if file.startswith(here)]
    return sum(often.values()), sum(own), sum(per_arrival > 0.5 for per_arrival in own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="momentum")
    parser.add_argument("--arrivals", type=int, default=2000, help="per round")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    functions = simulated(args.method, args.arrivals), bare(args.method, args.arrivals)
    for function in functions:
        function()
    rounds = [[function() * 1e6 for function in functions] for _ in range(args.rounds)]
    whole, floor = (statistics.median(column) for column in zip(*rounds, strict=True))
    besides = statistics.median(a - b for a, b in rounds)
    number, own, files = calls(args.method, args.arrivals)
    print(f"{args.method}: {whole:.0f} us per arrival, {floor:.0f} of them gradient and update, {besides:.0f} besides")
    print(f"{own:.0f} Python calls in {files} files of the package, {number:.0f} in all")


if __name__ == "__main__":
    main()
