"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

__all__ = ["warn"]

_HERE = str(Path(__file__).parent.parent)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside this library that led here.

    Every call warns: Python's own rule, once per line, would hide the mistake of a second run in the same process.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno)
