"""AdamW on ordered moments, with catch-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .._util.checks import AT_LEAST_ZERO, Range
from ._coefficients import VersionIndexed, beta_at, forget, missed, record, retained
from ._kernels import adamw, descend_by_root, shrink
from .base import Arrival, AsyncOptimizer, Group, Params, Work
from .momentum import BETA

__all__ = ["BETA2", "CatchUpAdamW", "OrderedAdamW", "all_as_real"]

BETA2 = BETA._replace(advice="; beta2 is the weight of the new square: torch's betas=(0.9, 0.999) are 0.1 and 0.001")


class CatchUpAdamW(VersionIndexed):
    """AdamW on ordered moments, with the displacement that a late gradient missed.

    ``m = (1-beta)·m + beta(1-beta)^d·g;  v = (1-beta2)·v + beta2(1-beta2)^d·g²``
    ``W = 1-(1-beta)^t``, and P2 the weight present in v: the same sum with 1 in place of g²
    ``x -= lr·weight_decay·x;  x -= (lr·m/W + missed·g) / (sqrt(v/P2) + eps)``

    where ``missed = sum(lr_s/W_s · beta(1-beta)^(s-k), s = k..t-1)`` for a gradient of version k, which for constant lr
    is ``lr·(1-(1-beta)^d)`` once W is 1. Without delay P2 is ``1-(1-beta2)^t`` and this is `torch.optim.AdamW`.

    With delay, the weights of gradients in flight are missing. v is divided by the weight present, so that it stays a
    mean of squares; m by the full weight, because a late gradient brings what it missed. Late gradients of version 1
    count as zero, as in Algorithm 1. Schedules of beta, beta2 and lr are followed by version. The weights are counted
    per param group, so its parameters should get their gradients together.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient in m; torch's ``betas[0]`` is ``1 - beta``.
        beta2: Weight of the new square in v; torch's ``betas[1]`` is ``1 - beta2``. At 1 a late square has weight zero.
        eps: Added to the denominator.
        weight_decay: Decoupled weight decay, with torch's default.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = CatchUpAdamW([x], lr=0.5, beta=0.5, eps=0.0, weight_decay=0.0)
        >>> for delay, g in [(0, 1.0), (0, 1.0), (0, 1.0)]:      # gradients that agree: steps of lr
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> round(x.item(), 6), opt.param_groups[0]["W"]
        (-1.5, 0.875)

    References:
        Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
    """

    method = "catch-up-adamw"
    first_version_once = True
    ranges: ClassVar[Mapping[str, Range]] = {
        **AsyncOptimizer.ranges,
        "beta": BETA,
        "beta2": BETA2,
        "eps": AT_LEAST_ZERO,
    }
    bookkeeping: ClassVar[frozenset[str]] = AsyncOptimizer.bookkeeping | {"runs2", "W", "P2", "v_scale"}

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        beta: float = 0.1,
        beta2: float = 0.001,
        *,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"beta": beta, "beta2": beta2, "eps": eps}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        group["runs2"], group["W"], group["P2"] = [], 0.0, 0.0

    def _remembered_lr(self, group: Group) -> float:
        return float(group["lr"]) / float(group["W"]) if group["W"] else 0.0

    def forget(self, oldest: int) -> None:
        """Drop the schedules of versions before ``oldest``."""
        super().forget(oldest)
        for group in self.param_groups:
            forget(group["runs2"], oldest)

    def _apply(self, work: Work, arrival: Arrival) -> None:
        for group, _, _ in work:
            self._count_weight(group)
        for group in self.param_groups:
            record(group["runs2"], arrival.t, float(group["beta2"]), 0.0)
        super()._apply(work, arrival)

    def _count_weight(self, group: Group) -> None:
        """Count the weight by which m is divided, before an arrival is received."""
        group["W"] += float(group["beta"]) * (1.0 - group["W"])

    def _add_weight(self, group: Group, weight: float) -> None:
        """Add the weight of a gradient in m to that by which m is divided."""

    def _missed(self, group: Group, version: int, t: int) -> float:
        """Return the step that a gradient has missed."""
        return missed(group["runs"], version, t)

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        lr, keep, keep2 = float(group["lr"]), 1.0 - float(group["beta"]), 1.0 - float(group["beta2"])
        counted, version, t = self.needs(arrival), arrival.version, arrival.t
        m, v = (self._buffers(params, key, torch.zeros_like) for key in ("m", "v"))
        x, g = params, grads
        if any(p.is_complex() for p in params):
            x, g, m, v = (all_as_real(tensors) for tensors in (x, g, m, v))
        scales = float(group.get("m_scale", 1.0)), float(group.get("v_scale", 1.0))
        weight = beta_at(group["runs"], version) * retained(group["runs"], version, t) if counted else 0.0
        weight2 = beta_at(group["runs2"], version) * retained(group["runs2"], version, t) if counted else 0.0
        group["P2"] = keep2 * group["P2"] + weight2
        self._add_weight(group, weight)
        if not counted or not group["P2"] or not group["W"]:
            shrink(params, lr * group["weight_decay"])
            torch._foreach_mul_(m, keep)
            torch._foreach_mul_(v, keep2)
            if counted:  # its square has no weight: it waits in m for the first one that has
                torch._foreach_add_(m, g, alpha=weight / scales[0])
            if counted and group["P2"]:  # its square has weight, and itself has none
                torch._foreach_addcmul_(v, g, g, value=weight2 / scales[1])
            if group["P2"] and group["W"]:
                step, present = lr / group["W"] * scales[0], group["P2"] / scales[1]
                descend_by_root(x, m, v, lr=step, present=present, eps=float(group["eps"]))
            return
        group["m_scale"], group["v_scale"] = adamw(
            x,
            g,
            m,
            v,
            decay=(keep, keep2),
            weight=(weight, weight2),
            lr=lr / group["W"],
            missed=self._missed(group, version, t),
            present=group["P2"],
            eps=float(group["eps"]),
            shrinkage=lr * group["weight_decay"],
            scales=scales,
        )
        if len(params) < len(group["params"]):
            for key, before in zip(("m", "v"), scales, strict=True):
                self._rescale_absent(group, params, key, before / group[f"{key}_scale"])


class OrderedAdamW(CatchUpAdamW):
    """AdamW on ordered moments: a late gradient and its square get the weights they would have had without delay.

    ``m = (1-beta)·m + beta(1-beta)^d·g;  v = (1-beta2)·v + beta2(1-beta2)^d·g²``
    ``x -= lr·weight_decay·x;  x -= lr·(m/P1) / (sqrt(v/P2) + eps)``

    P1 and P2 are the weights present in m and in v: the same sums with 1 in place of g and g². So both are means of
    what has arrived, whatever is missing. Without delay this is `torch.optim.AdamW`. Unlike `CatchUpAdamW` it does not
    make up for the steps that a late gradient missed. Late gradients of version 1 count as zero, as in Algorithm 1.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient in m; torch's ``betas[0]`` is ``1 - beta``.
        beta2: Weight of the new square in v; torch's ``betas[1]`` is ``1 - beta2``.
        eps: Added to the denominator.
        weight_decay: Decoupled weight decay, with torch's default.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = OrderedAdamW([x], lr=0.5, beta=0.5, eps=0.0, weight_decay=0.0)
        >>> for delay in (0, 0, 1):                    # gradients that agree: steps of lr
        ...     x.grad = torch.ones(1); opt.step(delay=delay)
        >>> round(x.item(), 6), opt.param_groups[0]["W"]         # weights 1/8, 1/4 and 1/4 of the late one
        (-1.5, 0.625)

    References:
        Ours, on Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
    """

    method = "ordered-adamw"

    def _count_weight(self, group: Group) -> None:
        group["W"] *= 1.0 - float(group["beta"])

    def _add_weight(self, group: Group, weight: float) -> None:
        group["W"] += weight

    def _missed(self, group: Group, version: int, t: int) -> float:
        return 0.0

    def _remembered_lr(self, group: Group) -> float:
        return 0.0


def all_as_real(tensors: list[Tensor]) -> list[Tensor]:
    """View complex tensors as pairs of real ones, as torch's Adam does."""
    return [torch.view_as_real(t.detach()) if t.is_complex() else t for t in tensors]
