"""Clipping of contributions before the update: by a running scale of norms, a fixed norm, or by lateness."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._util.checks import POSITIVE, UNIT, Range
from .base import Arrival, AsyncOptimizer, Group, Params, Work
from .momentum import BETA

__all__ = ["Clipped", "LatenessClipped", "is_informative", "next_scale", "norm"]

_CLIP = Range(1, low_open=True, advice="; at 1 or below the scale could only shrink")
_SIXTEEN_BITS = frozenset({torch.float16, torch.bfloat16})

LOOSE = 4.0
"""Clip factor while ratios are estimated."""
RATE = 0.01
"""Rate of the running means of ratios, their reference and waiting times."""
LAST_BIN = 6
"""Index of the last lateness bin, which begins at 5.7 times the mean wait; bin 0 holds what is not late."""


def is_informative(length: float) -> bool:
    """Return whether this norm counts in the scale: zero (a sample already learnt) and non-finite ones do not."""
    return math.isfinite(length) and length > 0.0


def next_scale(scale: float, length: float, *, clip: float, rate: float) -> float:
    """Return the running scale after a gradient of this norm; a scale of 0 is set by its first gradient.

    ``s = (1-rate)·s + rate·min(norm, clip·s)``: the norm after clipping counts, so that a single huge gradient raises
    the scale by a factor of at most ``1 + rate·(clip-1)``. Norms that are zero or not finite do not count.
    """
    if not is_informative(length):
        return scale
    if scale == 0.0:
        return length
    return (1.0 - rate) * scale + rate * min(length, clip * scale)


def norm(tensors: list[Tensor]) -> float:
    """Return the Euclidean norm of all tensors together in one pass; 16-bit tensors are summed in 32 bits."""
    if any(t.dtype in _SIXTEEN_BITS for t in tensors):
        lengths = [torch.linalg.vector_norm(t, dtype=_wide(t.dtype)) for t in tensors]
    else:
        lengths = list(torch._foreach_norm(tensors))
    if len({(length.dtype, length.device) for length in lengths}) == 1:
        total = math.hypot(*torch.stack(lengths).tolist())  # synchronises with the device once
    else:
        total = math.hypot(*map(float, lengths))
    if math.isinf(total):  # may be an overflow of 32 bits
        total = math.hypot(*(float(torch.linalg.vector_norm(_as_real(t).double())) for t in tensors))
    return total


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _SIXTEEN_BITS else dtype


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class Clipped(AsyncOptimizer):
    """Mixin that clips contributions before a rule with one point: ``g·min(1, c·s/‖g‖)``.

    ``s = (1-r)·s + r·min(‖g‖, c·s)`` is a running scale of norms, set by the first gradient. With ``clip_at`` the
    threshold is that number instead. Arrivals of weight zero do not count. Norms and scales belong to a param group and
    are kept in it as numbers; reading a norm synchronises with the device.

    `last_scale` is the factor of the last gradient: the declared influence of a method that clips is for gradients that
    are not clipped, and the actual one is the product of both. Rules with two points cannot be clipped like this: there
    a difference of gradients arrives, whose norm says little about theirs.
    """

    ranges: ClassVar[Mapping[str, Range]] = {**AsyncOptimizer.ranges, "clip": _CLIP, "clip_rate": UNIT}
    bookkeeping: ClassVar[frozenset[str]] = AsyncOptimizer.bookkeeping | {"clip_scale"}
    _own_attributes: ClassVar[tuple[str, ...]] = (*AsyncOptimizer._own_attributes, "last_scale")

    last_scale: float = 1.0
    """Factor of the last arrival, 0 if it had weight zero.

    With several param groups, the mean of their factors weighted by squared norms.
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
            passed = total = 0.0
            clipped: Work = []
            for group, params, grads in work:
                length = norm(grads)
                threshold = self._threshold(group, length, arrival)
                # Non-finite gradients are not scaled, so that they are noticed elsewhere.
                factor = threshold / length if threshold < length < math.inf else 1.0
                clipped.append((group, params, grads if factor == 1.0 else list(torch._foreach_mul(grads, factor))))
                square = min(length, 1e150) ** 2
                passed, total = passed + factor * square, total + square
            work, self.last_scale = clipped, passed / total if total else 1.0
        super()._apply(work, arrival)

    def _threshold(self, group: Group, length: float, arrival: Arrival) -> float:
        """Return the norm to which a gradient of this norm is clipped, and update the scale."""
        if group.get("clip_at") is not None:
            return float(group["clip_at"])
        clip, scale = float(group["clip"]), group["clip_scale"]
        group["clip_scale"] = next_scale(scale, length, clip=clip, rate=float(group["clip_rate"]))
        return clip * scale if scale else math.inf


