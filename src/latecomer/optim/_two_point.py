"""Rules that evaluate each sample at two points: STORM's correction needs the gradient at the previous iterate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._kernels import combine
from .base import Arrival, AsyncOptimizer, Grads, Group, Work

__all__ = ["TwoPointOptimizer"]


class TwoPointOptimizer(AsyncOptimizer):
    """Base of the rules that evaluate each sample at its iterate and at the one before.

    The state of a parameter holds ``w``, the sequence that descends, and ``x_prev``, the previous iterate. The second
    gradient comes from ``step(previous_grads=...)``, from a closure (called at both points), or from workers that ran
    `contribution`.

    Examples:
        >>> import latecomer as lc
        >>> issubclass(lc.optim.Mu2SGD, TwoPointOptimizer), lc.optim.Mu2SGD.points
        (True, 2)
    """

    points = 2

    def _set_previous_of_idle(self, work: Work) -> None:
        """Set the previous iterate to the current one for parameters that take no part in this arrival."""
        moving = {id(p) for _, params, _ in work for p in params}
        for p in self._all_params():
            if id(p) not in moving and "x_prev" in self.state.get(p, ()):
                self.state[p]["x_prev"].copy_(p)

    def _apply(self, work: Work, arrival: Arrival) -> None:
        self._set_previous_of_idle(work)
        super()._apply(work, arrival)

    def _points(self, params: list[Tensor]) -> list[list[Tensor]]:
        return [
            params,
            [self.state[p]["x_prev"] if p in self.state and "x_prev" in self.state[p] else p for p in params],
        ]

    def contribution(self, grads: Grads, previous_grads: Grads | None, version: int) -> Grads:
        """Combine the gradients at both points into the vector that a worker sends.

        Examples:
            >>> import latecomer as lc
            >>> opt = lc.optim.Mu2SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0, beta=0.25)
            >>> opt.contribution([torch.ones(2)], [torch.zeros(2)], version=2)   # g - (1-beta)g'
            [tensor([1., 1.])]
        """
        if version > 1:
            previous_grads = self._checked_previous(grads, previous_grads)
        result: list[Tensor | None] = [None] * len(grads)
        start = 0
        for group in self.param_groups:
            indices = [i for i in range(start, start + len(group["params"])) if grads[i] is not None]
            start += len(group["params"])
            if indices:
                here, before = self._coefficients(group, version)
                for i in indices:
                    g = grads[i]
                    previous = g if version == 1 or previous_grads is None else previous_grads[i]
                    with torch.no_grad():
                        result[i] = combine(g.clone(), previous, here, before)  # type: ignore[union-attr, arg-type]
        return result

    def coefficients(self, version: int) -> tuple[float, float]:
        """Return the factors of the gradients in `contribution`: at the iterate ``version``, and at the one before.

        A server sends them with a ticket, so that a worker needs no optimizer. They are those of the first param group;
        if groups differ, call `contribution` itself.

        Examples:
            >>> import latecomer as lc
            >>> lc.optim.Mu2SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0, beta=0.25).coefficients(version=2)
            (1.0, -0.75)
        """
        return self._coefficients(self.param_groups[0], version)

    def _coefficients(self, group: Group, version: int) -> tuple[float, float]:
        raise TypeError(f"{type(self).__name__} has no rule: subclass TwoPointOptimizer and define _coefficients")

    def _checked_previous(self, grads: Grads, previous_grads: Grads | None) -> Grads:
        """Check that every gradient has a second one of the same shape."""
        if previous_grads is None:
            raise ValueError(
                f"{type(self).__name__} needs the gradients of the same sample at the previous iterate: pass "
                f"step(previous_grads=[...]) with one tensor per parameter, or a closure (see opt.query for the points)"
            )
        if isinstance(previous_grads, Tensor) or not hasattr(previous_grads, "__len__"):
            raise TypeError(
                f"previous_grads is a {type(previous_grads).__name__} (expected a list with one tensor per parameter)"
            )
        if len(previous_grads) != len(grads):
            raise ValueError(
                f"Got {len(previous_grads)} previous_grads for {len(grads)} parameters (None if there is none)"
            )
        for i, (g, before) in enumerate(zip(grads, previous_grads, strict=True)):
            if g is None:
                continue
            if not isinstance(before, Tensor):
                raise TypeError(
                    f"previous_grads[{i}] is {before!r}, but parameter {i} has a gradient: it needs a tensor"
                )
            if before.shape != g.shape or before.dtype != g.dtype or before.device != g.device:
                raise ValueError(
                    f"previous_grads[{i}] is {before.dtype} of shape {tuple(before.shape)} on {before.device}, "
                    f"the gradient is {g.dtype} of shape {tuple(g.shape)} on {g.device}"
                )
        return previous_grads

    def _evaluate(
        self, closure: Callable[[], Any], arrival: Arrival, previous_grads: Grads | None
    ) -> tuple[Any, Grads | None]:
        if previous_grads is None and arrival.delay:
            raise ValueError(
                f"A closure evaluates the current iterate, so it cannot give a gradient of delay {arrival.delay}: "
                f"put the late gradients into p.grad and pass previous_grads"
            )
        if previous_grads is not None or arrival.version == 1:
            return super()._evaluate(closure, arrival, previous_grads)
        params = self._all_params()
        there = sorted({p.device for p in params if p.device.type != "cpu"}, key=str)
        kind = there[0].type if there else "cuda"
        # Both evaluations see the same random numbers.
        with torch.random.fork_rng(devices=there, device_type=kind), torch.enable_grad():
            loss = closure()
        here, before = self._points(params)
        grads, x = [p.grad for p in params], [p.clone() for p in params]
        try:
            torch._foreach_copy_(here, before)
            for p in params:
                p.grad = None
            with torch.enable_grad():
                closure()
            previous_grads = [p.grad for p in params]
        finally:
            torch._foreach_copy_(params, x)
            for p, g in zip(params, grads, strict=True):
                p.grad = g
        return loss, previous_grads
