"""The table of methods: name, optimizer, and influence of a late gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .._util.checks import whole_number
from .._util.suggest import unknown
from .adamw import CatchUpAdamW
from .base import AsyncOptimizer
from .clipped import BalancedCatchUp, BalancedMomentum, ClippedCatchUp
from .momentum import BETA, Momentum, OrderedMomentum
from .mu2 import Mu2SGD, OrderedMu2SGD
from .mu2_anytime import OrderedMu2Anytime
from .sgd import AsyncSGD, DelayAdaptiveSGD, DelayFilteredSGD

__all__ = ["METHODS", "Method", "known_method"]


def _full(delay: int, **_: Any) -> float:
    """1 at any delay."""
    return 1.0


def _clipped(delay: int, **_: Any) -> float:
    """1 at any delay, times the clipping factor."""
    return 1.0


def _shrunk(delay: int, *, workers: int, **_: Any) -> float:
    """min(1, workers / delay)."""
    return min(1.0, workers / delay) if delay else 1.0


def _filtered(delay: int, *, threshold: float, **_: Any) -> float:
    """1 if delay <= threshold, else 0."""
    return float(delay <= threshold)


def _ordered(delay: int, *, beta: float, **_: Any) -> float:
    """(1 - beta)^delay."""
    return float((1.0 - beta) ** delay)


@dataclass(frozen=True)
class Method:
    """One row of `METHODS`.

    Args:
        name: The key.
        optimizer: The class that implements the rule.
        weight: The formula of `influence`.
        source: Where the rule is defined.
        options: Arguments of the optimizer that make it this method.
        policy: Name of the server's policy: ``"async"`` applies every arrival.

    Examples:
        >>> round(METHODS["ordered-momentum"].influence(delay=10, beta=0.1, workers=7), 4)
        0.3487
    """

    name: str
    optimizer: type[AsyncOptimizer]
    weight: Callable[..., float]
    source: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    policy: str = "async"

    def influence(self, delay: int, **options: Any) -> float:
        """Return the declared influence of a gradient of this delay: its total weight on the parameters.

        In units of lr, relative to a gradient without delay. For a method that clips it is the influence of a gradient
        that is not clipped: multiply by the optimizer's ``last_scale`` at each arrival for the actual one. For
        ``catch-up-adamw`` it is the weight of the gradient before the division by the denominator.

        Args:
            delay: The delay.
            **options: The hyper-parameters that the rule depends on (``beta``, ``workers``, ``threshold``); others are
                ignored.
        """
        if options.get("beta") is not None:
            BETA.check("beta", options["beta"])
        return self.weight(whole_number("delay", delay), **options)

    @property
    def influence_formula(self) -> str:
        """What `influence` computes, as a formula: the first line of the docstring of ``weight``.

        Examples:
            >>> METHODS["ordered-momentum"].influence_formula
            '(1 - beta)^delay'
        """
        return (inspect.getdoc(self.weight) or "").split("\n")[0].rstrip(".")

    @property
    def points(self) -> int:
        """Number of points at which a worker evaluates its sample."""
        return self.optimizer.points

    def __call__(self, params: Any, **options: Any) -> AsyncOptimizer:
        """Create the optimizer.

        Examples:
            >>> import torch
            >>> opt = METHODS["catch-up"]([torch.nn.Parameter(torch.zeros(1))], lr=0.1, beta=0.05)
            >>> type(opt).__name__, opt.param_groups[0]["catch_up"]
            ('OrderedMomentum', True)
        """
        self.check(options)
        make: Callable[..., AsyncOptimizer] = self.optimizer
        return make(params, **{**self.options, **options})

    @property
    def arguments(self) -> Mapping[str, inspect.Parameter]:
        """Its hyper-parameters, by name."""
        known = dict(inspect.signature(self.optimizer.__init__).parameters)
        return {name: p for name, p in known.items() if name not in ("self", "params", *self.options)}

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise for hyper-parameters that the method does not have, and for missing ones.

        Examples:
            >>> METHODS["delay-filtered"].check({"lr": 0.1})
            Traceback (most recent call last):
            ValueError: delay-filtered needs a value for 'threshold'
        """
        for name in sorted(options):
            if name not in self.arguments and name not in self.options:
                raise ValueError(f"{self.name} has no option {name!r} (it has {', '.join(self.arguments)})")
        for name, argument in self.arguments.items():
            if argument.default is inspect.Parameter.empty and name not in options:
                raise ValueError(f"{self.name} needs a value for {name!r}")


def known_method(name: object) -> Method:
    """Return the method with this name.

    Examples:
        >>> known_method("catch-up").source == METHODS["catch-up"].source
        True
    """
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(unknown("method", name, METHODS))
    return METHODS[name]


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("async-sgd", AsyncSGD, _full, "Eq. (4)"),
            Method("delay-adaptive", DelayAdaptiveSGD, _shrunk, "Eq. (3)"),
            Method("delay-filtered", DelayFilteredSGD, _filtered, "Section 6"),
            Method("momentum", Momentum, _full, "Eq. (6)"),
            Method("mu2", Mu2SGD, _full, "Eq. (14)"),
            Method("ordered-momentum", OrderedMomentum, _ordered, "Algorithm 1"),
            Method("catch-up", OrderedMomentum, _full, "ours, on Algorithm 1", MappingProxyType({"catch_up": True})),
            Method("ordered-mu2", OrderedMu2SGD, _ordered, "Eq. (12), (14)"),
            Method("ordered-mu2-anytime", OrderedMu2Anytime, _full, "Algorithm 2"),
            Method("catch-up-adamw", CatchUpAdamW, _full, "ours, on AdamW"),
            Method("clipped-catch-up", ClippedCatchUp, _clipped, "ours"),
            Method("balanced-catch-up", BalancedCatchUp, _clipped, "ours"),
            Method("balanced-momentum", BalancedMomentum, _clipped, "ours"),
        )
    }
)
"""Every method by its name."""
