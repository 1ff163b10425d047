"""``python -m studies.rate_free.transformer``: a transformer on two processes without a learning rate, beside AdamW."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import latecomer as lc
from latecomer._util.files import writable
from latecomer._util.imports import import_file
from latecomer.cli._entry import run
from latecomer.cli._output import print_text
from latecomer.report.markdown import Part, write_page

PROG = "python -m studies.rate_free.transformer"
EXAMPLE = Path(__file__).parents[2] / "examples" / "character_transformer.py"
ADAMW_RATES = (0.0003, 0.003, 0.03)


def task(seed: int) -> lc.Task:
    """Return the gallery's character transformer in 32 bits, without a schedule, weight decay or clip."""
    example: Any = import_file(EXAMPLE)
    torch.manual_seed(seed)
    text = example.source()
    split = len(text) * 9 // 10
    return lc.Task(
        example.CharacterTransformer(),
        example.loss,
        batch_fn=partial(example.batch, text[:split]),
        group_fn=example.is_long,
        groups=("short", "long"),
        evaluate=partial(example.evaluate, text[split:]),
    )


@dataclass(frozen=True)
class Transformer:
    """Train the gallery's character transformer by rate-free and by AdamW at three learning rates.

    Example: python -m studies.rate_free.transformer --out docs/results/rate-free
    """

    out: Path = Path("rate-free")
    """Folder for transformer.md and transformer.json."""
    steps: int = 600
    """Contributions per run."""
    workers: int = 2
    """Processes that compute gradients."""
    seed: int = 2102
    """First seed."""
    seeds: int = 3
    """How many seeds."""

    def run(self, console: Console) -> None:
        """Train and write."""
        writable(self.out)
        chosen: list[tuple[str, Any, dict[str, Any]]] = [("rate-free", "rate-free", {})]
        chosen += [
            (f"torch's AdamW, lr {lr:g}", torch.optim.AdamW, {"lr": lr, "weight_decay": 0.0}) for lr in ADAMW_RATES
        ]
        rows: list[dict[str, Any]] = []
        for name, method, options in chosen:
            for seed in range(self.seed, self.seed + self.seeds):
                print_text(console, f"{name}, seed {seed}")
                found = lc.fit(
                    task(seed), method=method, steps=self.steps, workers=self.workers, seed=seed, progress=console,
                    **options,
                )  # fmt: skip
                last = found.final
                rows.append({"method": name, "seed": seed, "delay": found.history["delay"].mean()}
                            | {key: last[key] for key in ("loss", "loss_short", "loss_long")})  # fmt: skip
        cells = [
            [
                row["method"],
                str(row["seed"]),
                *(f"{row[key]:.2f}" for key in ("loss", "loss_short", "loss_long", "delay")),
            ]
            for row in rows
        ]
        heads = ["method", "seed", "loss on held-out text", "short windows", "long windows", "mean delay"]
        words = (
            f"{self.workers} processes, {self.steps} contributions of 16 windows, no schedule. Long windows are slower "
            "and come late."
        )
        command = f"{PROG} --steps {self.steps} --out {self.out}"
        write_page(
            self.out,
            "transformer",
            "A transformer without a learning rate",
            [Part(heads, cells, words=words)],
            command,
            rows,
        )
        print_text(console, f"{self.out / 'transformer.md'} has been written")


if __name__ == "__main__":
    sys.exit(run(Transformer, PROG, "A transformer on two processes without a learning rate, beside AdamW."))
