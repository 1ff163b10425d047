"""Clipping of what arrives, before a rule sees it: to a running scale of norms, to a fixed norm, or by lateness."""

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
"""How many times the usual norm counts in full where ratios are learnt."""
RATE = 0.01
"""Of ratios, of what they refer to, and of mean waits."""
CLASSES = 6
"""Of lateness, besides those that are not late: the last begins at 5.7 times the mean wait."""


def is_informative(length: float) -> bool:
    """Return whether a gradient of this norm says how large gradients are: those of samples already learnt do not.

    Examples:
        >>> is_informative(0.5), is_informative(0.0), is_informative(math.nan)
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
    if not is_informative(length):
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


class LatenessClipped(Clipped):
    """Mixin in front of a rule with one point: what arrives is clipped by what is usual for a gradient so late.

    ``clip(g) = g·min(1, c·s·r/‖g‖)``, ``s = (1-rate)·s + rate·min(‖g‖/r, c·s)``, with one ratio r for every class of
    lateness: the wait of the gradient over the mean wait of its worker, in classes by factors of √2. r is the mean of
    ``‖g‖/z`` over the class and z a running scale of all norms. Both are learnt with a loose clip of their own (four
    times the usual), so that a class need not be pure to have its ratio while one gradient moves it by little.

    As long as nothing was late, lateness says nothing, and a rare group of large gradients could not be told from
    outliers: nothing is clipped, and without delay the rule is the one behind the clip.

    Examples:
        >>> import torch
        >>> import latecomer as lc
        >>> kept = {}
        >>> for name, rule in (("one scale", lc.optim.ClippedCatchUp), ("balanced", lc.optim.BalancedCatchUp)):
        ...     x = torch.nn.Parameter(torch.zeros(1))
        ...     opt, passed = rule([x], lr=0.0, clip=1.5), []
        ...     for t in range(1000):              # one in ten is late, and ten times as large
        ...         x.grad = torch.tensor([10.0 if t % 10 == 9 else 1.0])
        ...         opt.step(delay=5 if t % 10 == 9 else 0); passed.append(opt.last_scale)
        ...     kept[name] = round(sum(passed[509::10]) / 50, 2)
        >>> kept
        {'one scale': 0.16, 'balanced': 1.0}
    """

    ranges: ClassVar[Mapping[str, Range]] = {**Clipped.ranges, "beta": BETA}
    bookkeeping: ClassVar[frozenset[str]] = Clipped.bookkeeping | {
        "clip_usual",
        "clip_ratios",
        "clip_visits",
        "clip_waits",
    }

    _fixed: ClassVar[Mapping[str, Any]] = {}
    """Options that the rule behind the clip needs, and nobody chooses."""

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

    def _threshold(self, group: Group, length: float, arrival: Arrival) -> float:
        clip, s, z = float(group["clip"]), group["clip_scale"], group["clip_usual"]
        place = self._lateness(group, arrival)
        # New lists, so that a state_dict taken before keeps its own.
        ratios = [*group["clip_ratios"], *[1.0] * (place + 1 - len(group["clip_ratios"]))]
        visits = [*group["clip_visits"], *[0] * (place + 1 - len(group["clip_visits"]))]
        r = ratios[place]
        if is_informative(length):
            if z:
                visits[place] += 1
                # The mean of all visits at first, with the 1 it starts at as one of them; a running mean later on.
                ratios[place] += max(RATE, 1.0 / (visits[place] + 1)) * (min(length / z, LOOSE * r) - r)
            group["clip_scale"] = next_scale(s, length / r, clip=clip, rate=float(group["clip_rate"]))
            group["clip_usual"] = next_scale(z, length, clip=LOOSE * r, rate=RATE)
            group["clip_ratios"], group["clip_visits"] = ratios, visits
        anything_late = any(mean != 1.0 for mean, _ in group["clip_waits"].values())
        return clip * s * r if s and anything_late else math.inf

    def _lateness(self, group: Group, arrival: Arrival) -> int:
        """Return the class of an arrival: 0 below its worker's mean wait, then one class for every factor of √2."""
        worker, wait = int(arrival.worker or 0), arrival.delay + 1
        mean, visits = group["clip_waits"].get(worker, (0.0, 0))
        late = wait / mean if visits else 1.0
        mean += max(RATE, 1.0 / (visits + 1)) * (wait - mean)
        group["clip_waits"] = {**group["clip_waits"], worker: (mean, visits + 1)}
        return 0 if late < 1.0 else min(CLASSES, 1 + math.floor(2.0 * math.log2(late)))
