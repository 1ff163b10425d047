"""Ordered momentum in which a running mean of late gradients stands in for those in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .base import Arrival, Group, Params, Work
from .checks import UNIT, Range
from .history import beta_at, missed, retained
from .kernels import descend
from .momentum import MomentumRule, OrderedMomentum

__all__ = ["OrderedFilled"]


class OrderedFilled(OrderedMomentum):
    """Ordered momentum with a stand-in for every gradient in flight, until the true one arrives and replaces it.

    ``m = beta(1-beta)^d·g + (1-beta)·m; x -= lr·(m + phi·h)``

    Ordered momentum leaves the places of the gradients in flight empty, so a gradient of delay d loses the share
    ``w_d = 1-(1-beta)^d`` of its lifetime weight. Here the places are filled. A ticket of age a (version ``k = t - a``)
    has the place ``beta(1-beta)^a``, and the best guess of what it will bring is the mean of gradients that took longer
    than a. One buffer is enough for all ages, because only a sum over them moves the parameters:

    1. A slot of delay d is filled at the ages ``a = 0..d-1``, with the total weight
       ``sum(beta(1-beta)^a, a < d) = w_d``. Over all slots the fill-ins by age are, in the mean,
       ``sum over a of beta(1-beta)^a · P(d > a) · E[g | d > a] = E[w_d·g]``.
    2. A single h does the same if ``E[w_d]·h = E[w_d·g]``: the mean of the arrived gradients, each weighted by what it
       missed. As a running mean over arrivals, ``D = (1-rate)·D + rate·w_d``; ``h += (rate·w_d/D)·(g - h)``.
    3. All stand-ins are the same h, so together they are ``phi·h`` with ``phi = sum(beta(1-beta)^(t-k))`` over the
       versions in flight: ``phi = (1-beta)·phi + beta - beta(1-beta)^d`` after an arrival of delay d.

    So in the mean every gradient has the lifetime weight ``(1-beta)^d + w_d = 1``, without a jump. A step costs one
    more pass over memory than ordered momentum, two if the gradient is late. By Little's law phi is D in the mean; with
    both equal this is `CatchUpDebt` with ``rho = rate``.

    Which versions are in flight is counted here: every version up to t is, until it arrives. Versions that never will,
    because a job was called off, are forgotten with `forget`, which a server does by itself. A schedule of beta is
    followed by version.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient.
        fill_rate: Rate of the running mean, per arrival. Lower it if late gradients are rare or noisy; its inverse
            should be well above the longest delay.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = OrderedFilled([x], lr=1.0, beta=0.5)
        >>> for delay, g in [(0, 0.0), (0, 0.0), (1, 8.0)]:
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> opt.state[x]["h"].item(), opt.phi          # version 3 is in flight, at weight 0.5
        (8.0, 0.5)
        >>> x.item()                                   # 0.5 · 0.5 · 8 + 0.5 · 8
        -6.0
    """

    method = "ordered-filled"
    ranges: ClassVar[Mapping[str, Range]] = {**MomentumRule.ranges, "fill_rate": UNIT}
    bookkeeping: ClassVar[frozenset[str]] = MomentumRule.bookkeeping | {"flying", "counted", "phi", "D"}

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        fill_rate: float = 0.01,
        weight_decay: float = 0.0,
        output: str = "last",
        seed: int = 0,
    ) -> None:
        options = {"beta": beta, "catch_up": False, "fill_rate": fill_rate}
        MomentumRule.__init__(self, params, options, lr=lr, weight_decay=weight_decay, output=output, seed=seed)

    @property
    def phi(self) -> float:
        """The weight of all places in flight, in the first param group."""
        return float(self.param_groups[0]["phi"])

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        # Versions in flight, up to which version they have been counted, the weight of their places, and of h.
        group["flying"], group["counted"], group["phi"], group["D"] = [], group["t"], 0.0, 0.0

    def _remembered_lr(self, group: Group) -> float:
        return 1.0  # `missed` is then the weight of the empty places, w_d

    def _apply(self, work: Work, arrival: Arrival) -> None:
        t, version = arrival.t, arrival.version
        for group in self.param_groups:
            beta, flying = float(group["beta"]), group["flying"]
            # The version of this update has its place from now on, wherever its gradient is.
            flying.append(t)
            group["counted"] = t
            group["phi"] = (1.0 - beta) * group["phi"] + beta
            group["D"] *= 1.0 - float(group["fill_rate"])
            if version == t:
                self._land(group, version, beta)
            elif version in flying:  # t itself is not in the history yet
                runs = group["runs"]
                self._land(group, version, beta_at(runs, version) * retained(runs, version, t - 1) * (1.0 - beta))
        super()._apply(work, arrival)

    def _land(self, group: Group, version: int, place: float) -> None:
        """Take a version out of those in flight; none in flight weigh nothing at all."""
        group["flying"].remove(version)
        group["phi"] = max(0.0, group["phi"] - place) if group["flying"] else 0.0

    def forget(self, oldest: int) -> None:
        """Forget the schedule of versions before ``oldest``, and that any of them were in flight."""
        for group in self.param_groups:
            runs, now = group["runs"], group["counted"]
            for version in [v for v in group["flying"] if v < oldest]:
                self._land(group, version, beta_at(runs, version) * retained(runs, version, now))
        super().forget(oldest)

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        super()._update(group, params, grads, arrival)
        if arrival.delay and self.needs(arrival):
            weight = float(group["fill_rate"]) * missed(group["runs"], arrival.version, arrival.t)
            group["D"] += weight
            h = self._buffers(params, "h", torch.zeros_like)
            torch._foreach_lerp_(h, grads, weight / group["D"])
        if group["D"] and group["phi"]:
            descend(params, self._buffers(params, "h", torch.zeros_like), float(group["lr"]) * group["phi"])
