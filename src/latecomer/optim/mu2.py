"""Double momentum with constant parameters (Eq. 14), and its ordered form (Eq. 12 with Eq. 14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .._util.checks import UNIT, Range
from ._coefficients import VersionIndexed, beta_at, retained
from ._kernels import accumulate_and_descend, shrink
from ._two_point import TwoPointOptimizer
from .base import Arrival, AsyncOptimizer, Group, Params, copied
from .momentum import BETA

__all__ = ["Mu2SGD", "OrderedMu2SGD"]


class Mu2SGD(VersionIndexed, TwoPointOptimizer):
    """Naive asynchronous mu²-SGD, Eq. (14): STORM and an averaged iterate, late gradients are treated as fresh.

    ``d = g + (1-beta)(d - g'); w -= lr·d; x = gamma·w + (1-gamma)·x``

    where g' is the gradient of the same sample at the iterate before. The iterate before the first is the first itself,
    so g' = g at version 1. With a schedule of beta the factor of g' is the one of the gradient's version.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient.
        gamma: Weight of ``w`` in the iterate, used literally. The paper writes 0.9 and 0.95; the default follows the
            same authors' earlier experiments.
        weight_decay: Decoupled weight decay, on ``w``.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.tensor([4.0]))
        >>> opt = Mu2SGD([x], lr=0.25, beta=0.5, gamma=0.5)
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = (x**2).sum() / 2
        ...     loss.backward()
        ...     return loss
        >>> for _ in range(2):
        ...     opt.step(closure)
        tensor(8., grad_fn=<DivBackward0>)
        tensor(7.0312, grad_fn=<DivBackward0>)
        >>> x.item()                   # d = 2, then 3.75 + (2 - 4)/2 = 2.75; w = 3.5, then 2.8125
        3.28125

    References:
        Dahan and Levy, mu²-SGD: Stable Stochastic Optimization via a Double Momentum Mechanism.
    """

    method = "mu2"
    ranges: ClassVar[Mapping[str, Range]] = {**AsyncOptimizer.ranges, "beta": BETA, "gamma": UNIT}

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        gamma: float = 0.1,
        *,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"beta": beta, "gamma": gamma}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _coefficients(self, group: Group, version: int) -> tuple[float, float]:
        # For a version that no arrival has reached yet, or a new group: the current beta.
        known = group["runs"] and version <= group["t"]
        beta = beta_at(group["runs"], version) if known else float(group["beta"])
        return 1.0, beta - 1.0

    def _weight(self, group: Group, arrival: Arrival) -> float:
        """Return the coefficient of the contribution."""
        return 1.0

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        lr = float(group["lr"])
        d = self._buffers(params, "d", torch.zeros_like)
        w = self._buffers(params, "w", copied)
        x_prev = self._buffers(params, "x_prev", copied)
        shrink(w, lr * group["weight_decay"])
        contributions = None if arrival.zero else grads
        decay, weight = 1.0 - float(group["beta"]), self._weight(group, arrival)
        accumulate_and_descend(w, contributions, d, decay=decay, weight=weight, lr=lr)
        torch._foreach_copy_(x_prev, params)
        torch._foreach_lerp_(params, w, float(group["gamma"]))


class OrderedMu2SGD(Mu2SGD):
    """Ordered mu²-SGD with constant parameters, Eq. (12) with Eq. (14).

    ``d = (1-beta)·d + (1-beta)^delay·(g - (1-beta)·g'); w -= lr·d; x = gamma·w + (1-gamma)·x``

    ``gamma = 1`` is ordered STORM. All gradients of version 1 count, with g' = g. A schedule of beta is followed by
    version: the power becomes ``prod(1 - beta_m, m = k+1..t)`` and the factor of g' ``1 - beta_k``.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient.
        gamma: Weight of ``w`` in the iterate, used literally.
        weight_decay: Decoupled weight decay, on ``w``.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = OrderedMu2SGD([x], lr=1.0, beta=0.5, gamma=1.0)
        >>> for delay, g, before in [(0, 0.0, 0.0), (0, 0.0, 0.0), (1, 8.0, 4.0)]:
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay, previous_grads=[torch.tensor([before])])
        >>> x.item()                                   # -0.5 · (8 - 0.5 · 4)
        -3.0

    References:
        Bringing Order to Asynchronous SGD: Towards Optimality under Data-Dependent Delays with Momentum, Eq. (12).
    """

    method = "ordered-mu2"

    def _weight(self, group: Group, arrival: Arrival) -> float:
        return retained(group["runs"], arrival.version, arrival.t)
