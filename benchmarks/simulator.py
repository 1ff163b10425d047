"""What the simulator costs over a bare loop: time per update, memory per worker.

    python benchmarks/simulator.py [--updates 5] [--rounds 250] [--workers 7]

The peer is a bare forward, backward and step of the cubic CNN of `lc.problems.mnist` at batch 16, on data in memory,
with the same optimizer. Both take turns in blocks; the ratio is the median over rounds. Memory is all that a run of
3,750 updates (our reading of the paper) holds at its end: tensors, tickets, record, and what it looks up in the trace.
Its floor is one copy of the parameters per worker in flight (two for mu2), on top of parameters, gradient and state.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import latecomer as lc
from latecomer._util.seeds import picks
from latecomer.problems.base import Problem
from latecomer.problems.networks import cnn, seeded_module
from latecomer.simulation import Simulation

BATCH, IMAGES = 16, 2048
MNIST_UPDATES = 3750


class Noise(Problem):
    """Random 28x28 images: the arithmetic of MNIST without its data."""

    name, groups = "noise", 2

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(IMAGES, 1, 28, 28, generator=generator)
        self.labels = torch.randint(10, (IMAGES,), generator=generator)

    def model(self, seed: int) -> nn.Module:
        return seeded_module(cnn, seed)

    def batch(self, sample: int, group: int) -> tuple[Tensor, Tensor]:
        picked = torch.from_numpy(picks(sample, BATCH, IMAGES))
        return self.images[picked], self.labels[picked]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}


class Free(Noise):
    """The same model with gradients that cost nothing: what a run keeps does not depend on them."""

    def gradient(self, x: Tensor, batch: object, out: Tensor) -> bool:
        out.copy_(x)
        return True


def bare(problem: Noise) -> Callable[[], None]:
    """Make an ordinary torch loop's step: shuffled data in memory, forward, backward, step."""
    model = problem.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    order = itertools.cycle(torch.randperm(IMAGES, generator=torch.Generator().manual_seed(1)).split(BATCH))

    def step() -> None:
        picked = next(order)
        optimizer.zero_grad()
        problem.loss(model, (problem.images[picked], problem.labels[picked])).backward()
        optimizer.step()

    return step


def simulated(problem: Noise, method: str, workers: int, updates: int) -> Simulation:
    trace = lc.delays.DataDependent(workers=workers, slow_share=0.1).trace(steps=updates, seed=0)
    options = {"threshold": 2.0 * workers} if method == "delay-filtered" else {}
    return Simulation(problem, method, trace, {"lr": 1e-4, **options})


def clock(step: Callable[[], None], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - start) / times


def live_bytes() -> int:
    """Return the bytes of all tensors that are alive, each storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (Tensor, nn.Parameter):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=5, help="per block")
    parser.add_argument("--rounds", type=int, default=250)
    parser.add_argument("--workers", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    problem = Noise()
    table = Table("method", title=f"The simulator, cubic CNN, batch {BATCH}, {args.workers} workers")
    table.add_column("update / bare loop\n(a gradient a point)", justify="right")
    table.add_column("memory / copies\nin flight", justify="right")
    measure_memory(problem, "momentum", args.workers, 100)  # whatever is imported or cached once is not the run's
    for method in ("momentum", "ordered-momentum", "ordered-mu2"):
        ratio, memory = measure(problem, method, args.workers, args.updates, args.rounds)
        table.add_row(method, f"{ratio:.3f}", f"{memory:.3f}")
    Console().print(table)


def measure(problem: Noise, method: str, workers: int, updates: int, rounds: int) -> tuple[float, float]:
    """Return time per update and point over that of the bare loop, and memory over its floor."""
    memory = measure_memory(problem, method, workers, MNIST_UPDATES)
    run = simulated(problem, method, workers, updates * (rounds + 2))
    for _ in range(updates):
        run.advance()
    points = run.optimizer.points
    step = bare(problem)
    clock(step, updates)
    ratios = []
    for _ in range(rounds):
        theirs = clock(step, updates)
        ratios.append(clock(run.advance, updates) / theirs / points)
    return statistics.median(ratios), memory


def measure_memory(problem: Noise, method: str, workers: int, updates: int) -> float:
    """Return the memory of a whole run at its end, over that of the tensors it must have."""
    free = Free()
    before = live_bytes()
    trace = lc.delays.DataDependent(workers=workers, slow_share=0.1).trace(steps=updates, seed=0)
    tracemalloc.start()
    run = Simulation(free, method, trace, {"lr": 1e-4})
    for _ in range(updates):
        run.advance()
    gc.collect()
    records = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    points, state = run.optimizer.points, {"ordered-mu2": 3}.get(method, 1)
    # Parameters, gradients, state, and what is in flight.
    floor = run.state.flat.x.numel() * run.state.flat.x.element_size() * (1 + points + state + points * workers)
    return (live_bytes() - before + records) / floor


if __name__ == "__main__":
    main()
