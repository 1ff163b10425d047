"""Names for functions and objects that another process would give them too."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

__all__ = ["stable_name", "type_and_length"]


def stable_name(value: Any) -> str:
    """Describe a value in a way that another process would repeat: a function by its name, not by its address.

    Examples:
        >>> stable_name(type_and_length), stable_name(0.5)
        ('latecomer._util.naming.type_and_length', '0.5')
    """
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name else repr(value)


def type_and_length(value: Any) -> str:
    """Describe an object by its type and its length alone: for those whose representation may show an address.

    Examples:
        >>> type_and_length([1, 2, 3])
        'builtins.list of 3'
    """
    if value is None or hasattr(value, "__qualname__"):
        return stable_name(value)
    return stable_name(type(value)) + (f" of {len(value)}" if isinstance(value, Sized) else "")
