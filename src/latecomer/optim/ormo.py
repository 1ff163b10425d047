"""OrMo: heavy-ball momentum whose gradients are put into buckets by their version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._util.checks import POSITIVE, Range, whole_number
from ._coefficients import geometric
from ._kernels import accumulate_and_descend, descend, shrink
from .base import Arrival, AsyncOptimizer, Group, Params
from .momentum import BETA

__all__ = ["DelayAdaptiveOrMo", "OrMo"]


class OrMo(AsyncOptimizer):
    """OrMo: momentum in which a late gradient joins the bucket of its version, with the steps it has missed.

    ``x -= B·u; u = B·u`` if arrival t begins a bucket; then, with ``e = b(t) - b(k)`` for a gradient of version k,
    ``u += B^e·lr·g; x -= (1 - B^(e+1))/(1 - B)·lr·g``

    With M workers, version k is in bucket ``b(k) = ceil((k-1)/M)``, and ``B = 1 - beta`` is the heavy-ball weight.

    All gradients have the influence ``1/beta`` in the end, whatever their delay. With one worker it is heavy-ball
    momentum, torch's ``SGD(momentum=B)``: there is no factor beta in front of the gradient, so at the same lr its steps
    are ``1/beta`` times as long as those of `Momentum`.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: One minus the heavy-ball weight; torch's momentum is ``1 - beta``.
        workers: Number of workers M, the size of a bucket. Not needed with a server, which knows it; workers that join
            later do not change it.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = OrMo([x], lr=1.0, beta=0.5, workers=1)
        >>> for _ in range(3):                         # heavy ball: 1, then 1.5, then 1.75
        ...     x.grad = torch.ones(1); opt.step()
        >>> x.item()
        -4.25

    References:
        Shi, Yang, Li, Ordered Momentum for Asynchronous SGD, 2024, arXiv 2407.19234 (our reading: the rule is recalled,
        its algebra checked; our versions count from 1, the publication's from 0).
    """

    method = "ormo"
    ranges: ClassVar[Mapping[str, Range]] = {**AsyncOptimizer.ranges, "beta": BETA}
    bookkeeping: ClassVar[frozenset[str]] = AsyncOptimizer.bookkeeping | {"bucket_size"}

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        workers: int | None = None,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        self._initialise(
            params, {}, lr, beta, workers, weight_decay=weight_decay, output=output, output_seed=output_seed
        )

    def _initialise(
        self, params: Params, options: dict[str, Any], lr: float, beta: float, workers: int | None, **others: Any
    ) -> None:
        if workers is not None:
            workers = whole_number("workers", workers, least=1)
        super().__init__(params, {"beta": beta, "workers": workers, **options}, lr=lr, **others)

    def _start_group(self, group: Group) -> None:
        group["bucket_size"] = self.param_groups[0].get("bucket_size", 0)

    def _check_arrival(self, arrival: Arrival) -> None:
        for group in self.param_groups:
            if arrival.delay and not (group["bucket_size"] or group["workers"] or arrival.workers):
                raise ValueError(
                    f"{type(self).__name__} needs the number of workers: use {type(self).__name__}(params, lr=..., "
                    "workers=M)"
                )

    def _rate(self, group: Group, arrival: Arrival, workers: int) -> float:
        return float(group["lr"])

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        if not group["bucket_size"]:  # fixed at the first arrival: buckets of several sizes would not be in order
            group["bucket_size"] = group["workers"] or arrival.workers or 0
        size: int = group["bucket_size"] or 1  # by _check_arrival, unknown only while nothing is late: heavy ball
        u = self._buffers(params, "u", torch.zeros_like)
        keep, now = 1.0 - float(group["beta"]), _bucket(arrival.t, size)
        begins = arrival.t > 1 and now > _bucket(arrival.t - 1, size)
        shrink(params, float(group["lr"]) * group["weight_decay"])
        if arrival.zero:
            if begins:
                accumulate_and_descend(params, None, u, decay=keep, weight=0.0, lr=1.0)
            return
        rate, late = self._rate(group, arrival, size), now - _bucket(arrival.version, size)
        in_u, in_x = keep**late * rate, geometric(float(group["beta"]), late + 1) * rate
        if begins:  # one pass: u becomes B·u + in_u·g, and x loses all of u and what the gradient has missed
            accumulate_and_descend(params, grads, u, decay=keep, weight=in_u, lr=1.0, missed=in_x - in_u)
        else:
            torch._foreach_add_(u, grads, alpha=in_u)
            descend(params, grads, in_x)


def _bucket(version: int, size: int) -> int:
    """Return ``ceil((version - 1) / size)``."""
    return (version + size - 2) // size


class DelayAdaptiveOrMo(OrMo):
    """OrMo with a learning rate that shrinks for long delays.

    ``u += B^e·rate·g; x -= (1 - B^(e+1))/(1 - B)·rate·g`` as in `OrMo`, where rate is ``lr`` if ``d <= 2M``, else
    ``min(lr, 1/(4·L·d))``

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        L: Smoothness of the objective.
        beta: One minus the heavy-ball weight; torch's momentum is ``1 - beta``.
        workers: Number of workers M. Not needed with a server, which knows it.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = DelayAdaptiveOrMo([x], lr=1.0, L=0.5, beta=1.0, workers=1)
        >>> for delay in (0, 0, 0, 3):                 # 1 + 1 + 1 + 1/(4 · 0.5 · 3)
        ...     x.grad = torch.ones(1); opt.step(delay=delay)
        >>> round(x.item(), 4)
        -3.1667

    References:
        Shi, Yang, Li, Ordered Momentum for Asynchronous SGD, 2024, arXiv 2407.19234 (our reading: recalled).
    """

    method = "ormo-da"
    ranges: ClassVar[Mapping[str, Range]] = {**OrMo.ranges, "L": POSITIVE}

    def __init__(
        self,
        params: Params,
        lr: float,
        L: float,
        beta: float = 0.1,
        *,
        workers: int | None = None,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        self._initialise(
            params, {"L": L}, lr, beta, workers, weight_decay=weight_decay, output=output, output_seed=output_seed
        )

    def _rate(self, group: Group, arrival: Arrival, workers: int) -> float:
        lr = float(group["lr"])
        return lr if arrival.delay <= 2 * workers else min(lr, 1.0 / (4.0 * float(group["L"]) * arrival.delay))
