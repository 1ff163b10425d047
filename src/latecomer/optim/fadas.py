"""FADAS: Adam with the largest second moment so far, on buffered contributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .._util.checks import AT_LEAST_ZERO, Range
from ._kernels import shrink
from .adamw import BETA2, all_as_real
from .base import Arrival, AsyncOptimizer, Group, Params
from .momentum import BETA

__all__ = ["FADAS"]


class FADAS(AsyncOptimizer):
    """FADAS: AMSGrad without correction of the bias, with a shorter step if a contribution is very late.

    ``m = (1-beta)·m + beta·g; v = (1-beta2)·v + beta2·g²; V = max(V, v)``
    ``x -= rate·m/(sqrt(V) + eps)``, where rate is lr, or ``min(lr, 1/d)`` if d exceeds the threshold

    g is the mean of K contributions, as `latecomer.policy.FedBuff` with ``flat=True`` collects them, and d is their
    largest delay; without a policy g is one gradient and d its delay. With one worker it is AMSGrad on batches of K.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient in m; torch's ``betas[0]`` is ``1 - beta``.
        beta2: Weight of the new square in v; torch's ``betas[1]`` is ``1 - beta2``.
        threshold: Delay above which the step is at most ``1/d``; None for a step that does not depend on delays.
        eps: Added to the denominator.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = FADAS([x], lr=1.0, beta=0.5, beta2=0.25, threshold=1)
        >>> for delay in (0, 0, 2):                    # m is 0.5, 0.75, 0.875; V is 0.25, 0.4375, 0.5781
        ...     x.grad = torch.ones(1); opt.step(delay=delay)
        >>> round(x.item(), 3)                         # 1 + 1.134 + 1.151/2
        -2.709

    References:
        Wang, Wang, Lu, Chen, FADAS: Towards Federated Adaptive Asynchronous Optimization, ICML 2024, arXiv 2407.18365
        (rule read in two secondary sources).
    """

    method = "fadas"
    ranges: ClassVar[Mapping[str, Range]] = {
        **AsyncOptimizer.ranges,
        "beta": BETA,
        "beta2": BETA2,
        "eps": AT_LEAST_ZERO,
    }

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        beta2: float = 0.01,
        *,
        threshold: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"beta": beta, "beta2": beta2, "eps": eps, "threshold": threshold}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group["threshold"] is not None:
            AT_LEAST_ZERO.check("threshold", group["threshold"])

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        lr, beta, beta2 = float(group["lr"]), float(group["beta"]), float(group["beta2"])
        shrink(params, lr * group["weight_decay"])
        m, v, largest = (self._buffers(params, key, torch.zeros_like) for key in ("m", "v", "V"))
        x, g = params, grads
        if any(p.is_complex() for p in params):
            x, g, m, v, largest = (all_as_real(tensors) for tensors in (x, g, m, v, largest))
        torch._foreach_mul_(m, 1.0 - beta)
        torch._foreach_mul_(v, 1.0 - beta2)
        if not arrival.zero:
            torch._foreach_add_(m, g, alpha=beta)
            torch._foreach_addcmul_(v, g, g, value=beta2)
        torch._foreach_maximum_(largest, v)
        delay = arrival.delay if arrival.largest_delay is None else arrival.largest_delay
        rate = lr if group["threshold"] is None or delay <= group["threshold"] else min(lr, 1.0 / delay)
        root = torch._foreach_sqrt(largest)
        torch._foreach_add_(root, float(group["eps"]))
        if not group["eps"]:  # where no gradient has come yet, 0/0 is no step
            torch._foreach_clamp_min_(root, torch.finfo(root[0].dtype).tiny)
        torch._foreach_addcdiv_(x, m, root, value=-rate)