class LatenessClipped(Clipped):
    """Mixin that clips contributions before a rule with one point, by what is usual for gradients of their lateness.

    ``clip(g) = g·min(1, c·s·r/‖g‖)``, ``s = (1-rate)·s + rate·min(‖g‖/r, c·s)``, with one ratio r per lateness
    bin. Lateness is the wait of the gradient over the mean wait of its worker; its bins grow by factors of √2.
    r is the mean of ``‖g‖/z`` over the bin, and z a running scale of all norms. Both are estimated with a looser clip
    (four times the usual), so that one gradient changes them only slightly.

    Until a gradient is late, lateness carries no information, and a rare group of large gradients would look like
    outliers. So nothing is clipped, and without delay the rule is the one without clip.
    """

    ranges: ClassVar[Mapping[str, Range]] = {**Clipped.ranges, "beta": BETA}
    bookkeeping: ClassVar[frozenset[str]] = Clipped.bookkeeping | {
        "clip_usual",
        "clip_ratios",
        "clip_visits",
        "clip_waits",
        "clip_late",
    }

    _fixed: ClassVar[Mapping[str, Any]] = {}
    """Options of the rule that are not the user's choice."""

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        clip: float = 1.5,
        clip_rate: float = 0.01,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"beta": beta, **self._fixed, "clip": clip, "clip_rate": clip_rate}
        AsyncOptimizer.__init__(
            self, params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed
        )

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        group["clip_usual"], group["clip_ratios"], group["clip_visits"], group["clip_waits"] = 0.0, [], [], {}
        group["clip_late"] = 0

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict`; those of version 0.2 do not have the number of workers that have waited."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["clip_late"] = sum(mean != 1.0 for mean, _ in group["clip_waits"].values())

    def _threshold(self, group: Group, length: float, arrival: Arrival) -> float:
        clip, s, z = float(group["clip"]), group["clip_scale"], group["clip_usual"]
        k = self._lateness_bin(group, arrival)
        # New lists, so that an earlier state_dict keeps its own.
        ratios = [*group["clip_ratios"], *[1.0] * (k + 1 - len(group["clip_ratios"]))]
        visits = [*group["clip_visits"], *[0] * (k + 1 - len(group["clip_visits"]))]
        r = ratios[k]
        if is_informative(length):
            if z:
                visits[k] += 1
                # At first the mean of all visits, counting the initial 1 as one of them; later a running mean.
                ratios[k] += max(RATE, 1.0 / (visits[k] + 1)) * (min(length / z, LOOSE * r) - r)
            group["clip_scale"] = next_scale(s, length / r, clip=clip, rate=float(group["clip_rate"]))
            group["clip_usual"] = next_scale(z, length, clip=LOOSE * r, rate=RATE)
            group["clip_ratios"], group["clip_visits"] = ratios, visits
        return clip * s * r if s and group["clip_late"] else math.inf

    def _lateness_bin(self, group: Group, arrival: Arrival) -> int:
        """Return the lateness bin of an arrival: 0 below its worker's mean wait, then one bin per factor of √2."""
        worker, wait = int(arrival.worker or 0), arrival.delay + 1
        waits = group["clip_waits"]
        before, visits = waits.get(worker, (1.0, 0))
        late = wait / before if visits else 1.0
        mean = before if visits else 0.0
        mean += max(RATE, 1.0 / (visits + 1)) * (wait - mean)
        waits[worker] = mean, visits + 1
        # How many workers have waited: counted, because there may be very many of them.
        group["clip_late"] += (mean != 1.0) - (before != 1.0)
        return 0 if late < 1.0 else min(LAST_BIN, 1 + math.floor(2.0 * math.log2(late)))
