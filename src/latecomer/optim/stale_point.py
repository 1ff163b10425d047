"""Rules that use the parameters a late gradient was computed at: Picky SGD and DC-ASGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .._util.checks import AT_LEAST_ZERO, POSITIVE, Range, checked_flag
from ._clipping import norm
from ._kernels import descend, shrink
from .base import Arrival, AsyncOptimizer, Group, Params, Work

__all__ = ["DCASGD", "PickySGD", "StalePointRule"]


class StalePointRule(AsyncOptimizer):
    """Base of rules that compare the parameters now with those at which a gradient was computed.

    A server passes the latter with every arrival: it stores them for the worker anyway. In a loop of one's own, keep a
    copy when a gradient computation starts, and pass it with the gradient:
    ``opt.step(arrival=Arrival(opt.t + 1, version, point=copies))``. Without delay there is nothing to pass.

    With bfloat16 on the wire the point is the one before rounding. A mean that a policy has collected has no delay and
    no point: these rules then see no displacement.
    """

    reads_point = True

    def _check_arrival(self, arrival: Arrival) -> None:
        if arrival.delay and arrival.point is None:
            raise ValueError(
                f"{type(self).__name__} needs the parameters that a gradient of delay {arrival.delay} was computed at: "
                "pass step(arrival=Arrival(opt.t + 1, version, point=[...])) with one tensor per parameter"
            )
        params = self._all_params()
        if arrival.point is not None and len(arrival.point) != len(params):
            raise ValueError(f"Arrival.point has {len(arrival.point)} tensors for {len(params)} parameters")

    def _moved(self, params: list[Tensor], arrival: Arrival) -> list[Tensor] | None:
        """Return how far parameters have moved since the gradient was computed; None if they have not."""
        if not arrival.delay or arrival.point is None:
            return None
        every, point = self._all_params(), arrival.point
        if len(params) < len(every):
            place = {id(p): i for i, p in enumerate(every)}
            point = [point[place[id(p)]] for p in params]
        return list(torch._foreach_sub(params, _on_their_devices(point, params)))


def _on_their_devices(point: Sequence[Tensor], params: list[Tensor]) -> list[Tensor]:
    """Return a point on the devices of the parameters; a server may keep it in the memory of the machine."""
    return [t if t.device == p.device else t.to(p.device) for t, p in zip(point, params, strict=True)]


class PickySGD(StalePointRule):
    """Picky SGD: a gradient counts only if the parameters are still near the point it was computed at.

    ``x -= lr·g`` if ``‖x_t - x_{t-d}‖ <= radius``, else nothing; the publication takes ``radius = eps/(2L)`` for a
    target eps of the gradient norm.

    The norm is that of all parameters together. A skipped gradient is counted as an arrival and as `dropped`; it is
    never computed in a simulation. With one worker, or an infinite radius, it is SGD.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        radius: Largest distance at which a gradient counts.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = PickySGD([x], lr=1.0, radius=1.0)
        >>> start = x.detach().clone()
        >>> for t, g in ((1, 1.0), (2, 1.0), (3, 1.0)):          # all computed at the start
        ...     x.grad = torch.tensor([g]); opt.step(arrival=Arrival(t, version=1, point=[start]))
        >>> x.item(), opt.dropped                     # the third is skipped: x is 2 away
        (-2.0, 1)

    References:
        Cohen, Daniely, Drori, Koren, Schain, Asynchronous Stochastic Optimization Robust to Arbitrary Delays, 2021,
        arXiv 2106.11879 (our reading: the abstract was read, the rule is recalled).
    """

    method = "picky"
    ranges: ClassVar[Mapping[str, Range]] = {**AsyncOptimizer.ranges, "radius": POSITIVE}
    bookkeeping: ClassVar[frozenset[str]] = AsyncOptimizer.bookkeeping | {"dropped"}

    def __init__(
        self,
        params: Params,
        lr: float,
        radius: float,
        *,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"radius": radius}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _start_group(self, group: Group) -> None:
        group["dropped"] = self.param_groups[0].get("dropped", 0)

    @torch.no_grad()
    def drops(self, arrival: Arrival) -> bool:
        """Whether the parameters are too far from the point."""
        if arrival.zero:
            return False
        moved = self._moved(self._all_params(), arrival)
        # Written so that a distance of NaN drops too.
        return moved is not None and not norm(moved) <= float(self.param_groups[0]["radius"])

    def needs(self, arrival: Arrival) -> bool:
        """Whether the parameters are near enough to the point."""
        return super().needs(arrival) and not self.drops(arrival)

    def _apply(self, work: Work, arrival: Arrival) -> None:
        skipped = self.drops(arrival)
        for group in self.param_groups:
            group["dropped"] += skipped
        for group, params, grads in work:
            shrink(params, float(group["lr"]) * group["weight_decay"])
            if not skipped and not arrival.zero:
                descend(params, grads, float(group["lr"]))

    @property
    def dropped(self) -> int:
        """Number of skipped arrivals."""
        return int(self.param_groups[0]["dropped"])


class DCASGD(StalePointRule):
    """DC-ASGD: a late gradient is corrected to first order for how far the parameters have moved.

    ``x -= lr·(g + lam·g⊙g⊙(x_t - x_{t-d}))``, or with ``adaptive=True``
    ``v = m·v + (1-m)·g²`` and ``lam/sqrt(v + 1e-7)`` in place of lam, element by element.

    g⊙g stands for the curvature. Without delay, as with one worker, it is SGD.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        lam: Strength of the correction; the publication takes 0.04 for the constant and 2 for the adaptive form.
        adaptive: Divide the strength by the root of a running mean of squared gradients.
        mean_decay: The publication's m, the decay of that mean.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = DCASGD([x], lr=1.0, lam=0.5)
        >>> start = x.detach().clone()
        >>> for t, g in ((1, 1.0), (2, 2.0)):
        ...     x.grad = torch.tensor([g]); opt.step(arrival=Arrival(t, version=1, point=[start]))
        >>> x.item()                                   # -1, then -(2 + 0.5 · 4 · (-1)) = 0
        -1.0

    References:
        Zheng et al., Asynchronous Stochastic Gradient Descent with Delay Compensation, 2017, arXiv 1609.08326 (read in
        public code).
    """

    method = "dc-asgd"
    identity = ("method", "adaptive")
    ranges: ClassVar[Mapping[str, Range]] = {
        **AsyncOptimizer.ranges,
        "lam": AT_LEAST_ZERO,
        "mean_decay": Range(0, 1),
    }

    def __init__(
        self,
        params: Params,
        lr: float,
        lam: float = 0.04,
        *,
        adaptive: bool = False,
        mean_decay: float = 0.95,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"lam": lam, "adaptive": checked_flag("adaptive", adaptive), "mean_decay": mean_decay}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        lr, lam = float(group["lr"]), float(group["lam"])
        moved = None if arrival.zero else self._moved(params, arrival)  # before the decay moves them too
        shrink(params, lr * group["weight_decay"])
        if arrival.zero:
            return
        if group["adaptive"]:
            v, m = self._buffers(params, "v", torch.zeros_like), float(group["mean_decay"])
            torch._foreach_mul_(v, m)
            torch._foreach_addcmul_(v, grads, grads, value=1.0 - m)
        if moved is not None:
            torch._foreach_mul_(moved, grads)
            torch._foreach_mul_(moved, grads)
            if group["adaptive"]:
                root = torch._foreach_add(v, 1e-7)
                torch._foreach_sqrt_(root)
                torch._foreach_div_(moved, root)
            descend(params, moved, lr * lam)
        descend(params, grads, lr)
