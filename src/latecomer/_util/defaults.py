"""The method that is taken where none is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["DEFAULT_METHOD", "TUNED_METHOD", "default_method"]

DEFAULT_METHOD = "rate-free"
"""The method if neither a method nor a learning rate is given."""
TUNED_METHOD = "balanced-catch-up"
"""The method if only a learning rate is given: it would be a mere factor for the one above."""


def default_method(options: Mapping[str, Any], param_groups: Any = None) -> str:
    """Return the method for these hyper-parameters and param groups.

    Examples:
        >>> default_method({"weight_decay": 0.1}), default_method({"lr": 0.1}), default_method({}, {"*": {"lr": 0.1}})
        ('rate-free', 'balanced-catch-up', 'balanced-catch-up')
    """
    by_name = isinstance(param_groups, Mapping)
    groups = [group for group in param_groups.values() if isinstance(group, Mapping)] if by_name else []
    may_have_rate = param_groups is not None and not by_name  # a function: only a model could tell
    return TUNED_METHOD if may_have_rate or any("lr" in each for each in (options, *groups)) else DEFAULT_METHOD
