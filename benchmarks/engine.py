"""What the local engine costs besides the gradient, and what it gains over Ray's documented parameter server.

    python benchmarks/engine.py [--size 1000000] [--updates 600] [--rounds 5] [--out docs/results]

Two bars, as ratios in one run. *Cost*: seconds per update of a run with one worker, where nothing overlaps, minus what
the gradient takes alone; over one copy each way and one fused update. *Rate*: updates per second with two workers, over
Ray's documented asynchronous parameter server with two workers (`ray.wait` in the driver, weights and gradients through
the object store, torch's SGD with momentum). The row is left out where Ray is not installed. The gradient is a copy of
the parameters in all of them. Rounds take turns and the median counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import latecomer as lc
from latecomer.problems.base import Problem
from latecomer.report.markdown import write_table


class Flat(nn.Module):
    """Nothing but parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(size))


class Copy(Problem):
    """The gradient of |x|²/2 is x: as little work as there can be."""

    name = "copy"
    evaluates = False

    def __init__(self, size: int) -> None:
        self.size = size

    def model(self, seed: int) -> nn.Module:
        return Flat(self.size)

    def batch(self, sample: int, group: int) -> None:
        return None

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return model.get_parameter("x").square().sum() / 2

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}

    def gradient(self, x: Tensor, batch: Any, out: Tensor) -> bool:
        out.copy_(x)
        return True


def floor(size: int, updates: int) -> tuple[float, float]:
    """Seconds of one copy each way and a fused update, and of the gradient alone."""
    x = nn.Parameter(torch.ones(size))
    here, back, gradient = torch.ones(size), torch.ones(size), torch.ones(size)
    optimizer = torch.optim.SGD([x], lr=1e-4, momentum=0.9, dampening=0.9, fused=True)
    x.grad = back
    optimizer.step()
    costs = alone = 0.0
    for _ in range(updates):
        start = time.perf_counter()
        here.copy_(x.detach())
        back.copy_(gradient)
        optimizer.step()
        middle = time.perf_counter()
        gradient.copy_(here)
        alone += time.perf_counter() - middle
        costs += middle - start
    return costs / updates, alone / updates


def ours(size: int, updates: int, workers: int) -> float:
    """Seconds per update."""
    result = lc.fit(Copy(size), method="ordered-momentum", lr=1e-4, beta=0.1, workers=workers, steps=updates)
    return result.seconds / updates


def ray_example(size: int, updates: int) -> float:
    """Seconds per update of the parameter server that Ray's documentation shows, in its asynchronous form."""
    import ray

    @ray.remote
    class ParameterServer:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.model = Flat(size)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9, dampening=0.9)

        def apply_gradients(self, *gradients: Any) -> dict[str, Tensor]:
            self.optimizer.zero_grad()
            self.model.x.grad = torch.from_numpy(gradients[0].copy())
            self.optimizer.step()
            return self.get_weights()

        def get_weights(self) -> dict[str, Tensor]:
            return {key: value.cpu() for key, value in self.model.state_dict().items()}

    @ray.remote
    class DataWorker:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.model = Flat(size)

        def compute_gradients(self, weights: dict[str, Tensor]) -> Any:
            self.model.load_state_dict(weights)
            return self.model.x.detach().clone().numpy()

    server, workers = ParameterServer.remote(), [DataWorker.remote() for _ in range(2)]
    weights = server.get_weights.remote()
    jobs = {worker.compute_gradients.remote(weights): worker for worker in workers}
    for _ in range(10):
        weights = _one(ray, server, jobs)
    start = time.perf_counter()
    for _ in range(updates):
        weights = _one(ray, server, jobs)
    ray.get(weights)
    return (time.perf_counter() - start) / updates


def _one(ray: Any, server: Any, jobs: dict[Any, Any]) -> Any:
    ready, _ = ray.wait(list(jobs))
    worker = jobs.pop(ready[0])
    weights = server.apply_gradients.remote(ready[0])
    jobs[worker.compute_gradients.remote(weights)] = worker
    return weights


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for the table, engine.md, and the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with_ray = importlib.util.find_spec("ray") is not None
    if with_ray:
        import ray

        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    rounds = []
    for _ in range(given.rounds):
        base, gradient = floor(given.size, given.updates)
        one = ours(given.size, given.updates, workers=1) - gradient
        two = ours(given.size, given.updates, workers=2)
        peer = ray_example(given.size, given.updates // 3) if with_ray else float("nan")
        rounds.append((base, gradient, one, two, peer, one / base, peer / two))
    base, gradient, one, two, peer, cost, rate = (statistics.median(column) for column in zip(*rounds, strict=True))
    spread = [f"{min(ratios):.2f} to {max(ratios):.2f}" for ratios in list(zip(*rounds, strict=True))[5:]]
    rows = [
        ["one copy each way + one fused update", f"{1e3 * base:.3f}", "", ""],
        ["the gradient alone", f"{1e3 * gradient:.3f}", "", ""],
        ["one worker, besides the gradient", f"{1e3 * one:.3f}", f"{cost:.2f}x the first row (bar: <= 2)", spread[0]],
        ["two workers", f"{1e3 * two:.3f} ({1 / two:,.0f}/s)", "", ""],
    ]
    if with_ray:
        times = f"{1e3 * peer:.3f} ({1 / peer:,.0f}/s)"
        rows.append(["Ray's parameter server", times, f"{rate:.1f}x as long as two workers (bar: >= 5)", spread[1]])
    else:
        rows.append(["Ray's parameter server", "not installed", "", ""])
    heads, title = (
        ["what", "ms per update", "ratio", "lowest to highest round"],
        f"local engine, {given.size:,} parameters",
    )
    table = Table(*heads, title=title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if given.out is not None:
        command = shlex.join(["python", "benchmarks/engine.py", *sys.argv[1:]])
        names = ["floor", "gradient", "one", "two", "ray", "cost", "rate"]
        numbers = [dict(zip(names, values, strict=True)) for values in rounds]
        write_table(given.out, "engine", title, heads, rows, command, numbers)


if __name__ == "__main__":
    main()
