"""Names of functions and objects that are the same in every process."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Sized
from pathlib import Path
from typing import Any

__all__ = ["stable_name", "type_and_length"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def stable_name(value: Any) -> str:
    """Describe a value in the same way in every process: a function or a class by its name, not by its address.

    What a script defines has the same name whether the script is run or imported.
    """
    if isinstance(value, functools.partial):
        return stable_name(value.func)
    name = getattr(value, "__qualname__", None)
    if not name:
        return _ADDRESS.sub("", repr(value))
    module = value.__module__
    if module in ("__main__", "__mp_main__"):
        file = getattr(sys.modules.get(module), "__file__", None)
        module = Path(file).stem if file else module
    return f"{module}.{name}"


def type_and_length(value: Any) -> str:
    """Describe an object by its type and length, because its repr may contain an address."""
    if value is None or hasattr(value, "__qualname__"):
        return stable_name(value)
    return stable_name(type(value)) + (f" of {len(value)}" if isinstance(value, Sized) else "")
