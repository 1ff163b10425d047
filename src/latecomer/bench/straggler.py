"""Sequences of uneven length: not waiting against waiting for the slowest, by the wall clock and by a virtual one."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import torch

from ..delays import SampleCost
from ..delays.base import groups_from
from ..engines import Engine
from ..optim import AsyncSGD
from ..policy import Synchronous, Ticket
from ..problems import Problem, Text
from ..seeds import uniforms
from ..server import Server
from ..simulation import simulate
from ..trace import Trace
from ..training import fit

__all__ = ["straggler", "synchronous_trace"]

METHODS: Mapping[str, dict[str, Any]] = {
    "synchronous momentum": {"method": "momentum", "beta": 0.1},
    "async-sgd": {"method": "async-sgd"},
    "ordered-momentum": {"method": "ordered-momentum", "beta": 0.1},
    "catch-up": {"method": "catch-up", "beta": 0.1},
}
"""What is compared: the first waits for all workers before every update."""
SYNCHRONOUS = "synchronous momentum"


def straggler(
    problem: Problem | None = None,
    *,
    steps: int = 2000,
    lrs: Sequence[float] = (0.1, 0.3, 1.0),
    workers: int = 2,
    virtual_workers: int = 8,
    engine: str | Engine = "local",
    patience: float = 2.0,
    evaluations: int = 20,
    seed: int = 0,
    told: Callable[[str], None] = lambda words: None,
) -> pl.DataFrame:
    """Train synchronously and asynchronously, and return how long each took to the same validation loss.

    Every method gets its best learning rate of the list, by its last validation loss. The target is what synchronous
    training reached at the end with its own best one, on the same clock. The real clock is that of processes on this
    machine. The virtual one has more workers than the machine has cores; what a gradient of each length costs was
    measured here just before.

    Args:
        problem: What to train, with groups that cost unevenly; the text problem by default.
        steps: Contributions of a synchronous run.
        lrs: Learning rates to try.
        workers: Real workers.
        virtual_workers: Workers of the virtual clock.
        engine: Where the real ones are.
        patience: How many times as many contributions the others may use: it is time that counts, not contributions.
        evaluations: Evaluations of a synchronous run.
        seed: Draws the samples, initialises the model.
        told: Called before every run, for progress.

    Returns:
        One row a method and clock: learning rate, seconds to the target (infinity if it was missed), ratio to the
        synchronous run, last losses, mean delays.

    Examples:
        >>> small = Text(width=8, layers=1, heads=2, lengths=(8, 32), shares=(0.8, 0.2), evaluated=64, limit=200_000)
        >>> rows = straggler(small, steps=24, lrs=(0.1,), engine="inline", evaluations=2, virtual_workers=3)
        >>> rows["clock"].unique(maintain_order=True).to_list(), rows.height
        (['real', 'virtual'], 8)
    """
    problem = problem or Text()
    every, longer = max(1, steps // evaluations), max(steps, int(patience * steps))
    costs = problem.costs() if isinstance(problem, Text) else (1.0,) * problem.groups
    schedules = {
        True: synchronous_trace(virtual_workers, steps, costs, problem.shares, seed),
        False: SampleCost(virtual_workers, cost=costs, shares=problem.shares).trace(longer, seed),
    }
    rows = []
    for clock in ("real", "virtual"):
        for name, options in METHODS.items():
            waits, given = name == SYNCHRONOUS, {k: v for k, v in options.items() if k != "method"}
            for lr in lrs:
                told(f"{name}, lr {lr:g}, {clock} clock")
                if clock == "real":
                    result = fit(
                        problem, optimizer=options["method"], workers=workers, engine=engine, sync=waits,
                        steps=steps if waits else longer, evaluate_every=every, seed=seed, lr=lr, **given,
                    )  # fmt: skip
                    history, delay = result.history, float(result.trace.delay.mean())
                else:
                    trace = schedules[waits]
                    policy = Synchronous(virtual_workers) if waits else None
                    run = simulate(
                        problem,
                        options["method"],
                        trace,
                        seed=seed,
                        policy=policy,
                        evaluate_every=every,
                        lr=lr,
                        **given,
                    )
                    history, delay = run.history, float(trace.delay.mean())
                rows.append({"clock": clock, "method": name, "lr": lr, "delay": delay, "history": history})
    return _compared(rows, problem)


def _compared(rows: list[dict[str, Any]], problem: Problem) -> pl.DataFrame:
    found = []
    for clock in ("real", "virtual"):
        best = {
            name: min((row for row in rows if (row["clock"], row["method"]) == (clock, name)), key=_last)
            for name in METHODS
        }
        target = _last(best[SYNCHRONOUS])
        waited = _reached(best[SYNCHRONOUS]["history"], target)
        for name, row in best.items():
            last = row["history"].row(-1, named=True)
            seconds = _reached(row["history"], target)
            by_group = [key for key in last if key.startswith("loss_")]
            found.append(
                {
                    "clock": clock,
                    "method": name,
                    "lr": row["lr"],
                    "target": target,
                    "seconds": seconds,
                    "faster": waited / seconds if seconds else math.nan,
                    "total": last["time"],
                    "loss": last["loss"],
                    "shortest": last[by_group[0]] if by_group else math.nan,
                    "longest": last[by_group[-1]] if by_group else math.nan,
                    "delay": row["delay"],
                }
            )
    return pl.DataFrame(found)


def _last(row: dict[str, Any]) -> float:
    loss = float(row["history"]["loss"][-1])
    return loss if math.isfinite(loss) else math.inf


def _reached(history: pl.DataFrame, target: float) -> float:
    """Return when a run was first at the target, infinity if never."""
    times = history.filter(pl.col("loss") <= target)["time"]
    return float(times[0]) if len(times) else math.inf


def synchronous_trace(
    workers: int, steps: int, costs: Sequence[float], shares: Sequence[float], seed: int = 0
) -> Trace:
    """Make the schedule of workers that wait for each other before every update, with what a job costs by its group.

    Examples:
        >>> trace = synchronous_trace(3, 12, costs=(1.0, 10.0), shares=(0.5, 0.5))
        >>> int(trace.delay.max()), trace.header.policy
        (0, 'synchronous')
    """
    x = torch.nn.Parameter(torch.zeros(1))
    names = tuple(f"group {i}" for i in range(len(costs)))
    server = Server(
        AsyncSGD([x], lr=0.0), workers=workers, policy=Synchronous(workers), seed=seed, groups=names, clock="virtual"
    )
    now, nothing = 0.0, torch.zeros(1)
    while server.arrivals < steps:
        out: list[tuple[float, int, int, Ticket]] = []
        for worker in range(workers):
            ticket = server.issue(worker, at=now)
            group = int(groups_from(uniforms(np.array([ticket.sample], dtype=np.uint64)), tuple(shares))[0])
            heapq.heappush(out, (now + costs[group], worker, group, ticket))
        while out and server.arrivals < steps:
            now, _, group, ticket = heapq.heappop(out)
            server.receive(ticket, nothing, finite=True, group=group, at=now)
    return server.trace("synchronous, by cost")
