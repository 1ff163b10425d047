"""Algorithm 2: ordered mu²-SGD for convex problems, with importance weights and a projection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .._util.checks import POSITIVE
from ._kernels import accumulate_and_descend, shrink
from ._two_point import TwoPointOptimizer
from .base import Arrival, Group, Params, Work, copied
from .projection import Projection

__all__ = ["OrderedMu2Anytime"]


class OrderedMu2Anytime(TwoPointOptimizer):
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
    _own_attributes = (*TwoPointOptimizer._own_attributes, "projection", "weights")

    def __init__(
        self,
        params: Params,
        lr: float,
        *,
        projection: Projection | None = None,
        weights: Callable[[int], float] | Sequence[float] | None = None,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        if projection is not None and not callable(projection):
            raise TypeError(f"Invalid projection value: {projection!r} (expected Ball, Box, a callable or None)")
        if weights is not None and not callable(weights) and not isinstance(weights, Sequence):
            raise TypeError(f"Invalid weights value: {weights!r} (expected a function of t, a sequence or None)")
        self.projection = projection
        self.weights = weights
        super().__init__(params, {}, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)
        self._check_weights(1)
        self._check_start()

    def weight(self, t: int) -> float:
        """Return the importance weight ``a_t``, with ``a_0 = 0``.

        Examples:
            >>> opt = OrderedMu2Anytime([torch.nn.Parameter(torch.zeros(1))], lr=0.1, weights=lambda t: t**2)
            >>> [opt.weight(t) for t in range(4)]
            [0.0, 1.0, 4.0, 9.0]
        """
        if t == 0:
            return 0.0
        if self.weights is None:
            return float(t)
        if callable(self.weights):
            return POSITIVE.check(f"weight a_{t}", self.weights(t))
        if t > len(self.weights):
            raise ValueError(f"The importance weights end at a_{len(self.weights)}, but arrival {t - 1} needs a_{t}")
        return POSITIVE.check(f"weight a_{t}", self.weights[t - 1])

    def _check_weights(self, t: int) -> None:
        if self.weights is not None:
            now, after = self.weight(t), self.weight(t + 1)
            if after < now:
                raise ValueError(f"The importance weights must not decrease: a_{t} = {now:g}, a_{t + 1} = {after:g}")

    def _check_arrival(self, arrival: Arrival) -> None:
        self._check_weights(arrival.t)

    def _check_start(self) -> None:
        """Raise unless the parameters start in K, as Algorithm 2 requires, and match the projection's shapes."""
        if self.projection is None:
            return
        params = [p.detach() for p in self._all_params()]
        projected = [p.clone() for p in params]
        _project(self.projection, projected)
        moved = max(
            (float((p - q).abs().max()) for p, q in zip(params, projected, strict=True) if p.numel()), default=0.0
        )
        scale = max((float(p.abs().max()) for p in params if p.numel()), default=0.0)
        if not moved <= torch.finfo(params[0].dtype).eps ** 0.5 * max(1.0, scale):
            raise ValueError(
                f"The parameters start outside the feasible set (the projection moves them by up to {moved:.3g}): "
                f"choose a set that contains them, or project them first: projection([p.data for p in params])"
            )

    def _start_group(self, group: Group) -> None:
        first = self.param_groups[0]
        group["weight_sum"] = first.get("weight_sum", 0.0)  # a_{1:t+1} once t arrivals are counted

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
        if self.projection is not None:
            # Joint over all parameters: those without a gradient are part of the norm too.
            _project(self.projection, self._buffers(self._all_params(), "w", copied))
        total = (self.param_groups[0]["weight_sum"] or self.weight(1)) + self.weight(t + 1)
        for group in self.param_groups:
            group["weight_sum"] = total
        for _, params, _ in work:
            torch._foreach_copy_(self._buffers(params, "x_prev", copied), params)
            torch._foreach_lerp_(params, self._buffers(params, "w", copied), self.weight(t + 1) / total)


def _project(projection: Projection, tensors: list[Tensor]) -> None:
    """Project in place, whether the callable does so itself or returns the result."""
    shapes = [t.shape for t in tensors]
    result = projection(tensors)
    if result is not None:
        if isinstance(result, Tensor) or [getattr(t, "shape", None) for t in result] != shapes:
            raise ValueError(
                f"The projection must return one tensor per parameter, of shapes {[tuple(s) for s in shapes]}"
            )
        torch._foreach_copy_(tensors, list(result))
