"""What one update costs, as a ratio: every rule against torch's fused kernels, and against its memory traffic.

    python benchmarks/optimizers.py [--sizes 1000000 12000000] [--threads 1] [--seconds 4] [--out docs/results]

The first table compares `step()` of an optimizer with `torch.optim.SGD(momentum=0.9, fused=True)` or
`torch.optim.AdamW(fused=True)`, on one flat tensor and on the parameters of a 12-layer transformer. The two take turns
in short blocks, so that a change in the machine's mood meets both. They share all tensors, because the place of a
tensor in memory alone may change its speed by a third; and the tensors are made anew several times. A ratio is the
median over all blocks of (candidate / peer in the same round); the spread is the lowest and highest median of one
making. On one thread CPU seconds are counted, so that other programs on the machine count less.

The second table has the updates as a server makes them, over the memory traffic that the rule needs.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from latecomer.optim import METHODS, Arrival, AsyncOptimizer
from latecomer.report.markdown import Part, write_page

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
    "balanced-adamw": ("g x g m v", "x m v"),
    "rate-free": ("x g z v", "x z v"),
    "mu2": ("x g d w", "x d w x_prev"),
    "ordered-mu2": ("x g d w", "x d w x_prev"),
    "ordered-mu2-anytime": ("x g q w", "x q w x_prev"),
}
OPTIONS = {"delay-adaptive": {"workers": 7}, "delay-filtered": {"threshold": 14}}
DELAY = 3
MAKINGS = 6


class Row(NamedTuple):
    """A row of the first table: a method at a delay, the optimizer of torch it is compared with, the highest ratio."""

    method: str
    delay: int
    peer: str
    bar: float | None = None


SGD, ADAMW = "SGD(momentum=0.9, fused=True)", "AdamW(fused=True)"
ROWS = (
    Row("momentum", 0, SGD, 1.05),
    Row("ordered-momentum", 0, SGD, 1.05),
    Row("ordered-momentum", DELAY, SGD, 1.05),
    Row("catch-up", DELAY, SGD),
    Row("balanced-catch-up", DELAY, SGD),
    Row("catch-up-adamw", 0, ADAMW, 1.1),
    Row("catch-up-adamw", DELAY, ADAMW, 1.5),
    Row("balanced-adamw", DELAY, ADAMW),
    Row("rate-free", 0, ADAMW, 1.5),
    Row("rate-free", DELAY, ADAMW, 1.5),
)


# ---- against torch ----------------------------------------------------------------------------------------


def flat(size: int) -> list[Tensor]:
    return [nn.Parameter(torch.randn(size))]


def transformer(width: int = 256, layers: int = 12, letters: int = 256) -> list[Tensor]:
    """Return the parameters of a character transformer: about 10 million numbers in 150 tensors."""
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    parts = (
        nn.Embedding(letters, width),
        nn.Embedding(letters, width),
        nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
        nn.LayerNorm(width),
        nn.Linear(width, letters),
    )
    return [p for part in parts for p in part.parameters()]


def make_steps(row: Row, params: list[Tensor]) -> dict[str, Callable[[], Any]]:
    """Make an update as in a user's own loop, and the peer's, on the same parameters, gradients and buffers."""
    for p in params:
        p.grad = torch.randn_like(p) * 1e-3
    own = METHODS[row.method](params, lr=1e-6)
    for _ in range(row.delay + 1):  # late gradients of version 1 count as zero
        own.step()
    peer: torch.optim.Optimizer
    if row.peer == SGD:
        peer, names = torch.optim.SGD(params, lr=1e-6, momentum=0.9, fused=True), {"momentum_buffer": "m"}
    else:
        first = "z" if row.method == "rate-free" else "m"
        peer, names = torch.optim.AdamW(params, lr=1e-6, fused=True), {"exp_avg": first, "exp_avg_sq": "v"}
    peer.step()
    for p in params:
        peer.state[p].update({theirs: own.state[p][ours] for theirs, ours in names.items()})
    point = [p.detach().clone() for p in params] if own.reads_point else None

    def update() -> None:
        if point is None:
            own.step(delay=row.delay)
        else:
            own.step(arrival=Arrival(own.t + 1, own.t + 1 - row.delay, point=point))

    return {"own": update, "peer": peer.step}


def against_peer(row: Row, make: Callable[[], list[Tensor]], seconds: float) -> dict[str, Any]:
    """Measure the ratio of one row on one set of parameters."""
    makings: list[list[float]] = []
    times: dict[str, list[float]] = {"own": [], "peer": []}
    for _ in range(MAKINGS):
        rounds = time_in_turn(make_steps(row, make()), seconds / MAKINGS / 2)
        makings.append([a / b for a, b in zip(rounds["own"], rounds["peer"], strict=True)])
        for name, values in rounds.items():
            times[name] += values
    medians = [statistics.median(ratios) for ratios in makings]
    return {
        **row._asdict(),
        "ratio": statistics.median(r for ratios in makings for r in ratios),
        "lowest": min(medians),
        "highest": max(medians),
        "rounds": sum(map(len, makings)),
        **{f"{name}_ms": 1e3 * statistics.median(values) for name, values in times.items()},
    }


def cell(found: dict[str, Any]) -> str:
    return f"{found['ratio']:.2f} ({found['lowest']:.2f} to {found['highest']:.2f})"


# ---- against memory traffic ---------------------------------------------------------------------------------


def served(name: str, n: int) -> Callable[[], None]:
    """Make an update as a server does it: one late contribution on a flat tensor."""
    x = torch.nn.Parameter(torch.zeros(n))
    x.grad = torch.full((n,), 1e-3)
    opt: AsyncOptimizer = METHODS[name]([x], lr=1e-3, **OPTIONS.get(name, {}))
    opt.step(arrival=Arrival(1, 1))
    for t in range(2, DELAY + 2):
        opt.step(arrival=Arrival(t, t))
    point = [x.detach().clone()] if opt.reads_point else None

    def step() -> None:
        t = opt.version
        opt.step(arrival=Arrival(t, t - DELAY, worker=0, workers=7, point=point))

    return step


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
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(calls):
        step()
    return (clock() - start) / calls


def ratio(a: list[float], b: list[float]) -> float:
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000, 12_000_000])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="per ratio")
    parser.add_argument("--out", type=Path, help="folder for the tables, optimizers.md, and the numbers")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    console = Console()

    layouts: dict[str, Callable[[], list[Tensor]]] = {f"{n:,} floats": lambda n=n: flat(n) for n in args.sizes}
    example = transformer()
    layouts[f"12-layer transformer: {sum(p.numel() for p in example):,} floats in {len(example)} tensors"] = transformer
    measured: list[dict[str, Any]] = []
    compared: list[list[str]] = []
    for row in ROWS:
        console.print(f"[dim]measuring {row.method} at delay {row.delay} ...[/dim]")
        found = [{"layout": name, **against_peer(row, make, args.seconds)} for name, make in layouts.items()]
        measured += found
        worst = max(each["ratio"] for each in found)
        reached = "" if row.bar is None else f"<= {row.bar:g}: {'reached' if worst <= row.bar else 'missed'}"
        compared.append([row.method, str(row.delay), row.peer, *map(cell, found), reached])

    floors: dict[str, list[str]] = {name: [] for name in TRAFFIC}
    for n in args.sizes:
        console.print(f"[dim]measuring memory traffic at {n:,} floats ...[/dim]")
        times = time_in_turn({"floor": axpy(n), **{name: served(name, n) for name in TRAFFIC}}, args.seconds / 2)
        for name, cells in floors.items():
            share = ratio(times[name], times["floor"]) * 3 / passes(name)
            measured.append({"layout": f"{n:,} floats", "method": name, "passes": passes(name), "traffic": share})
            cells.append(f"{share:.2f}")

    threads = f"{args.threads} thread" + ("s" if args.threads > 1 else "")
    parts = [
        Part(
            ["method", "delay", "compared with torch's", *layouts, "bar"],
            compared,
            f"One update / torch's, {threads}",
            "The median over all rounds; in brackets the lowest and the highest median of one making. The gradients "
            "are of one size, so the balanced rules measure norms and clip nothing.",
        ),
        Part(
            ["method", "passes", *(f"{n:,} floats" for n in args.sizes)],
            [[name, str(passes(name)), *cells] for name, cells in floors.items()],
            f"One late update / the memory traffic its rule needs, {threads}",
            "1.00 is the speed of `a += b` in place. A pass reads or writes every number once.",
        ),
    ]
    for part in parts:
        table = Table(*part.heads, title=part.title)
        for cells in part.rows:
            table.add_row(*cells)
        console.print(table)
    if args.out is not None:
        command = shlex.join(["python", "benchmarks/optimizers.py", *sys.argv[1:]])
        write_page(args.out, "optimizers", "What one update costs", parts, command, measured)


def passes(method: str) -> int:
    return sum(len(tensors.split()) for tensors in TRAFFIC[method])


if __name__ == "__main__":
    main()
