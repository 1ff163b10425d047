"""Momentum under delays: naive (Eq. 6), and ordered (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .._util.checks import UNIT, Range, checked_flag
from ._coefficients import VersionIndexed, beta_at, missed, retained
from ._kernels import accumulate_and_descend, catch_up, shrink
from .base import Arrival, AsyncOptimizer, Group, Params

__all__ = ["BETA", "Momentum", "MomentumRule", "OrderedMomentum"]

BETA = UNIT._replace(advice="; beta is the weight of the new gradient: torch's momentum=0.9 is beta=0.1 here")


class MomentumRule(AsyncOptimizer):
    """``m = weight·g + (1-beta)·m; x -= lr·m``, with a weight that depends on the method."""

    ranges: ClassVar[Mapping[str, Range]] = {**AsyncOptimizer.ranges, "beta": BETA}

    def _move(self, group: Group, params: list[Tensor], grads: list[Tensor] | None, weight: float) -> None:
        lr, scale = float(group["lr"]), float(group.get("m_scale", 1.0))
        shrink(params, lr * group["weight_decay"])
        m = self._buffers(params, "m", torch.zeros_like)
        decay = 1.0 - float(group["beta"])
        accumulate_and_descend(params, grads, m, decay=decay, weight=weight / scale, lr=lr * scale)

    def momentum(self) -> list[Tensor | None]:
        """Return m, one tensor per parameter; None where no gradient has arrived.

        Without catch-up it is ``state[p]["m"]`` itself. With catch-up that buffer is in units of
        ``group["m_scale"]``, so that one pass over memory makes both parts of the step.

        Examples:
            >>> x = torch.nn.Parameter(torch.zeros(1))
            >>> opt = OrderedMomentum([x], lr=1.0, beta=0.5, catch_up=True)
            >>> for delay, g in [(0, 0.0), (0, 0.0), (1, 8.0)]:
            ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
            >>> round(opt.momentum()[0].item(), 6)
            2.0
        """
        found: list[Tensor | None] = []
        for group in self.param_groups:
            scale = float(group.get("m_scale", 1.0))
            buffers = (self.state[p].get("m") if p in self.state else None for p in group["params"])
            found += [m if m is None or scale == 1.0 else m * scale for m in buffers]
        return found


class Momentum(MomentumRule):
    """Naive asynchronous momentum, Eq. (6): a late gradient is treated as if it were fresh.

    ``m = beta·g + (1-beta)·m; x -= lr·m``

    ``m`` starts at zero. torch's SGD starts its buffer at the first raw gradient instead.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient; torch's momentum is ``1 - beta``. With ``beta=b`` this is torch's
            ``SGD(momentum=1-b, dampening=1-b)``.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = Momentum([x], lr=1.0, beta=0.5)
        >>> for _ in range(2):
        ...     x.grad = torch.ones(1); opt.step()
        >>> x.item()                                   # -(0.5) - (0.25 + 0.5)
        -1.25
    """

    method = "momentum"

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        super().__init__(
            params, {"beta": beta}, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed
        )

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        self._move(group, params, None if arrival.zero else grads, weight=float(group["beta"]))


class OrderedMomentum(VersionIndexed, MomentumRule):
    """Algorithm 1, Eq. (8): a late gradient gets the weight it would have had without delay.

    ``m = beta(1-beta)^d·g + (1-beta)·m; x -= lr·m``

    Late gradients of version 1 count as zero, so that version 1 counts once (Algorithm 1, first line of the loop). The
    influence of a gradient is ``(1-beta)^d``: samples that are often late have less influence. ``catch_up=True`` also
    adds the displacement that a late gradient missed while it was computed,

    ``x -= lr·(1-(1-beta)^d)·g``

    Then the parameters are exactly what sequential momentum makes of the gradients that have arrived, each at its own
    version, and every gradient has the same influence.

    A schedule of beta or lr is followed by version: a gradient of version k gets
    ``beta_k · prod(1 - beta_m, m = k+1..t)``, and catches up the sum over ``s = k..t-1`` of
    ``lr_s · beta_k · prod(1 - beta_m, m = k+1..s)``. A schedule that changes at every update is stored entry by
    entry; with a server, entries that no gradient in flight can need are dropped.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient; torch's momentum is ``1 - beta``. Lower it if delays are long: a gradient of
            delay d keeps ``(1-beta)^d`` of its influence.
        catch_up: Add the displacement that a late gradient missed.
        weight_decay: Decoupled weight decay.
        output: ``"last"``, or ``"uniform"`` as in Algorithm 1.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = OrderedMomentum([x], lr=1.0, beta=0.5)
        >>> for delay, g in [(0, 0.0), (0, 0.0), (1, 8.0)]:
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> opt.state[x]["m"].item()                   # 0.5 · 0.5 · 8
        2.0

    References:
        Bringing Order to Asynchronous SGD: Towards Optimality under Data-Dependent Delays with Momentum, Algorithm 1.
    """

    method = "ordered-momentum"
    identity = ("method", "catch_up")
    first_version_once = True

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        catch_up: bool = False,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"beta": beta, "catch_up": checked_flag("catch_up", catch_up)}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _remembered_lr(self, group: Group) -> float:
        return float(group["lr"]) if group["catch_up"] else 0.0

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        runs, version, t = group["runs"], arrival.version, arrival.t
        if not self.needs(arrival):
            self._move(group, params, None, weight=0.0)
            return
        weight = beta_at(runs, version) * retained(runs, version, t)
        if not group["catch_up"] or version == t:
            self._move(group, params, grads, weight)
            return
        lr = float(group["lr"])
        shrink(params, lr * group["weight_decay"])
        before = float(group.get("m_scale", 1.0))
        after = group["m_scale"] = catch_up(
            params,
            grads,
            self._buffers(params, "m", torch.zeros_like),
            decay=1.0 - float(group["beta"]),
            weight=weight,
            lr=lr,
            missed=missed(runs, version, t),
            scale=before,
        )
        if len(params) < len(group["params"]):
            self._rescale_absent(group, params, "m", before / after)
