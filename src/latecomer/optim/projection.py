"""Projections onto the feasible set K of the convex method, in place on the list of all parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .._util.checks import POSITIVE

__all__ = ["Ball", "Box", "Projection"]

Projection = Callable[[list[Tensor]], Sequence[Tensor] | None]
"""Projects a list of tensors onto a convex set, in place or by returning new ones."""

Bound = float | Sequence[Tensor]


class Ball:
    """Euclidean ball, joint over all parameters: ``‖(x_1, x_2, ...) - centre‖ <= radius``.

    Args:
        radius: Its radius; the paper's diameter D is twice that.
        centre: A number for every coordinate, or one tensor per parameter.

    Examples:
        >>> x = [torch.tensor([3.0]), torch.tensor([4.0])]
        >>> Ball(radius=2.5)(x)
        >>> [t.item() for t in x]
        [1.5, 2.0]
    """

    def __init__(self, radius: float, centre: Bound = 0.0) -> None:
        self.radius = POSITIVE.check("radius", radius)
        self.centre = _bound("centre", centre)

    @torch.no_grad()
    def __call__(self, tensors: list[Tensor]) -> None:
        """Scale the offset from the centre down to the radius; inside the ball nothing changes."""
        _check_shapes("centre", self.centre, tensors)
        offsets = torch._foreach_sub(tensors, self.centre)
        # 16-bit norms overflow long before the parameters do.
        wide = [t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in offsets]
        norm = math.hypot(*(t.item() for t in torch._foreach_norm(wide)))
        if norm > self.radius:
            torch._foreach_mul_(offsets, self.radius / norm)
            torch._foreach_add_(offsets, self.centre)
            torch._foreach_copy_(tensors, offsets)

    def __repr__(self) -> str:
        return f"Ball(radius={self.radius:g}, centre={_shown_bound(self.centre)})"


class Box:
    """Box: ``low <= x <= high`` for every coordinate.

    Args:
        low: A number for every coordinate (``-math.inf`` for none), or one tensor per parameter.
        high: Likewise.

    Examples:
        >>> x = [torch.tensor([-3.0, 0.5, 4.0])]
        >>> Box(-1, 1)(x)
        >>> x[0].tolist()
        [-1.0, 0.5, 1.0]
    """

    def __init__(self, low: Bound, high: Bound) -> None:
        self.low, self.high = _bound("low", low), _bound("high", high)
        if isinstance(self.low, float) and isinstance(self.high, float) and not self.low <= self.high:
            raise ValueError(f"Invalid box: low {self.low:g} is above high {self.high:g}")

    @torch.no_grad()
    def __call__(self, tensors: list[Tensor]) -> None:
        """Clamp every coordinate."""
        _check_shapes("low", self.low, tensors)
        _check_shapes("high", self.high, tensors)
        torch._foreach_clamp_min_(tensors, self.low)
        torch._foreach_clamp_max_(tensors, self.high)

    def __repr__(self) -> str:
        return f"Box(low={_shown_bound(self.low)}, high={_shown_bound(self.high)})"


def _bound(name: str, value: Bound) -> float | list[Tensor]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if math.isnan(value):
            raise ValueError(f"Invalid {name} value: nan")
        return float(value)
    if isinstance(value, Tensor) or not isinstance(value, Sequence) or not all(isinstance(t, Tensor) for t in value):
        raise TypeError(
            f"Invalid {name} value: {type(value).__name__} (expected a number, or a list with a tensor per parameter)"
        )
    return [t.detach().clone() for t in value]


def _check_shapes(name: str, bound: float | list[Tensor], tensors: list[Tensor]) -> None:
    if not isinstance(bound, float):
        shapes, expected = [tuple(t.shape) for t in bound], [tuple(t.shape) for t in tensors]
        if shapes != expected:
            raise ValueError(f"The {name} has tensors of shapes {shapes}, the parameters have {expected}")


def _shown_bound(bound: float | list[Tensor]) -> str:
    return f"{bound:g}" if isinstance(bound, float) else f"<{len(bound)} tensors>"
