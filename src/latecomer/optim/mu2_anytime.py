"""Algorithm 2: ordered mu²-SGD for convex problems, with importance weights and a projection."""

from __future__ import annotations

import torch

from ._anytime import AnytimeRule
from ._kernels import accumulate_and_descend, shrink
from ._two_point import TwoPointOptimizer
from .base import Arrival, Group, Work, copied

__all__ = ["OrderedMu2Anytime"]


class OrderedMu2Anytime(AnytimeRule, TwoPointOptimizer):
    """Algorithm 2: ordered mu²-SGD with importance weights ``a_t``, for convex problems.

    ``s = a_k·g - a_{k-1}·g'; q += s; w = P(w - lr·q); x += a_{t+1}/a_{1:t+1}·(w - x)``

    with ``k = t - delay``, ``a_0 = 0`` and P the projection onto the feasible set. ``q`` is the paper's
    ``alpha_t·d_t``. An increment has full weight whatever its delay, and all gradients of version 1 count.
    Theorem 2 requires ``lr <= 1/(4·L·T)``: far below the learning rates of the other methods, because ``q`` grows like
    t.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        projection: `Ball`, `Box`, or any callable that takes the list of all parameter tensors and projects them, in
            place or by returning new ones. The parameters must start inside the set. None for no constraint.
        weights: The importance weights: a function of ``t = 1, 2, ...``, or a sequence whose first entry is ``a_1``; T
            updates use ``T + 1`` of them. Positive and never decreasing; ``a_t = t`` by default. Neither they nor the
            projection are part of a `state_dict`: pass the same ones when you resume.
        weight_decay: Decoupled weight decay on ``w``, with the step ``lr·a_t`` of this method.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> from latecomer.optim import Ball
        >>> x = torch.nn.Parameter(torch.tensor([4.0]))
        >>> opt = OrderedMu2Anytime([x], lr=0.25 / 100, projection=Ball(radius=5.0))
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = ((x - 1.0) ** 2).sum() / 2
        ...     loss.backward()
        ...     return loss
        >>> for _ in range(100):
        ...     loss = opt.step(closure)
        >>> round(x.item(), 2)
        1.03

    References:
        Bringing Order to Asynchronous SGD: Towards Optimality under Data-Dependent Delays with Momentum, Algorithm 2.
    """

    method = "ordered-mu2-anytime"
    _own_attributes = AnytimeRule._own_attributes

    def _coefficients(self, group: Group, version: int) -> tuple[float, float]:
        return self.weight(version), -self.weight(version - 1)

    def _apply(self, work: Work, arrival: Arrival) -> None:
        t = arrival.t
        self._set_previous_of_idle(work)
        for group, params, increments in work:
            lr = float(group["lr"])
            q = self._buffers(params, "q", torch.zeros_like)
            w = self._buffers(params, "w", copied)
            shrink(w, lr * self.weight(t) * group["weight_decay"])
            accumulate_and_descend(w, None if arrival.zero else increments, q, decay=1.0, weight=1.0, lr=lr)
        self._project()
        share = self._share_of_next(t)
        for _, params, _ in work:
            torch._foreach_copy_(self._buffers(params, "x_prev", copied), params)
            torch._foreach_lerp_(params, self._buffers(params, "w", copied), share)
