"""What the anytime rules share: importance weights, a projection, and the weighted average of the iterates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .._util.checks import POSITIVE
from .base import Arrival, AsyncOptimizer, Group, Params, copied
from .projection import Projection

__all__ = ["AnytimeRule", "Weights"]

Weights = Callable[[int], float] | Sequence[float] | None
"""Importance weights: a function of t, a sequence whose first entry is a_1, or None for a_t = t."""


class AnytimeRule(AsyncOptimizer):
    """Base of rules in which x is the average of a sequence w, weighted by importance weights ``a_t``.

    ``x += a_{t+1}/a_{1:t+1}·(w - x)``, and w is projected onto the feasible set.
    """

    _own_attributes = (*AsyncOptimizer._own_attributes, "projection", "weights")

    def __init__(
        self,
        params: Params,
        lr: float,
        *,
        projection: Projection | None = None,
        weights: Weights = None,
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
            >>> import latecomer as lc
            >>> opt = lc.optim.AnytimeSGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, weights=lambda t: t**2)
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

    def _project(self) -> None:
        """Project w, of all parameters together: those without a gradient are part of the norm too."""
        if self.projection is not None:
            _project(self.projection, self._buffers(self._all_params(), "w", copied))

    def _share_of_next(self, t: int) -> float:
        """Return ``a_{t+1}/a_{1:t+1}``, and count the weight."""
        total = (self.param_groups[0]["weight_sum"] or self.weight(1)) + self.weight(t + 1)
        for group in self.param_groups:
            group["weight_sum"] = total
        return self.weight(t + 1) / total


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
