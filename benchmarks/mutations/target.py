"""Something to mutate, and how files are damaged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["RefusedError", "Target", "crafted", "damage"]


class RefusedError(Exception):
    """One sentence of the command."""


@dataclass
class Target:
    """Something to mutate.

    Args:
        name: For the table.
        mutate: Makes a mutation with a generator in a fresh folder; returns what it did and a function that uses the
            result. The function returns something to compare with ``expected``.
        expected: What must come out; None if any result is allowed.
        weight: Share of the mutations.
    """

    name: str
    mutate: Callable[[random.Random, Path], tuple[str, Callable[[], Any]]]
    expected: Any = None
    weight: int = 1
    counts: Counter[str] = field(default_factory=Counter)


def damage(rng: random.Random, path: Path) -> str:
    """Damage a file in one of the ways in which files get damaged, or are crafted."""
    data = bytearray(path.read_bytes())
    others = ["flips", "cut", "append", "zeros", "random", "empty", "gone", "twice", "swap", "remove", "insert"]
    kind = rng.choice(["flip"] * 6 + others)
    # Damage at the end is hardest to tell from what a crash leaves.
    at = rng.randrange(max(0, len(data) - 64) if rng.random() < 0.25 else 0, max(1, len(data)))
    if kind == "flip" and data:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "flips":
        for _ in range(rng.randrange(2, 20)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "append":
        data += rng.randbytes(rng.randrange(1, 200))
    elif kind == "zeros":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif kind == "random":
        data[at : at + 16] = rng.randbytes(len(data[at : at + 16]))
    elif kind == "remove":
        del data[at : at + 1]
    elif kind == "insert":
        data[at:at] = rng.randbytes(1)
    elif kind == "empty":
        data.clear()
    elif kind == "twice":
        data = data * 2
    elif kind == "swap":
        middle = len(data) // 2
        data = data[middle:] + data[:middle]
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(data)
    return f"{kind} at {at} of {path.name}"


def crafted(rng: random.Random, path: Path) -> str:
    """Change a JSON file, or the JSON in it, on purpose."""
    text = path.read_text()
    values = ["null", "[]", "{}", "-1", "1e400", '"x"', "true", "[" * 5000, str(2**70)]
    kind = rng.choice(["value", "key", "deep"])
    if kind == "deep":
        text = "[" * 100_000
    else:
        marks = [i for i, c in enumerate(text) if c == (":" if kind == "value" else '"')]
        at = rng.choice(marks)
        text = text[: at + 1] + rng.choice(values) + text[at + (2 if kind == "key" else rng.randrange(2, 12)) :]
    path.write_text(text)
    return f"crafted {kind} in {path.name}"
