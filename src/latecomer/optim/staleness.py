"""SGD with a step that depends on the delay or on the size of the gradient: staleness-aware, ASAP, clipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from .._util.checks import POSITIVE, Range
from ._clipping import norm
from .base import Arrival, AsyncOptimizer, Group, Params, Work
from .sgd import SGDRule

__all__ = ["ASAP", "ClippedSGD", "StalenessAwareSGD"]


class StalenessAwareSGD(SGDRule):
    """Staleness-aware SGD: the step is divided by the delay.

    ``x -= lr/max(1, d)·g``

    With one worker it is SGD.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = StalenessAwareSGD([x], lr=1.0)
        >>> for delay in (0, 1, 2):                    # 1 + 1 + 1/2
        ...     x.grad = torch.ones(1); opt.step(delay=delay)
        >>> x.item()
        -2.5

    References:
        Zhang, Gupta, Lian, Liu, Staleness-aware Async-SGD for Distributed Deep Learning, 2015, arXiv 1511.05950 (read
        in public code).
    """

    method = "staleness-aware"

    def __init__(
        self, params: Params, lr: float, *, weight_decay: float = 0.0, output: str = "last", output_seed: int = 0
    ) -> None:
        super().__init__(params, {}, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _rate(self, group: Group, arrival: Arrival) -> float:
        return float(group["lr"]) / max(1, arrival.delay)


class ASAP(SGDRule):
    """ASAP.SGD with the step tail-tau: long steps for gradients that are fresh compared with the others.

    ``x -= lr·(1 + A·(1 - 2F(d)))·g``, where ``F(d)`` is the share of all delays so far, this one included, that are at
    most d.

    So the step is between ``lr·(1-A)`` and ``lr·(1+A)``. If all delays are the same, as with one worker, F is 1 and the
    step is ``lr·(1-A)``: the formula as published, not SGD with lr.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        A: How much the step changes, from 0, which is asynchronous SGD, to 1.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = ASAP([x], lr=1.0, A=0.5)
        >>> for delay in (0, 1, 0, 0):                 # F is 1, 1, 2/3, 3/4
        ...     x.grad = torch.ones(1); opt.step(delay=delay)
        >>> round(x.item(), 4)                         # 0.5 + 0.5 + 0.8333 + 0.75
        -2.5833

    References:
        Backstrom, Papatriantafilou, Tsigas, ASAP.SGD, ICML 2022 (formula read in public code; whether F includes the
        newest delay is our reading).
    """

    method = "asap"
    ranges: ClassVar[Mapping[str, Range]] = {**SGDRule.ranges, "A": Range(0, 1)}
    bookkeeping: ClassVar[frozenset[str]] = SGDRule.bookkeeping | {"delay_counts"}

    def __init__(
        self,
        params: Params,
        lr: float,
        A: float = 0.5,
        *,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        super().__init__(params, {"A": A}, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        group["delay_counts"] = [*self.param_groups[0].get("delay_counts", [])]

    def _apply(self, work: Work, arrival: Arrival) -> None:
        for group in self.param_groups:
            _count(group["delay_counts"], arrival.delay)
        super()._apply(work, arrival)

    def _rate(self, group: Group, arrival: Arrival) -> float:
        share = _at_most(group["delay_counts"], arrival.delay) / arrival.t
        return float(group["lr"]) * (1.0 + float(group["A"]) * (1.0 - 2.0 * share))


def _count(tree: list[int], delay: int) -> None:
    """Count a delay in a Fenwick tree, which has sums over ranges: delays may be as many as there are workers."""
    while len(tree) <= delay:
        # A new node covers the last (index & -index) counts, all but its own in nodes that exist already.
        index, total, width = len(tree) + 1, 0, 1
        while width < (index & -index):
            total += tree[index - width - 1]
            width *= 2
        tree.append(total)
    index = delay + 1
    while index <= len(tree):
        tree[index - 1] += 1
        index += index & -index


def _at_most(tree: list[int], delay: int) -> int:
    """Return how many delays were at most ``delay``."""
    index, total = delay + 1, 0
    while index:
        total += tree[index - 1]
        index -= index & -index
    return total


class ClippedSGD(SGDRule):
    """Clipped asynchronous SGD: a gradient longer than ``clip_at`` is cut to that length.

    ``x -= lr·g·min(1, clip_at/‖g‖)``, with the norm of all parameters together.

    With one worker it is SGD with clipped gradients, and with a large ``clip_at`` it is `AsyncSGD`. A gradient that is
    not finite is not scaled.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        clip_at: Largest norm of a gradient.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Attributes:
        last_scale: Factor of the last gradient, 0 if it had weight zero.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(2))
        >>> opt = ClippedSGD([x], lr=1.0, clip_at=1.0)
        >>> x.grad = torch.tensor([3.0, 4.0]); opt.step()
        >>> [round(v, 4) for v in x.tolist()], opt.last_scale
        ([-0.6, -0.8], 0.2)

    References:
        Erickson, Johansson, Clipping Makes Distributed and Federated Asynchronous SGD Robust to Stragglers, 2026,
        arXiv 2606.13287 (abstract read; rule read in public code).
    """

    method = "clipped"
    ranges: ClassVar[Mapping[str, Range]] = {**SGDRule.ranges, "clip_at": POSITIVE}
    _own_attributes: ClassVar[tuple[str, ...]] = (*AsyncOptimizer._own_attributes, "last_scale")
    last_scale: float = 1.0

    def __init__(
        self,
        params: Params,
        lr: float,
        clip_at: float,
        *,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options: dict[str, Any] = {"clip_at": clip_at}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _apply(self, work: Work, arrival: Arrival) -> None:
        self.last_scale = 0.0 if arrival.zero else 1.0
        self._length = 0.0 if arrival.zero else norm([g for _, _, grads in work for g in grads]) if work else 0.0
        super()._apply(work, arrival)

    def _rate(self, group: Group, arrival: Arrival) -> float:
        if float(group["clip_at"]) < self._length < math.inf:
            self.last_scale = float(group["clip_at"]) / self._length
            return float(group["lr"]) * self.last_scale
        return float(group["lr"])
