"""What several commands read from the command line in the same way."""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["pairs"]


def pairs(words: tuple[str, ...]) -> dict[str, Any]:
    """Read name=value; a value is a number, True, False or a word."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"Invalid setting {word!r} (expected name=value)")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = float(value) if value.lower() in ("nan", "inf", "-inf") else value
    return found
