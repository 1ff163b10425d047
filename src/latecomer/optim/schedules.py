"""Schedules of beta: schedulers that step with every update, as torch's schedulers of lr do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .base import AsyncOptimizer
from .checks import AT_LEAST_ZERO, UNIT
from .momentum import BETA

__all__ = ["BetaScheduler", "DecreasingBeta"]


@dataclass(frozen=True)
class DecreasingBeta:
    """``beta_t = max(least, beta_1·t^-power)``: a momentum that looks back ever longer, so that its bias fades.

    Under ordered momentum a gradient of delay d has ``(1-beta)^d`` of its say, which goes to 1 with beta, while the
    longer memory keeps the noise down. Coefficients follow the version of a gradient (decision 10 of the paper map).
    Call it with an optimizer to get the scheduler; `latecomer.simulate` takes it as ``schedule=``.

    Args:
        power: How fast beta falls.
        least: Where it stops falling; 0 for never.

    Examples:
        >>> import torch, latecomer as lc
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = lc.optim.OrderedMomentum([x], lr=0.1, beta=0.4)
        >>> scheduler = DecreasingBeta(power=0.5, least=0.15)(opt)
        >>> for t in range(1, 10):
        ...     if t in (1, 4, 9): print(t, round(opt.param_groups[0]["beta"], 3))
        ...     x.grad = torch.ones(1); opt.step(); scheduler.step()
        1 0.4
        4 0.2
        9 0.15
        >>> trace = lc.delays.Constant(workers=3).trace(steps=50, seed=0)
        >>> run = lc.simulate(lc.problems.quadratic(), "catch-up", trace, lr=0.05, schedule=DecreasingBeta(power=0.5))
        >>> run.final["update"]
        50
    """

    power: float = 0.5
    least: float = 0.0

    def __post_init__(self) -> None:
        AT_LEAST_ZERO.check("power", self.power)
        if self.least:
            UNIT.check("least", self.least)

    def __call__(self, optimizer: AsyncOptimizer) -> BetaScheduler:
        """Make the scheduler of an optimizer."""
        return BetaScheduler(optimizer, self)

    def at(self, t: int, first: float) -> float:
        """Return beta_t for a first beta.

        Examples:
            >>> DecreasingBeta(power=1.0).at(5, first=0.5)
            0.1
        """
        return max(self.least, first * math.pow(t, -self.power))


class BetaScheduler:
    """Sets ``group["beta"]`` before every update, from the beta each group has when it is made.

    Args:
        optimizer: An optimizer with a beta that has not stepped yet.
        rule: Gives the beta of an update.

    Examples:
        >>> import torch, latecomer as lc
        >>> scheduler = DecreasingBeta()(lc.optim.Momentum([torch.nn.Parameter(torch.ones(1))], lr=0.1))
        >>> scheduler.step(); scheduler.state_dict()
        {'t': 2, 'first': [0.1]}
        >>> DecreasingBeta()(lc.optim.AsyncSGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
        Traceback (most recent call last):
        ValueError: AsyncSGD has no beta to schedule
    """

    def __init__(self, optimizer: AsyncOptimizer, rule: DecreasingBeta) -> None:
        if any("beta" not in group for group in optimizer.param_groups):
            raise ValueError(f"{type(optimizer).__name__} has no beta to schedule")
        self.optimizer, self.rule, self.t = optimizer, rule, 1
        self.first = [BETA.check("beta", group["beta"]) for group in optimizer.param_groups]

    def step(self) -> None:
        """Go on to the next update."""
        self.t += 1
        for group, first in zip(self.optimizer.param_groups, self.first, strict=False):
            group["beta"] = self.rule.at(self.t, first)

    def state_dict(self) -> dict[str, Any]:
        """Return where it stands; the optimizer's own state has the beta in force."""
        return {"t": self.t, "first": list(self.first)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.t, self.first = int(state["t"]), [float(first) for first in state["first"]]
