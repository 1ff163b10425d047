"""Tasks that worker processes can import, and that do harm on purpose: by ticket and attempt, never by the clock."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import latecomer as lc
from latecomer.problems import Quadratic
from latecomer.training import Task


def data(n: int = 128) -> torch.utils.data.TensorDataset:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))


def regression(**options: Any) -> Task:
    return Task(network, nn.functional.mse_loss, data(), batch_size=16, **options)


def score(model: nn.Module) -> dict[str, float]:
    x, y = data().tensors
    return {"loss": float(nn.functional.mse_loss(model(x), y))}


def by_sign(batch: Any) -> int:
    return int(batch[0].sum() > 0)


class Trouble(Quadratic):
    """A quadratic that does something on the first ``times`` attempts at some tickets.

    Attempts are counted by files in a folder, which all processes see.
    """

    def __init__(self, folder: Path, what: str, tickets: tuple[int, ...], times: int = 1) -> None:
        super().__init__()
        self.folder, self.what, self.tickets, self.times = str(folder), what, tickets, times

    def batch_of(self, number: int, sample: int, group: int) -> Any:
        batch = self.batch(sample, group)
        if number in self.tickets and self._attempt(number) < self.times:
            if self.what == "shape":
                return batch[0].expand(2, -1), None
            self._do()
        if self.what == "nan" and number in self.tickets:
            return tuple(part * float("nan") for part in batch) if isinstance(batch, tuple) else batch * float("nan")
        return batch

    def _attempt(self, number: int) -> int:
        for attempt in range(100):
            try:
                os.close(os.open(Path(self.folder) / f"{number}-{attempt}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return attempt
        return 100

    def _do(self) -> None:
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.what == "exit":
            os._exit(3)
        elif self.what == "hang":
            signal.pause()
        elif self.what == "memory":
            raise MemoryError("no room for this sample")
        elif self.what == "allocate":
            torch.empty(1 << 50)
        elif self.what == "raise":
            raise KeyError("no such sample")
        elif self.what == "sys.exit":
            raise SystemExit(1)


class Numpy(torch.utils.data.Sampler[int]):
    """An order of its own, from a generator of numpy's."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(1)

    def __iter__(self) -> Any:
        return iter(self.random.permutation(128).tolist())


class See(lc.training.Callback):
    """Notes which arrivals a run counts."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        self.seen.append(outcome.arrival)


class Die(lc.training.Callback):
    """Ends a run with an exception after an arrival."""

    def __init__(self, arrival: int) -> None:
        self.arrival = arrival

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == self.arrival:
            raise RuntimeError("died")


class KillServer(lc.training.Callback):
    """Kills the server's own process after an arrival."""

    def __init__(self, arrival: int) -> None:
        self.arrival = arrival

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == self.arrival:
            os.kill(os.getpid(), signal.SIGKILL)
