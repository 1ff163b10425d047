"""DANA-Zero: Nesterov's momentum with one buffer per worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .._util.checks import Range
from ._kernels import accumulate_and_descend, shrink
from .base import Arrival, AsyncOptimizer, Group, Params
from .momentum import BETA

__all__ = ["DanaZero"]


class DanaZero(AsyncOptimizer):
    """DANA-Zero: every worker has its own momentum, and evaluates where the others are expected to have moved.

    ``v_i = B·v_i + g; theta -= lr·v_i``, and workers evaluate ``x = theta - lr·B·sum_j v_j``, with ``B = 1 - beta``.

    The parameters are x, the point to evaluate, as in torch's Nesterov momentum. In x the rule is
    ``v_i = B·v_i + g; x -= lr·(g + B·v_i)``, so neither theta nor the sum is stored. With a constant lr both forms are
    the same; when lr changes, the second holds. With one worker it is torch's ``SGD(momentum=B, nesterov=True)``.

    There is no factor beta in front of the gradient, so at the same lr the steps are ``1/beta`` times as long as those
    of `Momentum`. Memory: one buffer per worker. In a loop of one's own all gradients are those of one worker, unless
    ``step(arrival=...)`` says whose they are.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: One minus the momentum; torch's momentum is ``1 - beta``.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = DanaZero([x], lr=1.0, beta=0.5)
        >>> for worker in (0, 1, 0):                   # 1.5, 1.5 and 1 + 0.5 · 1.5
        ...     x.grad = torch.ones(1); opt.step(arrival=Arrival(opt.t + 1, opt.t + 1, worker=worker))
        >>> x.item()
        -4.75

    References:
        Hakimi, Barkai, Gabel, Schuster, Taming Momentum in a Distributed Asynchronous Environment, 2019,
        arXiv 1907.11612 (read in public code).
    """

    method = "dana-zero"
    ranges: ClassVar[Mapping[str, Range]] = {**AsyncOptimizer.ranges, "beta": BETA}

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
        options = {"beta": beta}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        lr, keep = float(group["lr"]), 1.0 - float(group["beta"])
        shrink(params, lr * group["weight_decay"])
        if arrival.zero:  # no gradient of this worker: its momentum waits
            return
        v = self._buffers(params, f"v{arrival.worker or 0}", torch.zeros_like)
        accumulate_and_descend(params, grads, v, decay=keep, weight=1.0, lr=lr * keep, missed=lr)
