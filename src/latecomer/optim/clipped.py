"""Rules with clipping: catch-up with one scale; catch-up, momentum and AdamW with a scale per lateness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .._util.checks import Range
from ._clipping import Clipped, LatenessClipped
from .adamw import CatchUpAdamW
from .base import AsyncOptimizer, Params
from .momentum import BETA, Momentum, OrderedMomentum

__all__ = ["BalancedAdamW", "BalancedCatchUp", "BalancedMomentum", "ClippedCatchUp"]


class ClippedCatchUp(Clipped, OrderedMomentum):
    """Catch-up on gradients that are clipped to one running scale, or to a fixed norm.

    ``m = beta(1-beta)^d·clip(g) + (1-beta)·m; x -= lr·m + lr·(1-(1-beta)^d)·clip(g)``
    ``clip(g) = g·min(1, c·s/‖g‖)``, ``s = (1-r)·s + r·min(‖g‖, c·s)``

    A gradient is clipped once, so the parameters are what sequential momentum makes of the clipped gradients. If slow
    samples have larger gradients than others, only they are clipped; `BalancedCatchUp` avoids that.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient; torch's momentum is ``1 - beta``.
        clip: The factor c: largest norm of a gradient as a multiple of the scale. Raise it if `last_scale` is seldom 1.
        clip_rate: The rate r of the scale; its inverse is the number of arrivals it averages over.
        clip_at: A fixed threshold instead of ``c·s``, as in ordinary clipping.
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
    """Balanced catch-up: catch-up on gradients clipped to 1.5 times what is usual for their lateness.

    ``m = beta(1-beta)^d·clip(g) + (1-beta)·m; x -= lr·m + lr·(1-(1-beta)^d)·clip(g)``
    ``clip(g) = g·min(1, c·s·r/‖g‖)``, ``s = (1-rate)·s + rate·min(‖g‖/r, c·s)``

    r is the usual size of gradients of the same lateness; docs/balanced.md has the whole rule.
    On digits and MNIST the clip made it stable at learning rates at which catch-up alone is not. A gradient is compared
    with others of its lateness, so slow samples are not clipped merely because their gradients are larger. Until a
    gradient is late, nothing is clipped.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient; torch's momentum is ``1 - beta``.
        clip: The factor c: largest size of a gradient as a multiple of the usual one.
        clip_rate: The rate of the scale s; its inverse is the number of arrivals it averages over.
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
    """Naive asynchronous momentum with the clip of `BalancedCatchUp`: to see the effect of the clip without catch-up.

    ``m = beta·clip(g) + (1-beta)·m; x -= lr·m``

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient; torch's momentum is ``1 - beta``.
        clip: Largest size of a gradient as a multiple of the usual one.
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


class BalancedAdamW(LatenessClipped, CatchUpAdamW):
    """`CatchUpAdamW` with the clip of `BalancedCatchUp`: AdamW on gradients clipped by their lateness.

    ``m = (1-beta)·m + beta(1-beta)^d·clip(g);  v = (1-beta2)·v + beta2(1-beta2)^d·clip(g)²``
    ``x -= lr·weight_decay·x;  x -= (lr·m/W + missed·clip(g)) / (sqrt(v/P2) + eps)``

    A gradient is clipped once, before both moments, so the parameters are what `CatchUpAdamW` makes of the clipped
    gradients. AdamW divides by the usual size of gradients anyway. The clip is for the ones that are far larger: they
    move the parameters before v has grown, and v stays large long after. Until a gradient is late, nothing is clipped:
    without delay this is `torch.optim.AdamW`.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient in m; torch's ``betas[0]`` is ``1 - beta``.
        beta2: Weight of the new square in v; torch's ``betas[1]`` is ``1 - beta2``.
        clip: The factor c: largest size of a gradient as a multiple of the usual one.
        clip_rate: The rate of the scale s; its inverse is the number of arrivals it averages over.
        eps: Added to the denominator.
        weight_decay: Decoupled weight decay, with torch's default.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = BalancedAdamW([x], lr=0.5, beta=0.5, eps=0.0, weight_decay=0.0, clip=2.0)
        >>> for delay, g in [(0, 1.0), (0, 1.0), (1, 1.0), (0, 100.0)]:
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> round(opt.last_scale, 4)
        0.02

    References:
        Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
    """

    method = "balanced-adamw"
    ranges: ClassVar[Mapping[str, Range]] = {**CatchUpAdamW.ranges, **LatenessClipped.ranges}
    bookkeeping: ClassVar[frozenset[str]] = CatchUpAdamW.bookkeeping | LatenessClipped.bookkeeping

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        beta: float = 0.1,
        beta2: float = 0.001,
        *,
        clip: float = 1.5,
        clip_rate: float = 0.01,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"beta": beta, "beta2": beta2, "eps": eps, "clip": clip, "clip_rate": clip_rate}
        AsyncOptimizer.__init__(
            self, params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed
        )
