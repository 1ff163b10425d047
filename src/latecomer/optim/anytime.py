"""Asynchronous Anytime-SGD: gradients are taken at an average of the iterates, which moves slowly."""

from __future__ import annotations

import torch

from ._anytime import AnytimeRule
from ._kernels import descend, shrink
from .base import Arrival, Work, copied

__all__ = ["AnytimeSGD"]


class AnytimeSGD(AnytimeRule):
    """Asynchronous Anytime-SGD: SGD on w with importance weights, and gradients at the weighted average x of the w.

    ``w = P(w - lr·a_t·g); x += a_{t+1}/a_{1:t+1}·(w - x)``

    with ``a_t = t`` by default and P the projection onto the feasible set. x moves ever more slowly, so late gradients
    were computed near where x is now. A gradient has the weight of its arrival, whatever its delay. With one worker it
    is Anytime-SGD. The steps of w grow like t: take far smaller learning rates than for SGD.

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
        >>> x = torch.nn.Parameter(torch.tensor([4.0]))
        >>> opt = AnytimeSGD([x], lr=0.25)
        >>> for _ in range(3):                         # w is 3.75, 3.25, 2.5
        ...     x.grad = torch.ones(1); opt.step()
        >>> round(x.item(), 4)                         # (1 · 4 + 2 · 3.75 + 3 · 3.25 + 4 · 2.5)/10
        3.125

    References:
        Aviv, Hakimi, Schuster, Levy, Asynchronous Distributed Learning: Adapting to Gradient Delays without Prior
        Knowledge, ICML 2021 (our reading of what our paper says of it; its adaptive step size is not here).
    """

    method = "anytime-sgd"

    def _apply(self, work: Work, arrival: Arrival) -> None:
        for group, params, grads in work:
            rate = float(group["lr"]) * self.weight(arrival.t)
            w = self._buffers(params, "w", copied)
            shrink(w, rate * group["weight_decay"])
            if not arrival.zero:
                descend(w, grads, rate)
        self._project()
        share = self._share_of_next(arrival.t)
        for _, params, _ in work:
            torch._foreach_lerp_(params, self._buffers(params, "w", copied), share)
