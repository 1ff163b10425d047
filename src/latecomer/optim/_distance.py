"""Part of the elements of a model, on which a rule estimates how far the parameters have to go."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .adamw import all_as_real

__all__ = ["LEVELS", "joined", "level_of", "looked_at", "quotients", "root_mean_square", "together"]

LEVELS = ((0, 1, 1), (1 << 16, 1 << 16, 2048), (1_000_000, 1 << 16, 512), (1 << 22, 1 << 18, 2048))
"""By level: from how many elements on a model has it, the size of a block, and how many of its elements are looked at.

They lie in runs of `RUN` that are spread evenly over the block. At level 0 it is every element."""
RUN = 256


def level_of(tensors: Sequence[Tensor]) -> int:
    """Return the highest level at which a model has both enough elements and a tensor of at least one block.

    Examples:
        >>> [level_of([torch.empty(n, device="meta")]) for n in (1000, 100_000, 2_000_000, 12_000_000)]
        [0, 1, 2, 3]
        >>> level_of([torch.empty(200, 200)] * 40)          # no tensor has a block
        0
    """
    sizes = [tensor.numel() for tensor in tensors]
    total, largest = sum(sizes), max(sizes)
    return max(
        level for level, (least, block, _) in enumerate(LEVELS) if total >= least and largest >= min(block, total)
    )


def looked_at(tensor: Tensor, level: int) -> Tensor:
    """Return the elements of a tensor that are looked at; where possible a view, 16-bit ones in 32 bits.

    Examples:
        >>> looked_at(torch.zeros(3, 5), level=0).shape, looked_at(torch.zeros(1 << 17), level=1).shape
        (torch.Size([15]), torch.Size([2, 8, 256]))
    """
    _, block, width = LEVELS[level]
    if level and tensor.is_contiguous() and tensor.dtype in (torch.float32, torch.float64):
        runs = width // RUN
        return tensor.detach().as_strided((tensor.numel() // block, runs, RUN), (block, block // runs, 1))  # few calls
    (real,) = all_as_real([tensor.detach()])
    flat = real.reshape(-1)
    if level:
        flat = flat[: len(flat) // block * block].view(-1, width // RUN, block * RUN // width)[..., :RUN]
    return flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat


def together(tensors: list[Tensor], level: int) -> Tensor:
    """Return the elements of several tensors that are looked at, as one vector.

    Examples:
        >>> together([torch.zeros(3), torch.ones(2, 2)], level=0)
        tensor([0., 0., 0., 1., 1., 1., 1.])
    """
    parts = [looked_at(tensor, level) for tensor in tensors]
    if len(parts) == 1:
        return parts[0].reshape(-1)
    return torch.cat([part if level else part.reshape(-1) for part in parts]).reshape(-1)


def joined(parts: list[Tensor]) -> Tensor:
    """Return several tensors as one vector; of a single one it is a view.

    Examples:
        >>> joined([torch.zeros(1, 2), torch.ones(2)])
        tensor([0., 0., 1., 1.])
    """
    return parts[0].view(-1) if len(parts) == 1 else torch.cat([part.view(-1) for part in parts])


def quotients(g: Tensor, v: Tensor, decay: float, eps: float) -> Tensor:
    """Return ``g²/(decay·v + (1-decay)·g² + eps²)``, and zero where all of it is zero.

    Examples:
        >>> quotients(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0]), 0.5, 0.0)
        tensor([1.6000, 0.0000])
    """
    squares = g * g
    below = torch.mul(v, decay).add_(squares, alpha=1.0 - decay).add_(eps * eps)
    return squares.div_(below).nan_to_num_(nan=0.0)


def root_mean_square(tensors: list[Tensor]) -> float:
    """Return the root of the mean of the squares of all elements."""
    squares = math.fsum(float(torch.linalg.vector_norm(t.detach().to(_wide(t)))) ** 2 for t in tensors)
    return math.sqrt(squares / max(1, sum(t.numel() for t in tensors)))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64
