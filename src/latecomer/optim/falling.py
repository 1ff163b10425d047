"""Ordered momentum whose beta falls: the bias against late gradients goes away with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from .base import Arrival, AsyncOptimizer, Group, Params, Work
from .checks import AT_LEAST_ZERO, Range, whole_number
from .momentum import MomentumRule, OrderedMomentum

__all__ = ["FallingOrderedMomentum"]


class FallingOrderedMomentum(OrderedMomentum):
    """Algorithm 1 with ``beta_t = min(1, beta·(since/t)^power)``: a momentum that looks back ever longer.

    A gradient of delay d has ``(1-beta)^d`` of its say, which goes to 1 with beta, while the longer memory keeps the
    noise down. Coefficients follow the version of a gradient.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient at update ``since``.
        power: How fast beta falls.
        since: The update at which beta is ``beta``.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = FallingOrderedMomentum([x], lr=0.1, beta=0.1, power=0.5, since=4)
        >>> for t in range(1, 17):
        ...     x.grad = torch.ones(1); opt.step()
        ...     if t in (1, 4, 16): print(round(opt.param_groups[0]["beta"], 3))
        0.2
        0.1
        0.05
    """

    method = "ordered-falling"
    ranges: ClassVar[Mapping[str, Range]] = {**MomentumRule.ranges, "power": AT_LEAST_ZERO}
    bookkeeping: ClassVar[frozenset[str]] = AsyncOptimizer.bookkeeping | {"first_beta"}

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        power: float = 0.5,
        since: int = 100,
        weight_decay: float = 0.0,
        output: str = "last",
        seed: int = 0,
    ) -> None:
        options = {"beta": beta, "catch_up": False, "power": power, "since": whole_number("since", since, least=1)}
        MomentumRule.__init__(self, params, options, lr=lr, weight_decay=weight_decay, output=output, seed=seed)

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        group["first_beta"] = float(group["beta"])

    def _apply(self, work: Work, arrival: Arrival) -> None:
        for group in self.param_groups:
            group["beta"] = min(1.0, group["first_beta"] * math.pow(group["since"] / arrival.t, group["power"]))
        super()._apply(work, arrival)
