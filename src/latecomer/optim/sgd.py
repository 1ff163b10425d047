"""Asynchronous SGD, and its usual variants: scale late gradients down, or drop them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from .._util.checks import AT_LEAST_ZERO, POSITIVE, Range, whole_number
from ._kernels import descend, shrink
from .base import Arrival, AsyncOptimizer, Group, Params, Work

__all__ = ["AsyncSGD", "DelayAdaptiveSGD", "DelayFilteredSGD", "SGDRule"]


class SGDRule(AsyncOptimizer):
    """``x -= rate·g``, with a rate that may depend on the arrival."""

    def _rate(self, group: Group, arrival: Arrival) -> float:
        return float(group["lr"])

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        rate = self._rate(group, arrival)
        shrink(params, rate * group["weight_decay"])
        if not arrival.zero:
            descend(params, grads, rate)


class AsyncSGD(SGDRule):
    """Vanilla asynchronous SGD, Eq. (4): every gradient counts in full, whatever its delay.

    ``x -= lr·g``

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = AsyncSGD([x], lr=0.5)
        >>> for delay in (0, 1, 2):
        ...     x.grad = torch.ones(1); opt.step(delay=delay)
        >>> x.item()
        -1.5
    """

    method = "async-sgd"

    def __init__(
        self, params: Params, lr: float, *, weight_decay: float = 0.0, output: str = "last", output_seed: int = 0
    ) -> None:
        super().__init__(params, {}, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)


class DelayAdaptiveSGD(SGDRule):
    """Delay-adaptive SGD: a gradient with a delay above M is scaled down in proportion.

    ``x -= lr·min(1, M/d)·g``, and the full learning rate at ``d = 0``. With ``L``, ``delta``, ``sigma`` and ``steps``
    it is Eq. (3), ``lr·min{1/(L·d), 1/(L·M), sqrt(delta/(L·sigma²·T))}``. The paper leaves the constants of the three
    terms open; here they are one, and ``lr`` scales all three.

    Another form of theory, ``min{lr, 1/(4·L·d)}`` of Koloskova et al. as we recall it, is not offered: its second term
    does not depend on ``lr``.

    Args:
        params: Parameters or param groups.
        lr: Learning rate; with Eq. (3) a factor in front of it.
        workers: Number of workers M. Not needed with a server, which knows it.
        L: Smoothness of the objective, for Eq. (3).
        delta: Gap between the first loss and the best possible one, for Eq. (3).
        sigma: Standard deviation of the gradient noise, for Eq. (3).
        steps: Number of updates T, for Eq. (3).
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = DelayAdaptiveSGD([x], lr=1.0, workers=2)
        >>> for delay in (0, 1, 2, 3, 4):            # 1 + 1 + 1 + 2/3 + 2/4
        ...     x.grad = torch.ones(1); opt.step(delay=delay)
        >>> round(x.item(), 4)
        -4.1667

    References:
        Mishchenko et al., Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays, 2022 (read in public code).
        Koloskova, Stich, Jaggi, Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated
        Learning, 2022 (recalled).
    """

    method = "delay-adaptive"

    def __init__(
        self,
        params: Params,
        lr: float,
        *,
        workers: int | None = None,
        L: float | None = None,
        delta: float | None = None,
        sigma: float | None = None,
        steps: int | None = None,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        constants: dict[str, Any] = {"L": L, "delta": delta, "sigma": sigma, "steps": steps}
        missing = [name for name, value in constants.items() if value is None]
        if 0 < len(missing) < len(constants):
            raise ValueError(f"Eq. (3) needs L, delta, sigma and steps together; missing: {', '.join(missing)}")
        if not missing:
            POSITIVE.check("L", L)
            POSITIVE.check("delta", delta)
            AT_LEAST_ZERO.check("sigma", sigma)
            whole_number("steps", steps, least=1)
        if workers is not None:
            workers = whole_number("workers", workers, least=1)
        options = {"workers": workers, **constants}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group["workers"] is not None:
            whole_number("workers", group["workers"], least=1)

    def _check_arrival(self, arrival: Arrival) -> None:
        if arrival.workers is not None:
            return
        for group in self.param_groups:
            if group["workers"] is None and (arrival.delay > 0 or group["L"] is not None):
                raise ValueError(
                    "delay-adaptive SGD needs the number of workers: use DelayAdaptiveSGD(params, lr=..., workers=M)"
                )

    def _rate(self, group: Group, arrival: Arrival) -> float:
        lr, delay = float(group["lr"]), arrival.delay
        workers: int = group["workers"] or arrival.workers or 1  # by _check_arrival, unknown only if it is not used
        if group["L"] is None:
            return lr * min(1.0, workers / delay) if delay else lr
        terms: list[float] = [1.0 / (group["L"] * workers)]
        if delay:
            terms.append(1.0 / (group["L"] * delay))
        if group["sigma"]:
            terms.append(math.sqrt(group["delta"] / (group["L"] * group["steps"])) / group["sigma"])
        return lr * min(terms)


class DelayFilteredSGD(SGDRule):
    """Delay-filtered SGD: a gradient with a delay above the threshold is dropped.

    ``x -= lr·g`` if ``d <= threshold``; otherwise only the counts of arrivals and of `dropped` ones change.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        threshold: Largest delay that is not dropped. The paper tries M, 1.5·M and 2·M.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = DelayFilteredSGD([x], lr=1.0, threshold=1.5)
        >>> for delay in (0, 1, 2):
        ...     x.grad = torch.ones(1); opt.step(delay=delay)
        >>> x.item(), opt.dropped, opt.t
        (-2.0, 1, 3)
    """

    method = "delay-filtered"
    ranges: ClassVar[Mapping[str, Range]] = {**SGDRule.ranges, "threshold": AT_LEAST_ZERO}

    def __init__(
        self,
        params: Params,
        lr: float,
        *,
        threshold: float,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"threshold": threshold}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _start_group(self, group: Group) -> None:
        group["dropped"] = 0

    def _apply(self, work: Work, arrival: Arrival) -> None:
        for group in self.param_groups:
            group["dropped"] += arrival.delay > group["threshold"]
        super()._apply([item for item in work if arrival.delay <= item[0]["threshold"]], arrival)

    def drops(self, arrival: Arrival) -> bool:
        """Whether the delay is beyond the threshold of every group."""
        return not arrival.zero and all(arrival.delay > group["threshold"] for group in self.param_groups)

    def needs(self, arrival: Arrival) -> bool:
        """Whether the delay is within the threshold of any group."""
        return super().needs(arrival) and not self.drops(arrival)

    @property
    def dropped(self) -> int:
        """Number of dropped arrivals; with different thresholds, that of the smallest one."""
        return max(int(group["dropped"]) for group in self.param_groups)
