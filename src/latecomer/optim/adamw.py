"""AdamW with both moments in order: a late gradient enters each with the weight it would have had in time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .base import Arrival, AsyncOptimizer, Group, Params, Work
from .checks import AT_LEAST_ZERO, Range, checked_flag
from .history import beta_at, forget, missed, record, retained
from .indexed import VersionIndexed
from .kernels import shrink
from .momentum import BETA

__all__ = ["OrderedAdamW"]

_BETA2 = BETA._replace(advice="; beta2 is the weight of the new square: torch's betas=(0.9, 0.999) are 0.1 and 0.001")


class OrderedAdamW(VersionIndexed):
    """AdamW on ordered moments, each divided by the weight that is present in it.

    ``m = (1-beta)·m + beta(1-beta)^d·g;  v = (1-beta2)·v + beta2(1-beta2)^d·g²``
    ``P, P2`` the same with 1 in place of g;  ``x -= lr·weight_decay·x;  x -= lr·(m/P) / (sqrt(v/P2) + eps)``

    Without delay ``P = 1-(1-beta)^t`` and this is `torch.optim.AdamW`. With delay the places of the gradients in flight
    are empty and P says how much is there, so that m/P stays a weighted mean. Late gradients of version 1 count as
    zero, as in Algorithm 1.

    Dividing by P makes up for what is late with what is there. ``catch_up=True`` makes up for it with the late gradient
    itself: m is divided by the weight W that belongs into it, ``W = 1-(1-beta)^t``, and at its arrival a late gradient
    moves the parameters by what it missed, over the denominator of now:

    ``x -= sum(lr_s/W_s · beta(1-beta)^(s-k), s = k..t-1) · g / (sqrt(v/P2) + eps)``

    which for constant lr is ``lr·(1-(1-beta)^d)`` once W is 1. Dividing by P as well would make up for it twice.
    Schedules of beta, beta2 and lr are followed by version. The weights are counted for a param group, so its
    parameters should get their gradients together.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient in m; torch's ``betas[0]`` is ``1 - beta``.
        beta2: Weight of the new square in v; torch's ``betas[1]`` is ``1 - beta2``.
        eps: Added to the denominator.
        catch_up: Make up for the displacement a late gradient missed.
        weight_decay: Decoupled weight decay, with torch's default.
        output: ``"last"`` or ``"uniform"``.
        seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = OrderedAdamW([x], lr=0.5, beta=0.5, eps=0.0, weight_decay=0.0)
        >>> for delay, g in [(0, 1.0), (0, 1.0), (1, 1.0)]:      # gradients that agree: steps of lr
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> round(x.item(), 6), opt.param_groups[0]["P"]           # 0.125 + 0.25 + 0.25
        (-1.5, 0.625)

    References:
        Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
    """

    method = "ordered-adamw"
    identity = ("method", "catch_up")
    first_version_once = True
    ranges: ClassVar[Mapping[str, Range]] = {
        **AsyncOptimizer.ranges,
        "beta": BETA,
        "beta2": _BETA2,
        "eps": AT_LEAST_ZERO,
    }
    bookkeeping: ClassVar[frozenset[str]] = AsyncOptimizer.bookkeeping | {"runs2", "W", "P", "P2"}

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        beta: float = 0.1,
        beta2: float = 0.001,
        *,
        eps: float = 1e-8,
        catch_up: bool = False,
        weight_decay: float = 0.01,
        output: str = "last",
        seed: int = 0,
    ) -> None:
        options = {"beta": beta, "beta2": beta2, "eps": eps, "catch_up": checked_flag("catch_up", catch_up)}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, seed=seed)

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        group["runs2"], group["W"], group["P"], group["P2"] = [], 0.0, 0.0, 0.0

    def _remembered_lr(self, group: Group) -> float:
        return float(group["lr"]) / group["W"] if group["catch_up"] else 0.0

    def forget(self, oldest: int) -> None:
        """Forget the schedules of versions before ``oldest``."""
        super().forget(oldest)
        for group in self.param_groups:
            forget(group["runs2"], oldest)

    def needs(self, arrival: Arrival) -> bool:
        """Late gradients of version 1 are replaced by zero."""
        return super().needs(arrival) and (arrival.version > 1 or arrival.t == 1)

    def _apply(self, work: Work, arrival: Arrival) -> None:
        for group in self.param_groups:
            group["W"] += float(group["beta"]) * (1.0 - group["W"])
            record(group["runs2"], arrival.t, float(group["beta2"]), 0.0)
        super()._apply(work, arrival)

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        lr, counted, catch_up = float(group["lr"]), self.needs(arrival), group["catch_up"]
        shrink(params, lr * group["weight_decay"])
        x, g = _real(params), _real(grads)
        m, v = (_real(self._buffers(params, key, torch.zeros_like)) for key in ("m", "v"))
        weights = []
        for buffers, beta, runs, present in ((m, "beta", "runs", "P"), (v, "beta2", "runs2", "P2")):
            keep, weight = 1.0 - float(group[beta]), 0.0
            if counted:
                weight = beta_at(group[runs], arrival.version) * retained(group[runs], arrival.version, arrival.t)
            torch._foreach_mul_(buffers, keep)
            group[present] = keep * group[present] + weight
            weights.append(weight)
        if counted:
            torch._foreach_add_(m, g, alpha=weights[0])
            torch._foreach_addcmul_(v, g, g, value=weights[1])
        whole = group["W"] if catch_up else group["P"]
        if not (whole and group["P2"]):  # nothing has come yet
            return
        denominator = torch._foreach_sqrt(v)
        torch._foreach_div_(denominator, math.sqrt(group["P2"]))
        torch._foreach_add_(denominator, float(group["eps"]))
        torch._foreach_addcdiv_(x, m, denominator, value=-lr / whole)
        if catch_up and counted and arrival.delay:
            step = missed(group["runs"], arrival.version, arrival.t)
            torch._foreach_addcdiv_(x, g, denominator, value=-step)


def _real(tensors: list[Tensor]) -> list[Tensor]:
    """View complex tensors as pairs of real ones, as torch's Adam does."""
    return [torch.view_as_real(t.detach()) if t.is_complex() else t for t in tensors]
