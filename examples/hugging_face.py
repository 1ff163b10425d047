"""Train a model of Hugging Face on worker processes: a small GPT-2, randomly initialised, on text of uneven length.

    pip install transformers
    python examples/hugging_face.py [--steps 300] [--workers 2]

The model returns its own loss, so `fit` needs none. Lines of Python's standard library are padded to the longest of
their batch; long batches take longer, so they arrive late. It takes about a minute; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import latecomer as lc

LENGTHS = (32, 128)


def lines() -> list[bytes]:
    """Return blocks of Python's source: three of at most 32 bytes for one of at most 128."""
    text = b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py"))[:40])
    found, place = [], 0
    while place + LENGTHS[1] < len(text) and len(found) < 4000:
        length = LENGTHS[len(found) // 8 % 4 == 3]  # eight of a kind, so that a batch has one length
        found.append(text[place : place + length])
        place += length
    return found


def collate(rows: list[bytes]) -> dict[str, Tensor]:
    """Return what the model takes: bytes as tokens, padded, and labels that leave the padding out."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def is_long(batch: dict[str, Tensor]) -> int:
    """Return the group of a batch."""
    return int(batch["input_ids"].shape[1] > LENGTHS[0])


def main() -> None:
    """Train and print the loss and the delays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTHS[1], n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    rows = lines()
    batches = [list(range(start, start + 8)) for start in range(0, len(rows) - 8, 8)]
    run = lc.fit(
        model,
        dataset=rows,
        collate_fn=collate,
        sampler=batches,
        group_fn=is_long,
        groups=("short", "long"),
        method="catch-up-adamw",
        lr=0.003,
        clip_norm=1.0,
        steps=options.steps,
        workers=options.workers,
        progress=True,
    )
    print(run.history.select("arrival", "train_loss", "delay"))
    print(run.trace.describe())


if __name__ == "__main__":
    main()
