"""A clip that is even: a gradient is compared with what is usual for gradients as late as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from .base import Arrival, AsyncOptimizer, Group, Params
from .checks import Range
from .clipping import Clipped, counts, next_scale
from .momentum import BETA

__all__ = ["EvenlyClipped"]

LOOSE = 4.0
"""How many times the usual norm counts in full where ratios are learnt."""
RATE = 0.01
"""Of ratios, of what they refer to, and of mean waits."""
CLASSES = 6
"""Of lateness, besides those that are not late: the last begins at 5.7 times the mean wait."""


class EvenlyClipped(Clipped):
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
        >>> say = {}
        >>> for name, rule in (("one scale", lc.optim.ClippedCatchUp), ("even", lc.optim.EvenCatchUp)):
        ...     x = torch.nn.Parameter(torch.zeros(1))
        ...     opt, passed = rule([x], lr=0.0, clip=1.5), []
        ...     for t in range(1000):              # one in ten is late, and ten times as large
        ...         x.grad = torch.tensor([10.0 if t % 10 == 9 else 1.0])
        ...         opt.step(delay=5 if t % 10 == 9 else 0); passed.append(opt.last_scale)
        ...     say[name] = round(sum(passed[509::10]) / 50, 2)
        >>> say
        {'one scale': 0.16, 'even': 1.0}
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
        seed: int = 0,
    ) -> None:
        options = {"beta": beta, **self._fixed, "clip": clip, "clip_rate": clip_rate}
        AsyncOptimizer.__init__(self, params, options, lr=lr, weight_decay=weight_decay, output=output, seed=seed)

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
        if counts(length):
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
