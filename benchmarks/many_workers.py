"""What one simulated arrival costs with 10, 100, 1,000 and 10,000 workers: time and memory.

    python benchmarks/many_workers.py [--arrivals 2000] [--rounds 2] [--out docs/results]
    python benchmarks/many_workers.py --tickets

The problem is the quadratic in 10 dimensions, so that the simulator's own work shows. The first arrivals of every
worker are not measured: their points are all x_1. Times are CPU microseconds per arrival, the least over rounds in
which all numbers of workers take turns. The time for the trace, with the policy of the method, has columns of its own,
and includes the start of a generator per worker; the ratio is that of both together, within this run. Memory is
what a run holds after as many arrivals as workers, without its trace: points, tickets, the record, and what policy and
rule keep per worker.

All methods are measured. `ringmaster-stop` has its default here, R as large as the number of workers. With a smaller
R an update cancels many jobs, and each is started again as a new ticket. ``--tickets`` measures only this: microseconds
per ticket with R = 10.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import latecomer as lc
from latecomer.optim.methods import method_and_policy
from latecomer.report.markdown import write_table
from latecomer.simulation import Simulation

WORKERS = (10, 100, 1000, 10_000)
OPTIONS: dict[str, dict[str, Any]] = {
    "async-minibatch": {"B": 10}, "clipped": {"clip_at": 1.0}, "delay-filtered": {"threshold": 10}, "fadas": {"K": 10},
    "fedbuff": {"K": 10}, "ormo-da": {"L": 1.0}, "picky": {"radius": 1.0}, "rennala": {"S": 10},
    "ringmaster": {"R": 10}, "ringmaster-lmo": {"R": 10},
}  # fmt: skip
"""What is not left at its default; the others have what they have, with 10,000 workers too."""


def simulation(method: str, workers: int, steps: int, **own: Any) -> tuple[Simulation, float]:
    """Return a simulation at its start, and the CPU seconds per arrival that its trace took."""
    rate = {"lr": 1e-3} if "lr" in lc.optim.METHODS[method].arguments else {}
    options = {**rate, **OPTIONS.get(method, {}), **own}
    rule, policy = method_and_policy(method, None, workers, options)
    model = lc.delays.WorkerSpeeds([1.0 + i / workers for i in range(workers)], "exponential", slow_share=0.1)
    start = time.process_time()
    trace = model.trace(steps, 0, policy=policy)
    seconds = (time.process_time() - start) / steps
    return Simulation(lc.problems.quadratic(), rule, trace, options, policy=policy), seconds


def measured(method: str, workers: int, arrivals: int) -> tuple[float, float]:
    """Return seconds per arrival, and those of the trace; over as many arrivals as workers at least: a whole round."""
    before, arrivals = 2 * workers, max(arrivals, workers)
    run, trace = simulation(method, workers, before + arrivals)
    for _ in range(before):
        run.advance()
    gc.collect()
    gc.disable()
    start = time.process_time()
    for _ in range(arrivals):
        run.advance()
    seconds = (time.process_time() - start) / arrivals
    gc.enable()
    return seconds, trace


def per_ticket(workers: int, arrivals: int = 400) -> tuple[float, float, float]:
    """Return tickets per arrival where most are cancelled, and seconds per ticket: simulated, and in the trace."""
    run, trace = simulation("ringmaster-stop", workers, arrivals, R=10)
    start = time.process_time()
    for _ in range(arrivals):
        run.advance()
    seconds, tickets = time.process_time() - start, len(run.trace.columns["ticket"])
    return tickets / arrivals, seconds / tickets, trace * arrivals / tickets


def bytes_per_worker(method: str, workers: int) -> float:
    """Return what a run holds after as many arrivals as workers, per worker."""
    run, _ = simulation(method, workers, workers + 10)
    gc.collect()
    tracemalloc.start()
    for _ in range(workers):
        run.advance()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Tensors of torch are not traced.
    slots = run.server._slots.state_dict()["points"]
    points = sum(t.numel() * t.element_size() for group in slots for point in group for t in point)
    state = run.optimizer.state_dict()["state"]
    kept = sum(t.numel() * t.element_size() for own in state.values() for t in own.values())
    return (held + points + kept) / workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrivals", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--methods", nargs="*", default=list(lc.optim.METHODS))
    parser.add_argument("--tickets", action="store_true", help="measure only what a cancelled ticket costs")
    parser.add_argument("--out", type=Path, help="folder for the table, many_workers.md, and the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.tickets:
        for workers in WORKERS[-2:]:
            tickets, simulated, made = per_ticket(workers)
            Console().print(
                f"{workers:,} workers: {tickets:,.0f} tickets per arrival, {1e6 * simulated:.1f} microseconds each, "
                f"and {1e6 * made:.1f} in the trace"
            )
        return
    columns = [f"{workers:,} workers" for workers in WORKERS]
    heads = ["method", *columns, "10,000 over 10", "trace, 10", "10,000"]
    heads += ["bytes per worker, 10", "100", "1,000", "10,000"]
    title = "one simulated arrival, in microseconds, by the number of workers; memory per worker"
    rows, numbers = [], []
    for method in given.methods:
        rounds = [[measured(method, workers, given.arrivals) for workers in WORKERS] for _ in range(given.rounds)]
        best = [[min(r[i][k] for r in rounds) for i in range(len(WORKERS))] for k in range(2)]
        memory = [bytes_per_worker(method, workers) for workers in WORKERS]
        whole = [seconds + trace for seconds, trace in zip(*best, strict=True)]
        row = [method, *(f"{1e6 * seconds:.0f}" for seconds in best[0]), f"{whole[-1] / whole[0]:.2f}"]
        traces = (f"{1e6 * best[1][i]:.1f}" for i in (0, -1))
        rows.append([*row, *traces, *(f"{each:,.0f}" for each in memory)])
        numbers.append({"method": method, "workers": WORKERS, "seconds": best[0], "trace": best[1], "bytes": memory})
        Console().print("  ".join(rows[-1]))
    table = Table(*heads, title=title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if given.out is not None:
        command = shlex.join(["python", "benchmarks/many_workers.py", *sys.argv[1:]])
        write_table(given.out, "many_workers", title, heads, rows, command, numbers)


if __name__ == "__main__":
    main()
