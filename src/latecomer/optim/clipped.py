"""The rules with clipping in front: asynchronous SGD, momentum, ordered momentum with catch-up, filled, or neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from .base import AsyncOptimizer, Params
from .checks import Range, checked_flag
from .clipping import Clipped, clip_options
from .filled import OrderedFilled
from .momentum import BETA, Momentum, OrderedMomentum
from .sgd import AsyncSGD

__all__ = ["ClippedAsyncSGD", "ClippedMomentum", "ClippedOrderedFilled", "ClippedOrderedMomentum"]


class ClippedAsyncSGD(Clipped, AsyncSGD):
    """Asynchronous SGD on clipped gradients.

    ``x -= lr·clip(g)``, ``clip(g) = g·min(1, c·s/‖g‖)``, ``s = (1-r)·s + r·min(‖g‖, c·s)``

    With ``clip_norm`` the threshold is fixed, the usual clipping and the control in experiments.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        clip: The factor c: how many times the usual norm a gradient may have. Raise it if `last_scale` is seldom 1.
        clip_rate: The rate r of the scale; its inverse is the number of arrivals it looks back on.
        clip_scale: What has a scale of its own: ``"all"`` parameters together, each ``"tensor"``, each range of
            ``"delay"`` by powers of two, or each class of ``"lateness"``, the delay for its worker.
        clip_norm: A fixed threshold instead of ``c·s``.
        feedback: The share of what was cut off that is added to the next arrival; 0 forgets it, 1 loses nothing.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = ClippedAsyncSGD([x], lr=1.0, clip_norm=2.0, feedback=1.0)
        >>> for g in (5.0, 0.0, 0.0):                  # cut to 2, and the rest comes later
        ...     x.grad = torch.tensor([g]); opt.step(); print(x.item())
        -2.0
        -4.0
        -5.0

    References:
        Seide et al., 1-bit stochastic gradient descent, 2014, for error feedback.
    """

    method = "clipped-async-sgd"

    def __init__(
        self,
        params: Params,
        lr: float,
        *,
        clip: float = 2.0,
        clip_rate: float = 0.01,
        clip_scale: str = "all",
        clip_norm: float | None = None,
        feedback: float = 0.0,
        weight_decay: float = 0.0,
        output: str = "last",
        seed: int = 0,
    ) -> None:
        options = clip_options(clip, clip_rate, clip_scale, clip_norm, feedback)
        AsyncOptimizer.__init__(self, params, options, lr=lr, weight_decay=weight_decay, output=output, seed=seed)


class ClippedMomentum(Clipped, Momentum):
    """Naive asynchronous momentum on clipped gradients.

    ``m = beta·clip(g) + (1-beta)·m; x -= lr·m``, with ``clip`` as in `ClippedAsyncSGD`.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient.
        clip: How many times the usual norm a gradient may have.
        clip_rate: The rate of the scale.
        clip_scale: ``"all"``, ``"tensor"``, ``"delay"`` or ``"lateness"``.
        clip_norm: A fixed threshold instead.
        feedback: The share of what was cut off that is added to the next arrival.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = ClippedMomentum([x], lr=1.0, beta=0.5, clip=2.0)
        >>> for g in (1.0, 100.0):                     # m = 0.5, then 0.5 · 2 + 0.25
        ...     x.grad = torch.tensor([g]); opt.step()
        >>> x.item(), opt.last_scale
        (-1.75, 0.02)
    """

    method = "clipped-momentum"
    ranges: ClassVar[Mapping[str, Range]] = {**Clipped.ranges, "beta": BETA}

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        clip: float = 2.0,
        clip_rate: float = 0.01,
        clip_scale: str = "all",
        clip_norm: float | None = None,
        feedback: float = 0.0,
        weight_decay: float = 0.0,
        output: str = "last",
        seed: int = 0,
    ) -> None:
        options = {"beta": beta, **clip_options(clip, clip_rate, clip_scale, clip_norm, feedback)}
        AsyncOptimizer.__init__(self, params, options, lr=lr, weight_decay=weight_decay, output=output, seed=seed)


class ClippedOrderedMomentum(Clipped, OrderedMomentum):
    """Ordered momentum on clipped gradients, with or without catch-up.

    ``m = beta(1-beta)^d·clip(g) + (1-beta)·m; x -= lr·m``, and with ``catch_up=True`` also
    ``x -= lr·(1-(1-beta)^d)·clip(g)``; ``clip`` as in `ClippedAsyncSGD`. A gradient is clipped once, so with catch-up
    both parts are of the same vector and the parameters are what sequential momentum makes of the clipped gradients.
    What feedback keeps of a gradient is given the place of the arrival it comes back with.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient.
        catch_up: Make up for the displacement a late gradient missed.
        clip: How many times the usual norm a gradient may have.
        clip_rate: The rate of the scale.
        clip_scale: ``"all"``, ``"tensor"``, ``"delay"`` or ``"lateness"``.
        clip_norm: A fixed threshold instead.
        feedback: The share of what was cut off that is added to the next arrival.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = ClippedOrderedMomentum([x], lr=1.0, beta=0.5, catch_up=True, clip=2.0)
        >>> for delay, g in [(0, 1.0), (0, 0.0), (1, 100.0)]:
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> round(x.item(), 4)                         # g_1 is at 0.875; g_2, cut to 2 · 0.99, at 0.75
        -2.36
    """

    method = "clipped-ordered-momentum"
    ranges: ClassVar[Mapping[str, Range]] = {**Clipped.ranges, "beta": BETA}

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        catch_up: bool = False,
        clip: float = 2.0,
        clip_rate: float = 0.01,
        clip_scale: str = "all",
        clip_norm: float | None = None,
        feedback: float = 0.0,
        weight_decay: float = 0.0,
        output: str = "last",
        seed: int = 0,
    ) -> None:
        options = {"beta": beta, "catch_up": checked_flag("catch_up", catch_up)}
        options |= clip_options(clip, clip_rate, clip_scale, clip_norm, feedback)
        AsyncOptimizer.__init__(self, params, options, lr=lr, weight_decay=weight_decay, output=output, seed=seed)


class ClippedOrderedFilled(Clipped, OrderedFilled):
    """`OrderedFilled` on clipped gradients: the mean that stands in for what is in flight is one of clipped gradients.

    ``m = beta(1-beta)^d·clip(g) + (1-beta)·m; x -= lr·(m + phi·h)``, with ``clip`` as in `ClippedAsyncSGD`.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        beta: Weight of the new gradient.
        fill_rate: Rate of the running mean, per arrival.
        clip: How many times the usual norm a gradient may have.
        clip_rate: The rate of the scale.
        clip_scale: ``"all"``, ``"tensor"``, ``"delay"`` or ``"lateness"``.
        clip_norm: A fixed threshold instead.
        feedback: The share of what was cut off that is added to the next arrival.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        seed: Seeds ``output="uniform"``.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = ClippedOrderedFilled([x], lr=1.0, beta=0.5, clip_norm=8.0)
        >>> for delay, g in [(0, 0.0), (0, 0.0), (1, 80.0)]:
        ...     x.grad = torch.tensor([g]); opt.step(delay=delay)
        >>> x.item(), opt.last_scale                   # 0.5 · 0.5 · 8 + 0.5 · 8
        (-6.0, 0.1)
    """

    method = "clipped-ordered-filled"
    ranges: ClassVar[Mapping[str, Range]] = {**Clipped.ranges, **OrderedFilled.ranges}
    bookkeeping: ClassVar[frozenset[str]] = Clipped.bookkeeping | OrderedFilled.bookkeeping

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        fill_rate: float = 0.01,
        clip: float = 2.0,
        clip_rate: float = 0.01,
        clip_scale: str = "all",
        clip_norm: float | None = None,
        feedback: float = 0.0,
        weight_decay: float = 0.0,
        output: str = "last",
        seed: int = 0,
    ) -> None:
        options = {"beta": beta, "catch_up": False, "fill_rate": fill_rate}
        options |= clip_options(clip, clip_rate, clip_scale, clip_norm, feedback)
        AsyncOptimizer.__init__(self, params, options, lr=lr, weight_decay=weight_decay, output=output, seed=seed)
