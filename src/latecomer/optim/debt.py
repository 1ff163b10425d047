"""Catch-up paid in instalments: the displacement a late gradient missed becomes a debt, and every update pays some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .base import Arrival, Group, Params
from .checks import UNIT, Range
from .history import missed
from .kernels import accumulate_and_descend
from .momentum import MomentumRule, OrderedMomentum

__all__ = ["CatchUpDebt"]


class CatchUpDebt(OrderedMomentum):
    """Ordered momentum with catch-up spread over the next ``1/rho`` updates.

    ``m = beta(1-beta)^d·g + (1-beta)·m; debt = (1-rho)·debt + lr·(1-(1-beta)^d)·g; x -= lr·m + rho·debt``

    What update t pays is ``rho·debt``, so each gradient is paid ``rho(1-rho)^i`` of what it missed i updates after its
    arrival: all of it in the end, and every gradient has the same lifetime weight. ``rho = 1`` pays at once, which is
    catch-up. ``debt`` holds what was owed before the payment of the last update; ``1 - rho`` of it is still owed. It is
    in units of displacement, so a later change of lr does not change what is owed. Keep rho constant.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient.
        rho: Share of the debt that every update pays.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = CatchUpDebt([x], lr=1.0, beta=0.5, rho=0.5)
        >>> for delay, g in [(0, 0.0), (0, 0.0), (1, 8.0)]:
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> x.item()                                   # m = 0.25 · 8, and half of the 0.5 · 8 it missed
        -4.0
        >>> opt.debt()[0].item()
        2.0
    """

    method = "catch-up-debt"
    ranges: ClassVar[Mapping[str, Range]] = {**MomentumRule.ranges, "rho": UNIT}

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        rho: float = 0.1,
        weight_decay: float = 0.0,
        output: str = "last",
        seed: int = 0,
    ) -> None:
        # catch_up=False: the jump of the parent is what this rule replaces.
        options = {"beta": beta, "catch_up": False, "rho": rho}
        MomentumRule.__init__(self, params, options, lr=lr, weight_decay=weight_decay, output=output, seed=seed)

    def _remembered_lr(self, group: Group) -> float:
        return float(group["lr"])

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        super()._update(group, params, grads, arrival)
        rho, debt = float(group["rho"]), self._buffers(params, "debt", torch.zeros_like)
        owed = grads if arrival.delay and self.needs(arrival) else None
        weight = 0.0 if owed is None else missed(group["runs"], arrival.version, arrival.t)
        accumulate_and_descend(params, owed, debt, decay=1.0 - rho, weight=weight, lr=rho)

    def debt(self) -> list[Tensor]:
        """Return what is still owed to the parameters, one tensor each, zero where nothing has come yet."""
        owed = []
        for group in self.param_groups:
            for p in group["params"]:
                debt = self.state[p].get("debt") if p in self.state else None
                owed.append(torch.zeros_like(p) if debt is None else debt * (1.0 - float(group["rho"])))
        return owed
