"""Defaults that several packages and commands share."""

from __future__ import annotations

__all__ = ["DEFAULT_METHOD"]

DEFAULT_METHOD = "balanced-catch-up"
"""The method of `fit`, `plan` and the commands if none is given, and the one that the demo compares with others."""
