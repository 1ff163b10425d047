"""What one update costs: ordered momentum against torch's fused SGD, every rule against its memory traffic.

    python benchmarks/optimizers.py [--sizes 1000000 12000000] [--threads 1] [--seconds 4]

Both tables come from one run. Candidates take turns in short blocks, so that a change in the machine's mood meets all
of them; a ratio is the median over blocks of (candidate / peer in the same round).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from latecomer.optim import METHODS, Arrival, AsyncOptimizer

# Passes over memory that a rule cannot do without, per update: what it reads and what it writes.
TRAFFIC = {
    "async-sgd": ("x g", "x"),
    "delay-adaptive": ("x g", "x"),
    "delay-filtered": ("x g", "x"),
    "momentum": ("x g m", "x m"),
    "ordered-momentum": ("x g m", "x m"),
    "catch-up": ("x g m", "x m"),
    "catch-up-adamw": ("x g m v", "x m v"),
    "clipped-catch-up": ("g x g m", "x m"),
    "balanced-catch-up": ("g x g m", "x m"),
    "balanced-momentum": ("g x g m", "x m"),
    "mu2": ("x g d w", "x d w x_prev"),
    "ordered-mu2": ("x g d w", "x d w x_prev"),
    "ordered-mu2-anytime": ("x g q w", "x q w x_prev"),
}
OPTIONS = {"delay-adaptive": {"workers": 7}, "delay-filtered": {"threshold": 14}}
DELAY = 3
LOOP, SERVED = "step(delay=3), in a loop", "step(arrival=...), served"


def served(name: str, n: int) -> Callable[[], None]:
    """Make an update as a server does it: one late contribution on a flat tensor."""
    x = torch.nn.Parameter(torch.zeros(n))
    x.grad = torch.full((n,), 1e-3)
    opt: AsyncOptimizer = METHODS[name]([x], lr=1e-3, **OPTIONS.get(name, {}))
    opt.step(arrival=Arrival(1, 1))
    for t in range(2, DELAY + 2):
        opt.step(arrival=Arrival(t, t))

    def step() -> None:
        t = opt.version
        opt.step(arrival=Arrival(t, t - DELAY, worker=0, workers=7))

    return step


def alone(n: int) -> Callable[[], None]:
    """Make an update of ordered momentum as in a user's own loop."""
    x = torch.nn.Parameter(torch.zeros(n))
    x.grad = torch.full((n,), 1e-3)
    opt = METHODS["ordered-momentum"]([x], lr=1e-3)
    for _ in range(DELAY + 1):
        opt.step()
    return lambda: opt.step(delay=DELAY)


def torch_sgd(n: int) -> Callable[[], None]:
    x = torch.nn.Parameter(torch.zeros(n))
    x.grad = torch.full((n,), 1e-3)
    opt = torch.optim.SGD([x], lr=1e-3, momentum=0.9, fused=True)
    opt.step()
    return opt.step


def axpy(n: int) -> Callable[[], None]:
    """Make the floor: ``a += b`` in place, three passes over memory with nothing but an addition in between."""
    a, b = torch.zeros(n), torch.ones(n)
    return lambda: a.add_(b)


def time_in_turn(candidates: dict[str, Callable[[], None]], seconds: float) -> dict[str, list[float]]:
    """Seconds per call, one entry a round; in each round every candidate has a block, in turn."""
    for step in candidates.values():
        step()
    rounds: dict[str, list[float]] = {name: [] for name in candidates}
    end = time.perf_counter() + seconds * len(candidates)
    block = max(1, int(0.01 / _time(next(iter(candidates.values())), 3)))
    while time.perf_counter() < end or len(rounds[next(iter(rounds))]) < 5:
        for name, step in candidates.items():
            rounds[name].append(_time(step, block))
    return rounds


def _time(step: Callable[[], None], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def ratio(a: list[float], b: list[float]) -> float:
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000, 12_000_000])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="per candidate and size")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    console = Console()

    against_torch = Table(title=f"One update / torch.optim.SGD(momentum=0.9, fused=True), {args.threads} thread(s)")
    against_torch.add_column("ordered momentum")
    traffic = Table(title="One update / the memory traffic its rule needs (1.00: the speed of a += b in place)")
    traffic.add_column("method")
    traffic.add_column("passes", justify="right")
    for n in args.sizes:
        against_torch.add_column(f"{n:,} floats", justify="right")
        traffic.add_column(f"{n:,} floats", justify="right")

    loops: dict[str, list[str]] = {LOOP: [], SERVED: []}
    rows: dict[str, list[str]] = {name: [] for name in TRAFFIC}
    for n in args.sizes:
        console.print(f"[dim]measuring at {n:,} floats ...[/dim]")
        compared = {"torch": torch_sgd(n), LOOP: alone(n), SERVED: served("ordered-momentum", n)}
        times = time_in_turn(compared, args.seconds)
        for name, cells in loops.items():
            cells.append(f"{ratio(times[name], times['torch']):.3f}")
        times = time_in_turn({"floor": axpy(n), **{name: served(name, n) for name in TRAFFIC}}, args.seconds / 2)
        for name, (reads, writes) in TRAFFIC.items():
            passes = len(reads.split()) + len(writes.split())
            rows[name].append(f"{ratio(times[name], times['floor']) * 3 / passes:.2f}")
    for name, cells in loops.items():
        against_torch.add_row(name, *cells)
    for name, cells in rows.items():
        reads, writes = TRAFFIC[name]
        traffic.add_row(name, str(len(reads.split()) + len(writes.split())), *cells)
    console.print(against_torch, traffic)


if __name__ == "__main__":
    main()
