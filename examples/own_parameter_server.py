"""A parameter server of your own in eighty lines: threads, and `lc.Server` to count.

    python examples/own_parameter_server.py [--updates 400] [--workers 4]

`lc.Server` hands out tickets, keeps the parameters that each started from, measures delays and steps the optimizer.
What carries the numbers is up to you: here threads and a lock, elsewhere sockets or RPC. The run leaves a trace, like
any other. It takes seconds.
"""

from __future__ import annotations

import argparse
import threading
import time

import torch
from torch import Tensor, nn

import latecomer as lc

LENGTHS = (8, 64)


def network() -> nn.Module:
    """Return a network that reads a sequence."""
    return nn.GRU(1, 16, batch_first=True)


def sequences(seed: int) -> tuple[Tensor, int]:
    """Return a batch of sequences by the seed of a ticket, and its group: one batch in four is long."""
    group = int(seed % 4 == 0)
    return torch.randn(16, LENGTHS[group], 1, generator=torch.Generator().manual_seed(seed % 2**63)), group


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return how far the first output after the last number is from tanh of that number."""
    return nn.functional.mse_loss(model(batch)[0][:, -1, :1], batch[:, -1].tanh())


class ParameterServer:
    """The model and a `lc.Server`, with a lock around both."""

    def __init__(self, workers: int, updates: int) -> None:
        self.model = network()
        optimizer = lc.optim.BalancedCatchUp(self.model.parameters(), lr=0.1, beta=0.1)
        self.server = lc.Server(optimizer, workers=workers, groups=("short", "long"), clock="real")
        self.updates, self.lock, self.began = updates, threading.Lock(), time.perf_counter()

    def work(self, worker: int) -> None:
        """Ask for a ticket, compute its gradient, hand it in, until the run is over."""
        mine = network()
        while True:
            with self.lock:
                if self.server.arrivals >= self.updates:
                    return
                ticket = self.server.issue(worker, at=self.now())
                point = self.server.point(ticket)[0]
                torch.nn.utils.vector_to_parameters(torch.cat([p.flatten() for p in point]), mine.parameters())
            batch, group = sequences(ticket.sample)
            gradient = torch.autograd.grad(loss(mine, batch), list(mine.parameters()))
            with self.lock:
                if self.server.arrivals < self.updates:
                    self.server.receive(ticket, gradient, group=group, at=self.now())

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self.began


def main() -> None:
    """Train with threads and print how late each group was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    served = ParameterServer(options.workers, options.updates)
    batch, _ = sequences(0)
    before = loss(served.model, batch).item()
    threads = [threading.Thread(target=served.work, args=(worker,)) for worker in range(options.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(served.server.trace().describe())
    print(f"loss on a long batch: {before:.4f} before, {loss(served.model, batch).item():.4f} after")


if __name__ == "__main__":
    main()
