"""Clipping of what arrives, before a rule sees it: to a running scale of gradient norms, or to a fixed norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Arrival, AsyncOptimizer, Group, Work
from .checks import POSITIVE, UNIT, Range, whole_number

__all__ = ["SCALES", "Clipped", "clip_options", "next_scale", "norms"]

SCALES = ("all", "tensor", "delay", "lateness")
"""What a running scale may belong to."""

_CLIP = Range(1, low_open=True, advice="; at 1 or below the scale could only shrink")
_LOOSE = 4.0  # how many times the usual norm counts in full where ratios are learnt
_RATE = 0.01  # of ratios, of what they refer to, and of mean waits
_CLASSES = 6  # of lateness, besides those that are not late: the last begins at 5.7 times the mean wait
_SIXTEEN_BITS = frozenset({torch.float16, torch.bfloat16})


def clip_options(
    clip: float, clip_rate: float, clip_scale: str, clip_norm: float | None, feedback: float
) -> dict[str, Any]:
    """Return the entries of a param group that `Clipped` reads.

    Examples:
        >>> clip_options(2.0, 0.01, "all", None, 0.0)["clip_scale"]
        'all'
    """
    names = {"clip": clip, "clip_rate": clip_rate, "clip_scale": clip_scale, "clip_norm": clip_norm}
    return {**names, "feedback": feedback, "sizes": None}


def next_scale(scale: float, norm: float, *, clip: float, rate: float) -> float:
    """Return the running scale after a gradient of this norm; a scale of 0 is set by the next gradient.

    ``s = (1-rate)·s + rate·min(norm, clip·s)``: the norm that counts is the one after clipping, so that a single huge
    gradient raises the scale by a factor of at most ``1 + rate·(clip-1)``.

    Examples:
        >>> next_scale(0.0, 5.0, clip=2.0, rate=0.5), next_scale(1.0, 1e9, clip=2.0, rate=0.5)
        (5.0, 1.5)
    """
    if scale == 0.0:
        return norm if math.isfinite(norm) else 0.0
    return (1.0 - rate) * scale + rate * min(norm, clip * scale)


def norms(tensors: list[Tensor]) -> list[float]:
    """Return the Euclidean norm of each tensor, in one pass over memory; 16-bit ones are added up in 32 bits.

    Examples:
        >>> norms([torch.tensor([3.0, 4.0]), torch.full((70_000,), 2.0, dtype=torch.float16)])
        [5.0, 529.1502685546875]
    """
    if any(t.dtype in _SIXTEEN_BITS for t in tensors):
        return [float(torch.linalg.vector_norm(t, dtype=_wide(t.dtype))) for t in tensors]
    return [float(norm) for norm in torch._foreach_norm(tensors)]


def _anything_late(group: Group) -> bool:
    return any(mean != 1.0 for mean, _ in group["clip_waits"].values())


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _SIXTEEN_BITS else dtype


class Clipped(AsyncOptimizer):
    """Mixin in front of a rule with one point: what arrives is clipped first, ``g·min(1, threshold/‖g‖)``.

    The threshold is ``clip·s`` with a running scale ``s = (1-clip_rate)·s + clip_rate·min(‖g‖, clip·s)`` that the first
    gradient sets, or ``clip_norm`` if that is given. With ``feedback`` what is cut off comes back with the next
    arrival, ``u = g + feedback·e``; ``clip(u)`` is applied and ``e = u - clip(u)`` kept. The scale follows ``‖g‖``, not
    ``‖u‖``, so a backlog cannot raise its own threshold. Arrivals that weigh nothing are not looked at.

    Norms and scales are those of a param group. ``clip_scale`` says what has a scale of its own: ``"all"`` parameters
    of the group together, each ``"tensor"``, or each range of ``"delay"`` (0, 1, 2-3, 4-7, ...). With ``"lateness"``
    every norm is first divided by what is usual for a gradient that is so late for its worker: its wait over the
    worker's mean wait, in classes by factors of √2; clip and scale are then those of the quotient, and nothing is
    clipped before a first gradient was late: without delay the rule is the one without a clip. A group of one flat
    parameter whose entry ``sizes`` gives the lengths of the tensors in it, as `latecomer.simulate` and `latecomer.fit`
    make it, is cut there. Scales are kept as numbers in ``group["clip_scales"]``; reading a norm waits for the device.

    How much of a gradient passed is in `last_scale`: the declared influence of a clipped method is that of a gradient
    that the clip does not touch, and what it really was is the product of both. Rules with two points are left out:
    what arrives there is a difference of gradients, whose norm says little about theirs.

    Examples:
        >>> import latecomer as lc
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = lc.optim.ClippedAsyncSGD([x], lr=1.0, clip=2.0, clip_rate=0.5)
        >>> for g in (1.0, 10.0, 3.0):            # thresholds: none, 2 · 1, 2 · 1.5
        ...     x.grad = torch.tensor([g]); opt.step(); print(x.item(), opt.last_scale)
        -1.0 1.0
        -3.0 0.2
        -6.0 1.0
    """

    ranges: ClassVar[Mapping[str, Range]] = {
        **AsyncOptimizer.ranges,
        "clip": _CLIP,
        "clip_rate": UNIT,
        "feedback": Range(0, 1),
    }
    bookkeeping: ClassVar[frozenset[str]] = AsyncOptimizer.bookkeeping | {"clip_scales", "clip_visits", "clip_waits"}
    _own_attributes: ClassVar[tuple[str, ...]] = (*AsyncOptimizer._own_attributes, "last_scale")

    last_scale: float = 1.0
    """Factor by which the last arrival was multiplied, 0 if it weighed nothing.

    With a scale per tensor, the mean of the factors weighted by the squared norms: the share of the gradient, along
    itself, that passed. With feedback it is the factor of ``u``; what it cut off is not lost but late.
    """

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        group["clip_scales"], group["clip_visits"], group["clip_waits"] = [], [], {}

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group["clip_scale"] not in SCALES:
            raise ValueError(f"Invalid clip_scale value: {group['clip_scale']!r} (expected one of {', '.join(SCALES)})")
        if group["clip_norm"] is not None:
            POSITIVE.check("clip_norm", group["clip_norm"])
        if group["sizes"] is not None:
            total = sum(whole_number("sizes", size) for size in group["sizes"])
            shapes = [tuple(p.shape) for p in group["params"] if isinstance(p, Tensor)]
            if shapes and shapes != [(total,)]:
                raise ValueError(f"Invalid sizes value: they add up to {total}, the parameters have shapes {shapes}")

    def _apply(self, work: Work, arrival: Arrival) -> None:
        if not self.needs(arrival):
            self.last_scale = 0.0
        else:
            passed = whole = 0.0
            clipped: Work = []
            for group, params, grads in work:
                result, factors, lengths = self._clip(group, params, grads, arrival)
                clipped.append((group, params, result))
                squares = [min(length, 1e150) ** 2 for length in lengths]
                passed += sum(f * square for f, square in zip(factors, squares, strict=True))
                whole += sum(squares)
            work, self.last_scale = clipped, passed / whole if whole else 1.0
        super()._apply(work, arrival)

    def _clip(
        self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival
    ) -> tuple[list[Tensor], list[float], list[float]]:
        """Return what is left of one group's gradients, the factors, and the norms they were taken by."""
        lengths = [math.hypot(*norms(unit)) for unit in self._units(group, grads)]
        thresholds = self._thresholds(group, params, lengths, arrival)
        leak = float(group["feedback"])
        result = grads
        if leak:
            e = self._buffers(params, "e", torch.zeros_like)
            result = list(torch._foreach_add(grads, e, alpha=leak))
            lengths = [math.hypot(*norms(unit)) for unit in self._units(group, result)]
        factors = [
            1.0 if length <= threshold else threshold / length
            for length, threshold in zip(lengths, thresholds, strict=True)
        ]
        if leak:
            torch._foreach_copy_(e, result)
        if any(factor != 1.0 for factor in factors):
            result = result if leak else [g.clone() for g in grads]
            for unit, factor in zip(self._units(group, result), factors, strict=True):
                if factor != 1.0:
                    torch._foreach_mul_(unit, factor)
        if leak:
            torch._foreach_sub_(e, result)
        return result, factors, lengths

    def _units(self, group: Group, tensors: list[Tensor]) -> list[list[Tensor]]:
        """Return what is clipped by a factor of its own: lists of tensors, or of views."""
        if group["clip_scale"] != "tensor":
            return [tensors]
        if group["sizes"] is None:
            return [[t] for t in tensors]
        return [[piece] for t in tensors for piece in torch.split(t, group["sizes"])]

    def _thresholds(self, group: Group, params: list[Tensor], lengths: list[float], arrival: Arrival) -> list[float]:
        """Return the threshold of every unit and move the scales on."""
        if group["clip_norm"] is not None:
            return [float(group["clip_norm"])] * len(lengths)
        if group["clip_scale"] == "lateness":
            return [self._by_lateness(group, lengths[0], arrival)]
        places = [0]
        if group["clip_scale"] == "delay":
            places = [arrival.delay.bit_length()]
        elif group["clip_scale"] == "tensor":
            places = list(range(len(lengths)))
            if len(params) < len(group["params"]):  # some have no gradient this time
                place = {id(p): i for i, p in enumerate(group["params"])}
                places = [place[id(p)] for p in params]
        clip, rate = float(group["clip"]), float(group["clip_rate"])
        # A new list, so that a state_dict taken before keeps its own.
        scales = [*group["clip_scales"], *[0.0] * (max(places) + 1 - len(group["clip_scales"]))]
        thresholds = []
        for i, length in zip(places, lengths, strict=True):
            thresholds.append(clip * scales[i] if scales[i] else math.inf)
            scales[i] = next_scale(scales[i], length, clip=clip, rate=rate)
        group["clip_scales"] = scales
        return thresholds

    def _by_lateness(self, group: Group, length: float, arrival: Arrival) -> float:
        """Return the threshold for so late a gradient of this worker, and move everything on that it depends on.

        A norm is first divided by the ratio r of its class, how large gradients so late usually are; the scale s and
        the clip are those of the quotient. Ratios and the scale z they refer to are learnt with a clip of their own,
        so loose that a class need not be pure to have its ratio, and so that one gradient moves it by little.
        As long as nothing has been late, lateness says nothing and a rare group of large gradients could not be told
        from outliers: nothing is clipped.
        """
        clip, rate = float(group["clip"]), float(group["clip_rate"])
        s, z, *ratios = group["clip_scales"] or [0.0, 0.0]
        place = self._lateness(group, arrival)
        ratios += [1.0] * (place + 1 - len(ratios))
        visits = [*group["clip_visits"], *[0] * (place + 1 - len(group["clip_visits"]))]
        r = ratios[place]
        if not math.isfinite(length):
            return clip * s * r if s and _anything_late(group) else math.inf
        if z:
            visits[place] += 1
            # The mean of all visits at first, with the 1 it starts at as one of them; a running mean later on.
            ratios[place] += max(_RATE, 1.0 / (visits[place] + 1)) * (min(length / z, _LOOSE * r) - r)
        group["clip_scales"] = [
            next_scale(s, length / r, clip=clip, rate=rate),
            next_scale(z, length, clip=_LOOSE * r, rate=_RATE),
            *ratios,
        ]
        group["clip_visits"] = visits
        return clip * s * r if s and _anything_late(group) else math.inf

    def _lateness(self, group: Group, arrival: Arrival) -> int:
        """Return the class of an arrival: 0 below its worker's mean wait, then one class for every factor of √2."""
        worker, wait = arrival.worker or 0, arrival.delay + 1
        mean, visits = group["clip_waits"].get(worker, (0.0, 0))
        late = wait / mean if visits else 1.0
        mean += max(_RATE, 1.0 / (visits + 1)) * (wait - mean)
        group["clip_waits"] = {**group["clip_waits"], worker: (mean, visits + 1)}
        return 0 if late < 1.0 else min(_CLASSES, 1 + math.floor(2.0 * math.log2(late)))
