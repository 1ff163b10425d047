"""Predict the next byte of Python source in windows of several lengths: long samples are really slower."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import sysconfig
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from .._util.checks import whole_number
from .._util.seeds import picks
from ..delays.base import group_shares
from .base import Problem, device_of
from .networks import seeded_module

__all__ = ["Text", "Transformer"]

_BYTES = 256
_AT_ONCE = 4096  # bytes per evaluated batch: with more the activations do not fit the cache
_SPLITS = ("all", "validation", "test")
_EVERY = 10  # every tenth file is held out
# Tests, tables and generated pages: their files are so similar that the held-out ones would be known.
_SKIPPED = {"encodings", "idlelib", "pydoc_data", "site-packages", "test", "tests"}


class _Block(nn.Module):
    """A transformer block: causal attention, then two linear layers, each with pre-norm and a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        windows, length, width = x.shape
        parts = self.query_key_value(self.norm_attention(x)).view(windows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(windows, length, width))
        added: Tensor = x + self.hidden(self.norm_hidden(x))
        return added


class Transformer(nn.Module):
    """A small causal transformer on bytes: pre-norm, learned positions, and output weights tied to the embedding.

    Args:
        width: Size of the embedding.
        layers: Number of blocks.
        heads: Number of attention heads; they divide the width.
        longest: Largest number of positions.
    """

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4, longest: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_BYTES, width)
        self.positions = nn.Parameter(torch.empty(longest, width))
        for table in (self.embedding.weight, self.positions):
            nn.init.normal_(table, std=0.05)  # tied to the output: the first predictions are nearly uniform
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of the byte after each byte of ``text``, one window per row."""
        x = self.embedding(text) + self.positions[: text.shape[1]]
        return functional.linear(self.norm(self.blocks(x)), self.embedding.weight)


class Text(Problem):
    """Predict the next byte of the running Python's standard library; longer windows cost more.

    Every batch has the same number of windows, and its group decides their length, so the cost of a gradient really
    depends on the data. `costs` measures it on this machine, for `latecomer.delays.SampleCost`. The text is every
    module and package in order of name, without tests, idlelib and tables (encodings, pydoc_data); every tenth file is
    held out. Windows start anywhere, so they may span two files.

    Args:
        width: Size of the transformer's embedding.
        layers: Number of blocks.
        heads: Number of attention heads; they divide the width.
        lengths: Window length in bytes per group, shortest first: short windows are the fast group.
        shares: Share of each group, for `loss` in `evaluate` and for the schedule.
        batch_size: Windows per batch.
        evaluated: Held-out bytes to evaluate per length, in windows spread evenly over the held-out text.
        limit: Largest number of bytes of text to read, including those held out.
        folder: Folder of the text; by default that of the running Python's library.
        split: What `evaluate` uses of the held-out text: ``"all"``, or ``"validation"``, its first half, to choose
            configurations, and ``"test"``, its second half.

    Attributes:
        corpus: The first digits of the text's SHA-256: other versions of Python have other texts.

    Examples:
        >>> import latecomer as lc
        >>> problem = Text(width=8, layers=1, heads=2, lengths=(8, 16), shares=(0.8, 0.2), evaluated=64, limit=200_000)
        >>> inputs, following = problem.batch(sample=3, group=1)
        >>> inputs.shape, bool((inputs[:, 1:] == following[:, :-1]).all())
        (torch.Size([8, 16]), True)
        >>> schedule = lc.delays.SampleCost(3, cost=problem.costs(), shares=problem.shares).trace(steps=5, seed=0)
        >>> list(lc.simulate(problem, "momentum", schedule, lr=0.1).final)[5:]
        ['loss', 'bits_per_byte', 'loss_8', 'loss_16']
    """

    name = "text"

    def __init__(
        self,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        lengths: Sequence[int] = (64, 128, 256, 512),
        shares: Sequence[float] = (0.4, 0.3, 0.2, 0.1),
        batch_size: int = 8,
        evaluated: int = 8192,
        limit: int = 4_000_000,
        folder: str | os.PathLike[str] | None = None,
        split: str = "all",
    ) -> None:
        self.width, self.layers = whole_number("width", width, least=1), whole_number("layers", layers, least=1)
        self.heads = whole_number("heads", heads, least=1)
        if self.width % self.heads:
            raise ValueError(f"Invalid heads value: {heads} (expected a divisor of the width, {width})")
        self.lengths = _checked_lengths(lengths)
        self.group_names = tuple(f"{length} bytes" for length in self.lengths)
        if not isinstance(shares, Sequence | np.ndarray) or isinstance(shares, str):
            raise TypeError(f"Invalid shares value: {shares!r} (expected one number per length)")
        if len(shares) != len(self.lengths):
            raise ValueError(f"Got {len(shares)} shares for {len(self.lengths)} lengths (expected one per length)")
        self.shares, self.groups = group_shares(None, shares), len(self.lengths)
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.evaluated = whole_number("evaluated", evaluated, least=1)
        self._text, self._held_out, self.corpus = _corpus(
            Path(sysconfig.get_paths()["stdlib"] if folder is None else folder), whole_number("limit", limit, least=1)
        )
        if split not in _SPLITS:
            raise ValueError(f"Invalid split value: {split!r} (expected one of {', '.join(map(repr, _SPLITS))})")
        self.split, middle = split, len(self._held_out) // 2
        if split != "all":
            self._held_out = self._held_out[:middle] if split == "validation" else self._held_out[middle:]
        longest, least = self.lengths[-1], min(len(self._text), len(self._held_out))
        if least <= longest:
            raise ValueError(
                f"Invalid lengths value: {list(self.lengths)} (expected less than the {least} bytes there are to train "
                "or to evaluate on: shorten the windows, or raise the limit)"
            )

    def __repr__(self) -> str:
        return (
            f"Text(width={self.width}, layers={self.layers}, heads={self.heads}, lengths={self.lengths}, "
            f"shares={self.shares}, batch_size={self.batch_size}, evaluated={self.evaluated}, corpus={self.corpus!r}"
            + (")" if self.split == "all" else f", split={self.split!r})")
        )

    def model(self, seed: int) -> nn.Module:
        """Return a new transformer."""
        return seeded_module(lambda: Transformer(self.width, self.layers, self.heads, self.lengths[-1]), seed)

    def batch(self, sample: int, group: int) -> tuple[Tensor, Tensor]:
        """Return windows of the group's length, one per row, and for each byte the byte that follows."""
        length = self.lengths[group]
        return _windows(self._text, picks(sample, self.batch_size, len(self._text) - length), length)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean cross-entropy of the next byte, in nats."""
        inputs, following = batch
        return functional.cross_entropy(model(inputs).flatten(0, 1), following.flatten())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss on held-out text per length, their mean by the shares, and that mean in bits per byte."""
        losses = self.losses_by_group(model)
        loss = sum(share * value for share, value in zip(self.shares, losses, strict=True))
        by_length = {f"loss_{length}": value for length, value in zip(self.lengths, losses, strict=True)}
        return {"loss": loss, "bits_per_byte": loss / math.log(2), **by_length}

    def losses_by_group(self, model: nn.Module) -> tuple[float, ...]:
        """Return the loss on held-out text per length, shortest first."""
        return tuple(self._held_out_loss(model, length) for length in self.lengths)

    def _held_out_loss(self, model: nn.Module, length: int) -> float:
        starts = np.linspace(0, len(self._held_out) - length - 1, max(1, self.evaluated // length)).astype(np.int64)
        total, device = 0.0, device_of(model)
        for part in np.array_split(starts, min(len(starts), math.ceil(len(starts) * length / _AT_ONCE))):
            inputs, following = (each.to(device) for each in _windows(self._held_out, part, length))
            total += float(self.loss(model, (inputs, following))) * len(part)
        return total / len(starts)

    def costs(self, repeats: int = 5) -> tuple[float, ...]:
        """Return the CPU seconds of a gradient per group, measured on this machine: the median of some repeats.

        They include all threads of the process, so run nothing else in it meanwhile. They are measurements: two calls
        differ a little, and so do schedules made with them. To repeat a run, keep its trace or its costs.

        Examples:
            >>> problem = Text(width=8, layers=1, lengths=(8, 256), shares=(0.9, 0.1), limit=200_000)
            >>> [cost > 0 for cost in problem.costs(repeats=1)]
            [True, True]
        """
        repeats = whole_number("repeats", repeats, least=1)
        model = self.model(0)
        seconds: list[list[float]] = [[] for _ in self.lengths]
        for repeat in range(repeats + 1):  # the first one warms up
            for group, measured in enumerate(seconds):
                model.zero_grad(set_to_none=True)
                start = time.process_time()
                self.loss(model, self.batch(repeat, group)).backward()  # type: ignore[no-untyped-call]
                measured.append(time.process_time() - start)
        tick = time.get_clock_info("process_time").resolution  # a coarse clock may measure zero
        return tuple(max(statistics.median(measured[1:]), tick) for measured in seconds)


def _checked_lengths(lengths: Any) -> tuple[int, ...]:
    if not isinstance(lengths, Sequence | np.ndarray) or isinstance(lengths, str):
        raise TypeError(f"Invalid lengths value: {lengths!r} (expected whole numbers, shortest first)")
    checked = tuple(whole_number("length", length, least=1) for length in lengths)
    if not checked or any(a >= b for a, b in pairwise(checked)):
        raise ValueError(f"Invalid lengths value: {list(checked)} (expected one or more, each longer than the last)")
    return checked


def _windows(text: Tensor, starts: NDArray[np.int64], length: int) -> tuple[Tensor, Tensor]:
    """Return windows of a text, and for each byte the byte that follows."""
    rows = text[torch.from_numpy(starts)[:, None] + torch.arange(length + 1)].to(torch.int64)
    return rows[:, :-1], rows[:, 1:]


def _sources(folder: Path) -> Iterator[Path]:
    """Find the modules of a folder and its packages, in order of name."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        # Files that the build wrote about this machine are not part of the library.
        if path.suffix == ".py" and path.is_file() and not path.name.startswith("_sysconfigdata"):
            yield path
        elif path.name not in _SKIPPED and (path / "__init__.py").is_file():
            yield from _sources(path)


def _split(folder: Path, limit: int) -> tuple[list[bytes], list[bytes]]:
    """Read files up to ``limit`` bytes, each text once; return those to train on and those held out."""
    texts: dict[bytes, None] = {}
    left = limit
    for path in _sources(folder):
        text = path.read_bytes()[:left]
        if text and text not in texts:
            texts[text] = None
            left -= len(text)
        if not left:
            break
    files = list(texts)
    held_out = files[_EVERY - 1 :: _EVERY]
    del files[_EVERY - 1 :: _EVERY]
    return files, held_out


@lru_cache(maxsize=4)
def _corpus(folder: Path, limit: int) -> tuple[Tensor, Tensor, str]:
    """Return the text to train on, the text held out, and the first digits of the digest of both."""
    if not folder.is_dir():
        raise ValueError(f"There is no folder {str(folder)!r} to read text from: pass the folder of some Python source")
    parts = [b"".join(files) for files in _split(folder, limit)]
    if not all(parts):
        raise ValueError(
            f"There are fewer than {_EVERY} Python files within {limit} bytes of {str(folder)!r}: raise the limit, or "
            "pass a folder with more"
        )
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:12]
    text, held_out = (torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts)
    return text, held_out, digest
