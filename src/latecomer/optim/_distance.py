"""Part of the elements of a model, on which a rule estimates how far the parameters have to go."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .adamw import all_as_real

__all__ = ["inner_product", "root_mean_square", "sampled", "sum_of_absolutes"]

SMALL, WIDTH, BLOCK = 1 << 16, 256, 2048
"""Of a model with at least `SMALL` elements, the first `WIDTH` of every `BLOCK` elements are looked at."""


def sampled(tensor: Tensor, start: int, total: int) -> Tensor:
    """Return the elements of a tensor that are looked at, as a vector; 16-bit ones in 32 bits.

    Which ones does not depend on how a model's elements are split into tensors: they are counted from its first.

    Args:
        tensor: The tensor.
        start: Number of the model's elements before it.
        total: Number of all elements of the model.

    Examples:
        >>> whole = torch.arange(70_000)
        >>> parts = [sampled(part, start, 70_000) for start, part in ((0, whole[:3000]), (3000, whole[3000:]))]
        >>> bool((torch.cat(parts) == sampled(whole, 0, 70_000)).all()), len(sampled(whole, 0, 70_000))
        (True, 8960)
    """
    (real,) = all_as_real([tensor.detach()])
    flat = real.reshape(-1)
    if total >= SMALL:
        factor = flat.numel() // max(1, tensor.numel())  # 2 of a complex tensor
        flat = _blocks(flat, start * factor)
    return flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat


def _blocks(flat: Tensor, start: int) -> Tensor:
    size = flat.numel()
    begun = start % BLOCK  # elements of the first block that lie before this tensor
    head = min(size, (BLOCK - begun) % BLOCK)
    rows = (size - head) // BLOCK
    tail = head + rows * BLOCK
    parts = [
        flat[: max(0, min(head, WIDTH - begun))],
        flat[head:tail].view(rows, BLOCK)[:, :WIDTH].reshape(-1),
        flat[tail : tail + WIDTH],
    ]
    return torch.cat([part for part in parts if part.numel()] or [flat[:0]])


def inner_product(a: list[Tensor], b: list[Tensor]) -> float:
    """Return the sum of the products of all elements."""
    return _total([torch.dot(x, y) for x, y in zip(a, b, strict=True)])


def sum_of_absolutes(tensors: list[Tensor]) -> float:
    """Return the sum of the absolute values of all elements."""
    return _total(list(torch._foreach_norm(tensors, 1)))


def root_mean_square(tensors: list[Tensor]) -> float:
    """Return the root of the mean of the squares of all elements."""
    squares = math.fsum(float(torch.linalg.vector_norm(t.detach().to(_wide(t)))) ** 2 for t in tensors)
    return math.sqrt(squares / max(1, sum(t.numel() for t in tensors)))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _total(numbers: list[Tensor]) -> float:
    """Return the sum of tensors of one element; one synchronisation per device and dtype."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for number in numbers:
        kinds.setdefault((number.device, number.dtype), []).append(number)
    return math.fsum(x for several in kinds.values() for x in torch.stack(several).tolist())
