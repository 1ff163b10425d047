"""Clipping of what arrives, before a rule sees it: to a running scale of gradient norms, or to a fixed norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .base import Arrival, AsyncOptimizer, Group, Work
from .checks import POSITIVE, UNIT, Range

__all__ = ["Clipped", "counts", "next_scale", "norm"]

_CLIP = Range(1, low_open=True, advice="; at 1 or below the scale could only shrink")
_SIXTEEN_BITS = frozenset({torch.float16, torch.bfloat16})


def counts(length: float) -> bool:
    """Return whether a gradient of this norm says how large gradients are: those of samples already learnt do not.

    Examples:
        >>> counts(0.5), counts(0.0), counts(math.nan)
        (True, False, False)
    """
    return math.isfinite(length) and length > 0.0


def next_scale(scale: float, length: float, *, clip: float, rate: float) -> float:
    """Return the running scale after a gradient of this norm; a scale of 0 is set by the next gradient.

    ``s = (1-rate)·s + rate·min(norm, clip·s)``: the norm that counts is the one after clipping, so that a single huge
    gradient raises the scale by a factor of at most ``1 + rate·(clip-1)``. Norms of zero are not counted, nor are those
    that are not finite.

    Examples:
        >>> next_scale(0.0, 5.0, clip=2.0, rate=0.5), next_scale(1.0, 1e9, clip=2.0, rate=0.5)
        (5.0, 1.5)
    """
    if not counts(length):
        return scale
    if scale == 0.0:
        return length
    return (1.0 - rate) * scale + rate * min(length, clip * scale)


def norm(tensors: list[Tensor]) -> float:
    """Return the Euclidean norm of all tensors together, in one pass over memory; 16-bit ones add up in 32 bits.

    Examples:
        >>> norm([torch.tensor([3.0]), torch.tensor([4.0])]), norm([torch.full((70_000,), 2.0, dtype=torch.float16)])
        (5.0, 529.1502685546875)
    """
    if any(t.dtype in _SIXTEEN_BITS for t in tensors):
        lengths = [torch.linalg.vector_norm(t, dtype=_wide(t.dtype)) for t in tensors]
    else:
        lengths = list(torch._foreach_norm(tensors))
    if len({(length.dtype, length.device) for length in lengths}) == 1:
        total = math.hypot(*torch.stack(lengths).tolist())  # waits for the device once
    else:
        total = math.hypot(*map(float, lengths))
    if math.isinf(total):  # perhaps only in 32 bits
        total = math.hypot(*(float(torch.linalg.vector_norm(_real(t).double())) for t in tensors))
    return total


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _SIXTEEN_BITS else dtype


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class Clipped(AsyncOptimizer):
    """Mixin in front of a rule with one point: what arrives is clipped first, ``g·min(1, c·s/‖g‖)``.

    ``s = (1-r)·s + r·min(‖g‖, c·s)`` is a running scale of norms that the first gradient sets. With ``clip_at`` the
    threshold is that number instead. Arrivals that weigh nothing are not looked at. Norms and scales are those of a
    param group, kept as numbers in it; reading a norm waits for the device.

    How much of a gradient passed is in `last_scale`: the declared influence of a clipped method is that of a gradient
    that the clip does not touch, and what it really was is the product of both. Rules with two points are left out:
    what arrives there is a difference of gradients, whose norm says little about theirs.

    Examples:
        >>> import latecomer as lc
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = lc.optim.ClippedCatchUp([x], lr=1.0, beta=1.0, clip=2.0, clip_rate=0.5)
        >>> for g in (1.0, 10.0, 3.0):            # thresholds: none, 2 · 1, 2 · 1.5
        ...     x.grad = torch.tensor([g]); opt.step(); print(x.item(), opt.last_scale)
        -1.0 1.0
        -3.0 0.2
        -6.0 1.0
    """

    ranges: ClassVar[Mapping[str, Range]] = {**AsyncOptimizer.ranges, "clip": _CLIP, "clip_rate": UNIT}
    bookkeeping: ClassVar[frozenset[str]] = AsyncOptimizer.bookkeeping | {"clip_scale"}
    _own_attributes: ClassVar[tuple[str, ...]] = (*AsyncOptimizer._own_attributes, "last_scale")

    last_scale: float = 1.0
    """Factor by which the last arrival was multiplied, 0 if it weighed nothing.

    Over several param groups, the mean of their factors weighted by squared norms: the share of the gradient, along
    itself, that passed.
    """

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        group["clip_scale"] = 0.0

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group.get("clip_at") is not None:
            POSITIVE.check("clip_at", group["clip_at"])

    def _apply(self, work: Work, arrival: Arrival) -> None:
        if not self.needs(arrival):
            self.last_scale = 0.0
        else:
            passed = whole = 0.0
            clipped: Work = []
            for group, params, grads in work:
                length = norm(grads)
                threshold = self._threshold(group, length, arrival)
                # What is not finite passes as it is, for others to see.
                factor = threshold / length if threshold < length < math.inf else 1.0
                clipped.append((group, params, grads if factor == 1.0 else list(torch._foreach_mul(grads, factor))))
                square = min(length, 1e150) ** 2
                passed, whole = passed + factor * square, whole + square
            work, self.last_scale = clipped, passed / whole if whole else 1.0
        super()._apply(work, arrival)

    def _threshold(self, group: Group, length: float, arrival: Arrival) -> float:
        """Return the norm at which a gradient of this norm is cut off, and move the scale on."""
        if group.get("clip_at") is not None:
            return float(group["clip_at"])
        clip, scale = float(group["clip"]), group["clip_scale"]
        group["clip_scale"] = next_scale(scale, length, clip=clip, rate=float(group["clip_rate"]))
        return clip * scale if scale else math.inf
