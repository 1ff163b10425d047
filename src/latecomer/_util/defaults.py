"""The method that is taken where none is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["DEFAULT_METHOD", "TUNED_METHOD", "default_method", "too_few"]

DEFAULT_METHOD = "rate-free"
"""The method if neither a method nor a learning rate is given."""
TUNED_METHOD = "balanced-catch-up"
"""The method if only a learning rate is given: it would be a mere factor for the one above."""


_FEW = 150
"""Contributions below which the method without a learning rate hardly trains."""


def too_few(method: str, steps: int | None) -> str:
    """Return what to say of a run that is too short for the method without a learning rate; nothing if it is not.

    Examples:
        >>> too_few("rate-free", 20)
        'rate-free needs some hundred updates to find its steps: for a run of 20, pass an lr'
        >>> too_few("momentum", 20), too_few("rate-free", None)
        ('', '')
    """
    if method != DEFAULT_METHOD or steps is None or steps >= _FEW:
        return ""
    return f"{DEFAULT_METHOD} needs some hundred updates to find its steps: for a run of {steps}, pass an lr"


def default_method(options: Mapping[str, Any], groups: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the method for these hyper-parameters and the options of param groups; a group that stands still has none.

    Examples:
        >>> default_method({"weight_decay": 0.1}), default_method({"lr": 0.1}), default_method({}, [{"lr": 0.1}])
        ('rate-free', 'balanced-catch-up', 'balanced-catch-up')
        >>> default_method({}, [{"lr": 0.0}, {}])
        'rate-free'
    """
    if "lr" in options:
        return TUNED_METHOD
    if not any(group.get("lr") for group in groups):
        return DEFAULT_METHOD
    if not all("lr" in group for group in groups):
        raise ValueError(
            "Some param groups have an lr and others have none: pass lr= for these, or method='rate-free', for which "
            "an lr is a factor of the step"
        )
    return TUNED_METHOD
