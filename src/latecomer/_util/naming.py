"""Names of functions and objects that are the same in every process."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

__all__ = ["stable_name", "type_and_length"]


def stable_name(value: Any) -> str:
    """Describe a value in the same way in every process: a function by its name, not by its address."""
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name else repr(value)


def type_and_length(value: Any) -> str:
    """Describe an object by its type and length, because its repr may contain an address."""
    if value is None or hasattr(value, "__qualname__"):
        return stable_name(value)
    return stable_name(type(value)) + (f" of {len(value)}" if isinstance(value, Sized) else "")
