"""The rules with a clip in front: catch-up with one scale, catch-up and momentum with an balanced clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .._util.checks import Range
from ._clipping import Clipped, LatenessClipped
from .base import AsyncOptimizer, Params
from .momentum import BETA, Momentum, OrderedMomentum

__all__ = ["BalancedCatchUp", "BalancedMomentum", "ClippedCatchUp"]


class ClippedCatchUp(Clipped, OrderedMomentum):
    """Catch-up on gradients that are clipped to one running scale, or to a fixed norm.

    ``m = beta(1-beta)^d·clip(g) + (1-beta)·m; x -= lr·m + lr·(1-(1-beta)^d)·clip(g)``
    ``clip(g) = g·min(1, c·s/‖g‖)``, ``s = (1-r)·s + r·min(‖g‖, c·s)``

    A gradient is clipped once, so the parameters are what sequential momentum makes of the clipped gradients. Where
    slow samples have larger gradients than others the clip falls on them alone: `BalancedCatchUp` does not have that.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient; what torch calls momentum is ``1 - beta``.
        clip: The factor c: how many times the usual norm a gradient may have. Raise it if `last_scale` is seldom 1.
        clip_rate: The rate r of the scale; its inverse is the number of arrivals it looks back on.
        clip_at: A fixed threshold instead of ``c·s``, the usual clipping.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = ClippedCatchUp([x], lr=1.0, beta=0.5, clip=2.0)
        >>> for delay, g in [(0, 1.0), (0, 0.0), (1, 100.0)]:
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> round(x.item(), 4)                         # g_1 is at 0.875; g_2, cut to 2 · 1, at 0.75
        -2.375
    """

    method = "clipped-catch-up"
    ranges: ClassVar[Mapping[str, Range]] = {**Clipped.ranges, "beta": BETA}

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        clip: float = 1.5,
        clip_rate: float = 0.01,
        clip_at: float | None = None,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"beta": beta, "catch_up": True, "clip": clip, "clip_rate": clip_rate, "clip_at": clip_at}
        AsyncOptimizer.__init__(
            self, params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed
        )


class BalancedCatchUp(LatenessClipped, OrderedMomentum):
    """Balanced catch-up: every gradient gets the place it would have had, and none more than is usual for its lateness.

    ``m = beta(1-beta)^d·clip(g) + (1-beta)·m; x -= lr·m + lr·(1-(1-beta)^d)·clip(g)``
    ``clip(g) = g·min(1, c·s·r/‖g‖)``, ``s = (1-rate)·s + rate·min(‖g‖/r, c·s)``

    r says how large gradients so late for their worker usually are; see `latecomer.optim._clipping` for how it is
    learnt. The clip stands learning rates at which catch-up alone collapses. Comparing like with like keeps it from
    falling on slow samples because theirs are the larger gradients. Before anything was late nothing is clipped.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient; what torch calls momentum is ``1 - beta``.
        clip: The factor c: how many times what is usual a gradient may be.
        clip_rate: The rate of the scale s; its inverse is the number of arrivals it looks back on.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = BalancedCatchUp([x], lr=1.0, beta=0.5, clip=2.0)
        >>> for delay, g in [(0, 1.0), (0, 1.0), (1, 1.0), (0, 100.0)]:
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> round(x.item(), 4), round(opt.last_scale, 4)
        (-3.6875, 0.02)
    """

    method = "balanced-catch-up"
    _fixed: ClassVar[Mapping[str, Any]] = {"catch_up": True}


class BalancedMomentum(LatenessClipped, Momentum):
    """Naive asynchronous momentum with the clip of `BalancedCatchUp`: what the clip does without the catch-up.

    ``m = beta·clip(g) + (1-beta)·m; x -= lr·m``

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient; what torch calls momentum is ``1 - beta``.
        clip: How many times what is usual a gradient may be.
        clip_rate: The rate of the scale.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = BalancedMomentum([x], lr=1.0, beta=1.0, clip=2.0)
        >>> for delay, g in [(0, 100.0), (0, 1.0), (1, 1.0), (0, 1.0)]:
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> x.item(), opt.last_scale
        (-103.0, 1.0)
    """

    method = "balanced-momentum"
