"""Part of the elements of a model, on which a rule estimates how far the parameters have to go."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .adamw import all_as_real

__all__ = [
    "BLOCK",
    "SMALL",
    "Workspace",
    "inner_product",
    "looked_at",
    "root_mean_square",
    "sum_of_absolutes",
    "sum_of_roots",
]

SMALL, WIDTH, BLOCK = 1 << 16, 2048, 1 << 16
"""Of a model with at least `SMALL` elements, the first `WIDTH` of every `BLOCK` elements of a tensor are looked at."""


def looked_at(tensor: Tensor, everything: bool) -> Tensor:
    """Return the elements of a tensor that are looked at; where possible a view, 16-bit ones in 32 bits.

    Args:
        tensor: The tensor.
        everything: Whether these are all of its elements, or one in thirty-two.

    Examples:
        >>> looked_at(torch.zeros(3, 5), everything=True).shape, looked_at(torch.zeros(2 * BLOCK), False).shape
        (torch.Size([15]), torch.Size([2, 2048]))
    """
    (real,) = all_as_real([tensor.detach()])
    flat = real.reshape(-1)
    if not everything:
        flat = flat[: len(flat) // BLOCK * BLOCK].view(-1, BLOCK)[:, :WIDTH]
    return flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat


class Workspace:
    """Memory for intermediate results that is kept: new memory costs more than what is computed in it."""

    def __init__(self) -> None:
        self._layout: tuple[object, ...] = ()
        self._flat = torch.empty(0)
        self._views: list[Tensor] = []

    def __call__(self, tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]] | None:
        """Return one vector, and its parts in the shapes of these tensors; None if they are of several kinds."""
        kinds = {(t.dtype, t.device) for t in tensors}
        if len(kinds) > 1:
            return None
        layout = (*kinds, *(t.shape for t in tensors))
        if layout != self._layout:
            self._layout = layout
            self._flat = torch.empty(sum(t.numel() for t in tensors), dtype=tensors[0].dtype, device=tensors[0].device)
            parts = torch.split(self._flat, [t.numel() for t in tensors])
            self._views = [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
        return self._flat, self._views


def inner_product(g: list[Tensor], a: list[Tensor], b: list[Tensor], workspace: Workspace | None = None) -> float:
    """Return the inner product of g and a - b over all elements."""
    space = workspace(a) if workspace is not None else None
    if space is None:
        differences = torch._foreach_sub(a, b)
        return _total([torch.dot(x.reshape(-1), y.reshape(-1)) for x, y in zip(g, differences, strict=True)])
    flat, views = space
    torch._foreach_copy_(views, a)
    torch._foreach_sub_(views, b)
    torch._foreach_mul_(views, g)
    return float(flat.sum())


def sum_of_absolutes(tensors: list[Tensor], workspace: Workspace | None = None) -> float:
    """Return the sum of the absolute values of all elements."""
    space = workspace(tensors) if workspace is not None else None
    if space is None:
        return _total(list(torch._foreach_norm(tensors, 1)))
    flat, views = space
    torch._foreach_copy_(views, tensors)
    return float(flat.abs_().sum())


def sum_of_roots(tensors: list[Tensor], workspace: Workspace | None = None) -> float:
    """Return the sum of the square roots of all elements."""
    space = workspace(tensors) if workspace is not None else None
    if space is None:
        return _total([root.sum() for root in torch._foreach_sqrt(tensors)])
    flat, views = space
    torch._foreach_copy_(views, tensors)
    return float(flat.sqrt_().sum())


def sum_of_quotients(g: list[Tensor], v: list[Tensor], decay: float, eps: float) -> float:
    """Return the sum of ``g²/(decay·v + (1-decay)·g² + eps²)`` over all elements; of zeros alone it is zero.

    Examples:
        >>> sum_of_quotients([torch.tensor([2.0, 0.0])], [torch.tensor([1.0, 0.0])], 0.5, 0.0)
        1.6
    """
    squares = torch._foreach_mul(g, g)
    below = torch._foreach_mul(v, decay)
    torch._foreach_add_(below, squares, alpha=1.0 - decay)
    torch._foreach_add_(below, eps * eps)
    torch._foreach_div_(squares, below)
    return _total([each.nan_to_num_(nan=0.0).sum() for each in squares])


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
