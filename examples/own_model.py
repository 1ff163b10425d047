"""Train a model of your own with workers that never wait for each other, then take the run apart.

    python examples/own_model.py [--engine inline | local | ray] [--address auto]

A small network reads sequences of uneven length and adds their last four numbers up; long ones take longer, so they
arrive late.
It takes about ten seconds and prints the loss on short and on long sequences.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import latecomer as lc

LENGTHS = (4, 64)


class Adder(nn.Module):
    """A recurrent network that returns one number a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Read the sequences, and say what their last four numbers add up to."""
        value: Tensor = self.head(self.cell(x)[0][:, -1])
        return value


class Sequences(torch.utils.data.Dataset[Tensor]):
    """Short sequences, and long ones: one in four."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, i: int) -> Tensor:
        """Return a sequence; the same one every time."""
        return torch.randn(LENGTHS[i % 4 == 3], 1, generator=torch.Generator().manual_seed(i)) / 2


def short_or_long() -> list[list[int]]:
    """Put sequences of one length into a batch: three batches of short ones, then one of long ones."""
    short = [i for i in range(1024) if i % 4 != 3]
    long = [i for i in range(1024) if i % 4 == 3]
    batches = [short[k : k + 16] for k in range(0, len(short), 16)]
    for place, k in enumerate(range(0, len(long), 16)):
        batches.insert(4 * place + 3, long[k : k + 16])
    return batches


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the squared error of the sums."""
    return nn.functional.mse_loss(model(batch), batch[:, -4:].sum(1))


def is_long(batch: Tensor) -> int:
    """Say which group a batch belongs to."""
    return int(batch.shape[1] == LENGTHS[1])


def evaluate(model: nn.Module) -> dict[str, float]:
    """Return the loss on short and on long sequences that nobody has trained on."""
    draws = torch.Generator().manual_seed(1 << 40)
    found = {}
    for name, length in zip(("short", "long"), LENGTHS, strict=True):
        found[f"loss_{name}"] = float(loss(model, torch.randn(256, length, 1, generator=draws) / 2))
    return found


def task() -> lc.Task:
    """Return what to train: also for ``latecomer train examples/own_model.py:task``."""
    torch.manual_seed(0)
    return lc.Task(
        Adder(),
        loss,
        Sequences(),
        sampler=short_or_long(),
        group_fn=is_long,
        groups=("short", "long"),
        evaluate=evaluate,
        clip_norm=1.0,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 500, gamma=0.5),
    )


def main(steps: int = 600, workers: int = 2, engine: str = "local", address: str | None = None) -> Any:
    """Train in this process, on processes of this machine, on Ray on it, or on a cluster; print, replay."""
    moves: Any = engine
    if engine == "ray":
        from latecomer.engines.ray import RayEngine

        moves = RayEngine(address)
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run.parquet"
        result = lc.fit(
            task(), method="catch-up", lr=0.1, beta=0.1, workers=workers, steps=steps, record=record, engine=moves
        )
        print(result.history.select("update", "time", "delay", "loss_short", "loss_long"))
        print(result.trace.describe())
        print(lc.training.replay(record, task()).verdict)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", choices=["inline", "local", "ray"], default="local")
    parser.add_argument("--address")
    main(**vars(parser.parse_args()))
